#!/bin/bash
# deps.sh [PACKAGE...]: installs the named Debian packages, or all that the tests use. Without root or apt-get it only
# lists the missing packages; specs that need them skip.
set -euo pipefail
cd "$(dirname "$0")/.."

named=$#
[ $# -gt 0 ] || set -- busybox-static conntrack containernetworking-plugins dbus-daemon dnsmasq-base firewalld \
	iproute2 iptables iputils-ping jq kea-dhcp6-server netcat-openbsd nftables procps radvd shellcheck socat tcpdump util-linux
missing=()
for package; do
	[ "$(dpkg-query -Wf '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
promtool=${XDG_CACHE_HOME:-$HOME/.cache}/hawser/promtool
if [ "$named" = 0 ] && [ ! -x "$promtool" ] && ! command -v promtool >/dev/null; then
	missing+=(prometheus) # only promtool is extracted: the package starts a daemon
fi
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "deps: missing packages, whose installation needs root and apt-get: ${missing[*]}" >&2
	exit 0
fi
echo "deps: installing ${missing[*]}"
mkdir -p "${promtool%/*}"
exec 9>"${promtool%/*}/.apt.lock" # steps of .ci/run run in parallel
flock 9
export DEBIAN_FRONTEND=noninteractive
for service in firewalld kea-dhcp6-server radvd; do
	unit=/etc/systemd/system/$service.service
	if [[ " ${missing[*]} " == *" $service "* && ! -e $unit ]]; then
		echo "deps: masking $service.service, which would change this machine or its network"
		mkdir -p "${unit%/*}"
		ln -s /dev/null "$unit"
	fi
done
scripts/retry.sh apt-get -qq update
if [ "${missing[-1]}" = prometheus ]; then
	unset 'missing[-1]'
	work=$(mktemp -d) root=$PWD
	trap 'rm -rf "$work"' EXIT
	(cd "$work" && "$root/scripts/retry.sh" apt-get -qq -o APT::Sandbox::User=root download prometheus >/dev/null &&
		dpkg-deb -x prometheus_*.deb .)
	install -D "$work/usr/bin/promtool" "$promtool"
fi
[ ${#missing[@]} = 0 ] ||
	scripts/retry.sh apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" \
		>/dev/null </dev/null 9>&-
