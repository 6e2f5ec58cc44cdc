#!/bin/bash
# test-packages.sh [DEB]: the Debian package, dist/hawser-cni_*_amd64.deb where "make release" has written it, on new
# Debian 12 and 13 systems: it upgrades the package of Hawser 0.1.0, is installed alone, works, and is removed and purged
# without a trace. Each system is a directory in the user's cache that becomes the root, in namespaces (needs root; 300 MB
# each).
set -euo pipefail

# inside runs in a system: NEW and OLD are packages.
if [ "${1:-}" = inside ]; then
	new=$2 old=$3 step=start
	system=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)
	fail() { echo "== FAILED: $system: $step: $*"; exit 1; }
	# Everything but what dpkg keeps of all packages. It removes /opt, which belongs to no package, when that is empty.
	files() {
		find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log -o \
			-path /var/cache \) -prune -o ! -path /opt -printf '%p %y %m %u %l\n' | sort
	}
	# call VERB: of bridge, with masquerade. The system has neither iproute2 nor iptables.
	call() {
		local prev=''
		[ "$1" = ADD ] || prev=", \"prevResult\": $(cat /tmp/added)"
		printf '{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "isGateway": true, "ipMasq": true,
			"ipMasqBackend": "nftables", "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}%s}' "$prev" |
			CNI_COMMAND=$1 CNI_CONTAINERID=one CNI_NETNS=/run/netns/one CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin \
				/opt/cni/bin/bridge >/tmp/answer 2>/tmp/said || fail "$1: $(cat /tmp/answer /tmp/said)"
		[ "$1" != ADD ] || mv /tmp/answer /tmp/added
	}
	mkdir -p /run/netns
	touch /run/netns/one
	unshare --net=/run/netns/one true
	before=$(files)
	for step in "upgrade from 0.1.0" "installation"; do
		if [ "$step" != installation ]; then
			dpkg -i "$old" >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
			[ ! -L /opt/cni/bin/bridge ] || fail "0.1.0 has links"
			call ADD
		fi
		dpkg -i "$new" >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
		[ "$(readlink /opt/cni/bin/bridge)" = hawser ] || fail "bridge is not a link to hawser"
		[ -z "$(dpkg -V hawser-cni)" ] || fail "dpkg -V: $(dpkg -V hawser-cni)"
		[ -z "$(find /opt/cni /usr/lib/systemd/system -xtype l)" ] || fail "dangling links"
		[ "$step" = installation ] || { call CHECK; call DEL; }
		call ADD
		call CHECK
		call DEL
		dpkg --remove hawser-cni >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
		dpkg --purge hawser-cni >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
		rm -rf /var/lib/cni
		diff <(echo "$before") <(files) || fail "the system is not as it was"
		! dpkg-divert --list '*cni*' | grep . || fail "a diversion is left"
		echo "== $system: $step, removal: nothing is left"
	done
	exit
fi

cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "test-packages: only root makes systems" >&2; exit 1; }
new=$(readlink -e "${1:-$(ls dist/hawser-cni_*_amd64.deb)}")
scripts/deps.sh debootstrap
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
old=$cache/hawser-cni_0.1.0_amd64.deb
if [ ! -e "$old" ]; then
	commit=$(git log -1 --format=%H -S0.1.0-dev -- VERSION)^ # the one that removed it
	mkdir "$work/tree"
	git archive "$commit" | tar -x -C "$work/tree"
	ARCHS=amd64 VERSION=0.1.0 SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit") \
		scripts/retry.sh "$work/tree/scripts/release.sh" >&2
	mv "$work"/tree/dist/*.deb "$old"
fi
for suite in bookworm trixie; do
	root=$cache/debian-$suite
	if [ ! -d "$root" ]; then
		rm -rf "$root.tmp"
		scripts/retry.sh debootstrap --variant=minbase "$suite" "$root.tmp" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
		mv "$root.tmp" "$root"
	fi
	# shellcheck disable=SC2016 # expanded by the inner bash
	unshare --mount --pid --net --ipc --uts --fork --kill-child --propagation private bash -euc '
		mount -t tmpfs tmpfs /mnt
		mkdir /mnt/upper /mnt/work /mnt/root
		mount -t overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
		cp "$2" "$3" "$4" /mnt/root/tmp/
		cd /mnt/root
		mount -t proc proc proc
		mount -t sysfs sysfs sys
		mount --rbind /dev dev
		mount -t tmpfs tmpfs run
		exec chroot . bash /tmp/test-packages.sh inside "/tmp/${2##*/}" "/tmp/${3##*/}"' \
		system "$root" "$new" "$old" "$PWD/scripts/test-packages.sh"
done
