#!/bin/bash
# setup.sh DIR [SUITE]: QEMU from Debian, and Debian's kernel unpacked (not installed) in DIR:
# that of this machine's release, or of another one, as trixie, from the same mirror.
set -euo pipefail
dir=$1 suite=${2:-}
cd "$(dirname "$0")/../.."
retry=$PWD/scripts/retry.sh

scripts/deps.sh qemu-system-x86 busybox-static cpio kmod xz-utils
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser
mkdir -p "$cache"
exec 9>"$cache/.apt.lock" # as in deps.sh
flock 9
[ ! -e "$dir/vmlinux" ] || exit 0
echo "vm: unpacking a kernel in $dir"
rm -rf "$dir" "$dir.tmp"
mkdir -p "$dir.tmp"
cd "$dir.tmp"
apt=(-o APT::Sandbox::User=root)
update() { "$retry" apt-get -qq "${apt[@]}" update; }
fail() { echo "vm: apt knows no $*" >&2; exit 1; }
# By the address of a package that no archive but the release's own has.
mirror() { apt-get download --print-uris base-files 2>/dev/null | sed -n "s|^'\(.*\)/pool/.*|\1|p"; }
if [ -n "$suite" ]; then # lists of their own: this machine is to install nothing of it
	uri=$(mirror || true)
	[ -n "$uri" ] || { update; uri=$(mirror || true); }
	[ -n "$uri" ] || fail "mirror of Debian"
	mkdir -p apt/{lists,cache/archives}/partial
	echo "deb [arch=amd64 target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
		"$uri $suite main" >apt/list
	apt+=(-o Dir::Etc::SourceList="$PWD/apt/list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Cache="$PWD/apt/cache"
		-o Dir::State::Lists="$PWD/apt/lists" -o APT::Update::Error-Mode=any)
fi
# linux-image-amd64 is the generic kernel; the one for clouds lacks 9p.
newest() { apt-cache "${apt[@]}" depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }'; }
package=$(newest || true)
[ -n "$package" ] || { update; package=$(newest || true); }
[ -n "$package" ] || fail "linux-image-amd64${suite:+ of $suite}"
version=${package#linux-image-}
apt-get -qq "${apt[@]}" download "$package" 2>/dev/null || { update; "$retry" apt-get -qq "${apt[@]}" download "$package"; }
dpkg -x ./"$package"_*.deb .
rm -r ./"$package"_*.deb apt 2>/dev/null || true
[ -d lib ] || mv usr/lib . # where /lib is a link
# What no test loads makes depmod slow and the cache big.
(cd "lib/modules/$version/kernel" && rm -rf sound fs/{xfs,btrfs,ocfs2,gfs2,ceph,nfs,nfsd,f2fs,jfs,reiserfs} \
	drivers/{gpu,media,staging,infiniband,scsi,usb,iio,hwmon,input} drivers/net/{ethernet,wireless,usb,can})
# xz is decompressed here, an emulated processor would need seconds for it at each boot; zstd is fast.
offset=$(LC_ALL=C grep -m 1 -aboP '\xfd7zXZ\x00' "boot/vmlinuz-$version" | awk -F: 'NR == 1 { print $1 }') || true
if [ -n "$offset" ]; then
	xz -dc --single-stream >vmlinux < <(tail -c "+$((offset + 1))" "boot/vmlinuz-$version")
else
	mv "boot/vmlinuz-$version" vmlinux
fi
/sbin/depmod -b . "$version"
echo "$version" >version
mv -T "$dir.tmp" "$dir"
