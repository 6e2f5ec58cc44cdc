#!/bin/bash
# test-packages.sh [DEB [RPM]]: tests the packages, by default dist/hawser-cni_*_amd64.deb and dist/hawser-cni-*.x86_64.rpm,
# which "make release" writes: the Debian package on new Debian 12 and 13 systems, and the RPM in an empty root directory.
# Each upgrades the package of Hawser 0.1.0, is installed without it, attaches a container, and is removed (and purged)
# without a trace. The systems are directories in the user's cache that become the root, in namespaces (needs root; 300 MB
# each).
set -euo pipefail

fail() { echo "== FAILED: $system: $step: $*"; exit 1; }
# call VERB calls the bridge of $root, with masquerade. The Debian systems have neither iproute2 nor iptables.
call() {
	local prev=''
	[ "$1" = ADD ] || prev=", \"prevResult\": $(cat "$state/added")"
	printf '{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "isGateway": true, "ipMasq": true,
		"ipMasqBackend": "nftables", "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}%s}' "$prev" |
		CNI_COMMAND=$1 CNI_CONTAINERID=one CNI_NETNS=/run/netns/one CNI_IFNAME=eth0 CNI_PATH=$root/opt/cni/bin \
			"$root/opt/cni/bin/bridge" >"$state/answer" 2>"$state/said" ||
		fail "$1: $(cat "$state/answer" "$state/said")"
	[ "$1" != ADD ] || mv "$state/answer" "$state/added"
}
# quietly runs a command whose output matters only if it fails.
quietly() { "$@" >"$state/log" 2>&1 || fail "$*: $(cat "$state/log")"; }

# rpm runs in namespaces, with NEW and OLD: packages.
if [ "${1:-}" = rpm ]; then
	new=$2 old=$3 step=start system="RPM root" root=/mnt state=/run/state
	for dir in /mnt /run /var/lib; do
		mount -t tmpfs tmpfs "$dir"
	done
	mkdir -p /run/netns "$state"
	touch /run/netns/one
	unshare --net=/run/netns/one true
	# The directories of the packages filesystem and systemd.
	mkdir -p /mnt/opt /mnt/usr/bin /mnt/usr/lib/systemd/system /mnt/usr/share/{doc,licenses,man/man8} /mnt/var/tmp
	quietly rpm --root /mnt --dbpath /var/lib/rpm --initdb
	files() { find /mnt -path /mnt/var/lib/rpm -prune -o -printf '%p %y %m %u %l\n' | sort; }
	before=$(files)
	for step in "upgrade from 0.1.0" "installation"; do
		if [ "$step" != installation ]; then
			quietly rpm --root /mnt --dbpath /var/lib/rpm --install "$old"
			[ ! -L /mnt/opt/cni/bin/bridge ] || fail "0.1.0 has links"
			call ADD
		fi
		quietly rpm --root /mnt --dbpath /var/lib/rpm --upgrade "$new"
		[ "$(readlink /mnt/opt/cni/bin/bridge)" = hawser ] || fail "bridge is not a link to hawser"
		quietly rpm --root /mnt --dbpath /var/lib/rpm --verify hawser-cni
		[ "$(rpm --root /mnt --dbpath /var/lib/rpm --query --all)" = "$(rpm --query --package "$new" 2>/dev/null)" ] || fail "rpm has other packages"
		quietly chroot /mnt /usr/bin/hawser --version
		[ -z "$(find /mnt -xtype l ! -path /mnt/usr/bin/hawser)" ] || fail "dangling links"
		[ "$step" = installation ] || { call CHECK; call DEL; }
		call ADD
		call CHECK
		call DEL
		quietly rpm --root /mnt --dbpath /var/lib/rpm --erase hawser-cni
		diff <(echo "$before") <(files) || fail "the root is not as it was"
		echo "== $system: $step, removal: nothing is left"
	done
	exit
fi

# inside runs in a system: NEW and OLD are packages.
if [ "${1:-}" = inside ]; then
	new=$2 old=$3 step=start root="" state=/tmp
	system=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)
	# All files except dpkg's own. It removes /opt, which belongs to no package, when that is empty.
	files() {
		find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log -o \
			-path /var/cache \) -prune -o ! -path /opt -printf '%p %y %m %u %l\n' | sort
	}
	mkdir -p /run/netns
	touch /run/netns/one
	unshare --net=/run/netns/one true
	before=$(files)
	for step in "upgrade from 0.1.0" "installation"; do
		if [ "$step" != installation ]; then
			quietly dpkg -i "$old"
			[ ! -L /opt/cni/bin/bridge ] || fail "0.1.0 has links"
			call ADD
		fi
		quietly dpkg -i "$new"
		[ "$(readlink /opt/cni/bin/bridge)" = hawser ] || fail "bridge is not a link to hawser"
		[ -z "$(dpkg -V hawser-cni)" ] || fail "dpkg -V: $(dpkg -V hawser-cni)"
		quietly hawser --version
		[ -z "$(find /opt/cni /usr/lib/systemd/system -xtype l)" ] || fail "dangling links"
		[ "$step" = installation ] || { call CHECK; call DEL; }
		call ADD
		call CHECK
		call DEL
		quietly dpkg --remove hawser-cni
		quietly dpkg --purge hawser-cni
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
newrpm=$(readlink -e "${2:-$(ls dist/hawser-cni-*.x86_64.rpm)}")
scripts/deps.sh debootstrap rpm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
old=$cache/hawser-cni_0.1.0_amd64.deb
oldrpm=$cache/hawser-cni-0.1.0.x86_64.rpm
if [ ! -e "$old" ] || [ ! -e "$oldrpm" ]; then
	commit=$(git log -1 --format=%H -S0.1.0-dev -- VERSION)^ # the one that removed it
	mkdir "$work/tree"
	git archive "$commit" | tar -x -C "$work/tree"
	ARCHS=amd64 VERSION=0.1.0 SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit") \
		scripts/retry.sh "$work/tree/scripts/release.sh" >&2
	mv "$work"/tree/dist/*.deb "$old"
	mv "$work"/tree/dist/*.rpm "$oldrpm"
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
unshare --mount --mount-proc --pid --net --ipc --uts --fork --kill-child --propagation private \
	bash "$PWD/scripts/test-packages.sh" rpm "$newrpm" "$oldrpm"
