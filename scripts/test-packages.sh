#!/bin/bash
# test-packages.sh [DEB [RPM]]: tests the Debian package on new Debian 12 and 13 systems, and the RPM in an empty root
# directory. Without arguments, it tests the packages that "make release" writes to dist/. Each package is installed
# once over the package of Hawser 0.1.0 and once without it. Its plugins attach and detach a container, and its removal
# (and purge) must leave nothing. The Debian systems are directories of 300 MB in the user's cache that become the root
# directory in namespaces. Needs root.
set -euo pipefail

fail() { echo "== FAILED: $system: $step: $*"; exit 1; }
# call VERB runs the bridge plugin of $root with ipMasq. It uses nftables because the Debian systems have no iptables.
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
# quietly COMMAND... runs a command and prints its output only if it fails.
quietly() { "$@" >"$state/log" 2>&1 || fail "$*: $(cat "$state/log")"; }

# "rpm NEW OLD" tests the RPM NEW, as an upgrade of OLD and without OLD, in namespaces.
if [ "${1:-}" = rpm ]; then
	new=$2 old=$3 step=start system="RPM root" root=/mnt state=/run/state
	for dir in /mnt /run /var/lib; do
		mount -t tmpfs tmpfs "$dir"
	done
	mkdir -p /run/netns "$state"
	touch /run/netns/one
	unshare --net=/run/netns/one true
	# Directories that the packages filesystem and systemd own.
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
		[ "$(rpm --root /mnt --dbpath /var/lib/rpm --query --all)" = "$(rpm --query --package "$new" 2>/dev/null)" ] ||
			fail "other packages are installed"
		quietly chroot /mnt /usr/bin/hawser --version
		[ -z "$(find /mnt -xtype l ! -path /mnt/usr/bin/hawser)" ] || fail "dangling links"
		[ "$step" = installation ] || { call CHECK; call DEL; }
		call ADD
		call CHECK
		call DEL
		quietly rpm --root /mnt --dbpath /var/lib/rpm --erase hawser-cni
		diff <(echo "$before") <(files) || fail "removal did not restore the root directory"
		echo "== $system: $step, removal: nothing is left"
	done
	exit
fi

# "inside NEW OLD" tests the Debian package NEW, as an upgrade of OLD and without OLD, in a Debian system.
if [ "${1:-}" = inside ]; then
	new=$2 old=$3 step=start root="" state=/tmp
	system=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)
	# All files except dpkg's own. dpkg removes an empty /opt, because /opt belongs to no package.
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
		diff <(echo "$before") <(files) || fail "removal did not restore the system"
		! dpkg-divert --list '*cni*' | grep . || fail "removal left a diversion"
		echo "== $system: $step, removal: nothing is left"
	done
	exit
fi

cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "test-packages: needs root" >&2; exit 1; }
new=$(readlink -e "${1:-$(ls dist/hawser-cni_*_amd64.deb)}")
newrpm=$(readlink -e "${2:-$(ls dist/hawser-cni-*.x86_64.rpm)}")
scripts/deps.sh debootstrap rpm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
old=$cache/hawser-cni_0.1.0_amd64.deb
oldrpm=$cache/hawser-cni-0.1.0.x86_64.rpm
if [ ! -e "$old" ] || [ ! -e "$oldrpm" ]; then
	commit=$(git log -1 --format=%H -S0.1.0-dev -- VERSION)^ # the parent of the commit that removed this version
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
