#!/bin/bash
# sysext.sh HAWSER ARCHITECTURE [FILE]: builds a systemd system extension (FILE, default hawser.raw) for machines whose
# /usr is read-only. It contains the program HAWSER and a service that installs the plugins into /opt/cni/bin.
# ARCHITECTURE is systemd's name, such as x86-64 for amd64. The script needs mksquashfs (Debian: squashfs-tools).
# The same program produces the same bytes; SOURCE_DATE_EPOCH sets the time of all files.
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: sysext.sh HAWSER ARCHITECTURE [FILE]" >&2; exit 2; }
architectures="x86-64 arm64 arm loongarch64 ppc64-le s390x riscv64 mips64-le"
[[ " $architectures " == *" $2 "* ]] || { # systemd-sysext would ignore the extension and exit with status 0
	echo "sysext.sh: \"$2\" is not an architecture name of systemd; use one of: $architectures" >&2
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
# EXTENSION_RELOAD_MANAGER makes systemd load the service. Nothing else on Fedora CoreOS does.
printf 'ID=_any\nARCHITECTURE=%s\nEXTENSION_RELOAD_MANAGER=1\n' "$2" >"$tree/usr/lib/extension-release.d/extension-release.$name"
cat >"$units/hawser-install.service" <<'EOF'
[Unit]
Description=Install Hawser CNI plugins
Before=containerd.service crio.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=HAWSER_TO=/opt/cni/bin
ExecStart=/usr/bin/hawser install

[Install]
WantedBy=multi-user.target
EOF
# A link in multi-user.target.wants would have no effect: systemd reads these links before the extension is merged.
printf '[Unit]\nUpholds=hawser-install.service\n' >"$units/multi-user.target.d/10-hawser-install.conf"
chmod -R u=rwX,go=rX "$tree"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
mksquashfs "$tree" "$file" -all-root -noappend -quiet -no-progress -comp xz
