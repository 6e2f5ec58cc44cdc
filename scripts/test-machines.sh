#!/bin/bash
# test-machines.sh [DIR...]: runs test.sh with the same arguments on three new Debian systems that are set up
# differently, because no result may depend on a machine's packages, accounts or settings. Each system is a directory of
# 1 GB in the user's cache that becomes the root directory. Needs root. Without DIR, it takes hours.
set -euo pipefail
cd "$(dirname "$0")/.."
machines=${XDG_CACHE_HOME:-$HOME/.cache}/hawser/machines
caches=("$(go env GOROOT)" "$(go env GOMODCACHE)" "$(go env GOCACHE)" "${machines%/*}")
export DEBIAN_FRONTEND=noninteractive PATH="${caches[0]}/bin:$PATH" GOMODCACHE="${caches[1]}" GOCACHE="${caches[2]}"

# run_in DIR COMMAND... runs a command with DIR as root directory, in its own namespaces, with this machine's Go and
# caches. The command cannot reach services of this machine through its files.
run_in() {
	# shellcheck disable=SC2016 # expanded by the inner bash
	unshare --mount --pid --ipc --uts --fork --kill-child --propagation private bash -euc '
		mount --bind "$1" "$1"
		cd "$1"
		mount -t proc proc proc
		mount --bind -o ro proc/sys proc/sys
		mount -t sysfs sysfs sys
		mount --rbind /dev dev
		for cache in "${@:2:4}"; do mkdir -p ".$cache"; mount --bind "$cache" ".$cache"; done
		cp /etc/resolv.conf etc/
		pivot_root . mnt # with chroot, the kernel would report paths as this machine sees them
		umount --lazy /mnt
		exec "${@:6}"' run_in "$1" "${caches[@]}" "${@:2}"
}

# copy_tree DIR copies this tree, including uncommitted files, into a system.
copy_tree() {
	rm -rf "$1/src"
	mkdir "$1/src"
	git ls-files -zco --exclude-standard | tar --null --ignore-failed-read -cT - | tar -x -C "$1/src"
}

# create NAME SUITE SCRIPT installs a system and runs SCRIPT in it, unless the system exists. It then updates the
# system's copy of this tree.
create() {
	local dir=$machines/$1
	if [ ! -d "$dir" ]; then
		echo "test-machines: installing $1 in $dir"
		rm -rf "$dir.tmp"
		mkdir -p "$machines"
		scripts/retry.sh debootstrap --variant=minbase --include=ca-certificates,git,make "$2" "$dir.tmp" >"$dir.log" 2>&1
		printf '#!/bin/sh\nexit 101\n' >"$dir.tmp/usr/sbin/policy-rc.d" # prevents services from starting
		chmod 755 "$dir.tmp/usr/sbin/policy-rc.d"
		copy_tree "$dir.tmp"
		run_in "$dir.tmp" bash -euc "$3" >>"$dir.log" 2>&1
		mv "$dir.tmp" "$dir"
	fi
	copy_tree "$dir"
}

[ "$(id -u)" = 0 ] || { echo "test-machines: needs root" >&2; exit 1; }
scripts/deps.sh debootstrap
packages='apt-get -qq update; apt-get -qq install -y --no-install-recommends'
create daemons bookworm "$packages kea-dhcp4-server kea-ctrl-agent openssh-server chrony"
# shellcheck disable=SC2016 # expanded by the system's bash
create occupied bookworm "$packages"' locales systemd-sysv libnss-systemd iptables; /src/scripts/deps.sh
	echo "de_DE.UTF-8 UTF-8" >>/etc/locale.gen; locale-gen
	for program in iptables ip6tables; do update-alternatives --set $program /usr/sbin/$program-legacy; done
	for id in {1..1119} 4007 4008 {4107..4110}; do
		getent group $id || echo "x$id:x:$id:" >>/etc/group
		getent passwd $id || echo "x$id:x:$id:$id::/:/usr/sbin/nologin" >>/etc/passwd
	done
	mkdir -p /etc/iproute2 /etc/cni/net.d /etc/cni/tuning /var/lib/cni/networks/mine
	for file in rt_tables group rt_scopes rt_realms; do
		for id in {1..252}; do echo "$id my$id"; done >>/etc/iproute2/$file
	done
	for port in {1..1100} {8000..8500} 30000; do echo "my$port $port/tcp"; echo "my$port $port/udp"; done >>/etc/services
	echo "^none$" >/etc/cni/tuning/allowlist.conf; echo "{}" >/etc/cni/net.d/10-mine.conflist
	printf "dead\r\neth0" >/var/lib/cni/networks/mine/10.1.0.2'
create newer trixie :

failed=0
for name in daemons occupied newer; do
	environment=(NSTEST_SKIPLOG= HAWSER_BIN=) umask=022
	if [ $name = occupied ]; then
		mkdir -p "$machines/$name/var/tmp/of.user"
		environment+=(LC_ALL=de_DE.UTF-8 TZ=Asia/Kolkata TMPDIR=/var/tmp/of.user CNI_ARGS=A=b HAWSER_LOG=x) umask=077
	fi
	echo "=== machine $name"
	run_in "$machines/$name" env "${environment[@]}" \
		bash -euc "umask $umask"'; cd /src; exec scripts/test.sh "$@"' test "$@" || failed=1
done
exit $failed
