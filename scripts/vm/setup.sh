#!/bin/bash
# setup.sh DIR: QEMU from Debian, and Debian's kernel unpacked (not installed) in DIR.
set -euo pipefail
dir=$1
cd "$(dirname "$0")/../.."
retry=$PWD/scripts/retry.sh

scripts/deps.sh qemu-system-x86 busybox-static cpio kmod xz-utils
[ ! -e "$dir/vmlinux" ] || exit 0
echo "vm: unpacking a kernel in $dir"
rm -rf "$dir" "$dir.tmp"
mkdir -p "$dir.tmp"
cd "$dir.tmp"
# linux-image-amd64 is the generic kernel; the one for clouds lacks 9p.
package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
[ -n "$package" ] || { "$retry" apt-get -qq update
	package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }'); }
version=${package#linux-image-}
apt-get -qq download "$package" 2>/dev/null || { "$retry" apt-get -qq update
	"$retry" apt-get -qq download "$package"; }
dpkg -x ./"$package"_*.deb .
rm ./"$package"_*.deb
# What no test loads makes depmod slow and the cache big.
(cd "lib/modules/$version/kernel" && rm -rf sound fs/{xfs,btrfs,ocfs2,gfs2,ceph,nfs,nfsd,f2fs,jfs,reiserfs} \
	drivers/{gpu,media,staging,infiniband,scsi,usb,iio,hwmon,input} drivers/net/{ethernet,wireless,usb,can})
# Decompressed here, an emulated processor would need seconds for it at each boot.
offset=$(LC_ALL=C grep -m 1 -aboP '\xfd7zXZ\x00' "boot/vmlinuz-$version" | awk -F: 'NR == 1 { print $1 }')
xz -dc --single-stream >vmlinux < <(tail -c "+$((offset + 1))" "boot/vmlinuz-$version")
/sbin/depmod -b . "$version"
echo "$version" >version
mv -T "$dir.tmp" "$dir"
