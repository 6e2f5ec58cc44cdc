#!/bin/bash
# setup.sh DIR [SUITE]: installs QEMU, and unpacks Debian's kernel into DIR without installing it. SUITE is another
# Debian release on the same mirror, for example trixie, instead of this machine's.
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
echo "vm: unpacking a kernel into $dir"
rm -rf "$dir" "$dir.tmp"
mkdir -p "$dir.tmp"
cd "$dir.tmp"
apt=(-o APT::Sandbox::User=root)
update() { "$retry" apt-get -qq "${apt[@]}" update; }
fail() { echo "vm: apt does not find $*" >&2; exit 1; }
# mirror_url prints the mirror's URL. base-files is only in the release's main archive.
mirror_url() { apt-get download --print-uris base-files 2>/dev/null | sed -n "s|^'\(.*\)/pool/.*|\1|p"; }
if [ -n "$suite" ]; then # separate lists, so that this machine installs nothing of the other release
	uri=$(mirror_url || true)
	[ -n "$uri" ] || { update; uri=$(mirror_url || true); }
	[ -n "$uri" ] || fail "a Debian mirror"
	mkdir -p apt/{lists,cache/archives}/partial
	echo "deb [arch=amd64 target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
		"$uri $suite main" >apt/list
	apt+=(-o Dir::Etc::SourceList="$PWD/apt/list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Cache="$PWD/apt/cache"
		-o Dir::State::Lists="$PWD/apt/lists" -o APT::Update::Error-Mode=any)
fi
# kernel_package prints the newest package of the generic kernel. The cloud kernel lacks 9p.
kernel_package() {
	apt-cache "${apt[@]}" depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }'
}
package=$(kernel_package || true)
[ -n "$package" ] || { update; package=$(kernel_package || true); }
[ -n "$package" ] || fail "linux-image-amd64${suite:+ of $suite}"
version=${package#linux-image-}
apt-get -qq "${apt[@]}" download "$package" 2>/dev/null || { update; "$retry" apt-get -qq "${apt[@]}" download "$package"; }
dpkg -x ./"$package"_*.deb .
rm -r ./"$package"_*.deb apt 2>/dev/null || true
[ -d lib ] || mv usr/lib . # packages of newer releases use /usr/lib
# Remove modules that no test loads, which make depmod slow and the cache large.
(cd "lib/modules/$version/kernel" && rm -rf sound fs/{xfs,btrfs,ocfs2,gfs2,ceph,nfs,nfsd,f2fs,jfs,reiserfs} \
	drivers/{gpu,media,staging,infiniband,scsi,usb,iio,hwmon,input} drivers/net/{ethernet,wireless,usb,can})
# Decompress an xz kernel once, because the emulated processor would need seconds at each boot. zstd is fast.
offset=$(LC_ALL=C grep -m 1 -aboP '\xfd7zXZ\x00' "boot/vmlinuz-$version" | awk -F: 'NR == 1 { print $1 }') || true
if [ -n "$offset" ]; then
	xz -dc --single-stream >vmlinux < <(tail -c "+$((offset + 1))" "boot/vmlinuz-$version")
else
	mv "boot/vmlinuz-$version" vmlinux
fi
/sbin/depmod -b . "$version"
echo "$version" >version
mv -T "$dir.tmp" "$dir"
