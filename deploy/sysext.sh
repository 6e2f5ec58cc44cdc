#!/bin/bash
# sysext.sh HAWSER ARCHITECTURE [FILE]: a system extension of systemd (hawser.raw) with the program HAWSER, for a
# machine whose /usr cannot be written, and a service that installs the plugins from it into /opt/cni/bin.
# ARCHITECTURE is systemd's name, x86-64 for amd64. It needs mksquashfs (Debian: squashfs-tools). The same program
# gives the same bytes; SOURCE_DATE_EPOCH is the time of all files.
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: sysext.sh HAWSER ARCHITECTURE [FILE]" >&2; exit 2; }
architectures="x86-64 arm64 arm loongarch64 ppc64-le s390x riscv64 mips64-le"
[[ " $architectures " == *" $2 "* ]] || { # systemd ignores such an extension, with status 0
	echo "sysext.sh: \"$2\" is no name that systemd has for an architecture: $architectures" >&2
	exit 2
}
file=${3:-hawser.raw}
name=${file##*/}
name=${name%.raw}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
units=$tree/usr/lib/systemd/system

install -D -m 0755 "$1" "$tree/usr/bin/hawser"
install -d "$units/multi-user.target.d" "$tree/usr/lib/extension-release.d"
# systemd does not read the service before it is told to, and Fedora CoreOS has nothing else that tells it.
printf 'ID=_any\nARCHITECTURE=%s\nEXTENSION_RELOAD_MANAGER=1\n' "$2" >"$tree/usr/lib/extension-release.d/extension-release.$name"
cat >"$units/hawser-install.service" <<'EOF'
[Unit]
Description=Installs the CNI plugins of Hawser
Before=containerd.service crio.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=HAWSER_TO=/opt/cni/bin
ExecStart=/usr/bin/hawser install

[Install]
WantedBy=multi-user.target
EOF
# An extension is merged when the links of multi-user.target.wants have been read.
printf '[Unit]\nUpholds=hawser-install.service\n' >"$units/multi-user.target.d/10-hawser-install.conf"
chmod -R u=rwX,go=rX "$tree"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
mksquashfs "$tree" "$file" -all-root -noappend -quiet -no-progress -comp xz
