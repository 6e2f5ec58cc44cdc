#!/bin/bash
# run.sh COMMAND [ARG...]: boots Debian's kernel in QEMU, runs COMMAND there as root
# on this machine's file system (nothing that it writes stays), exits with its status.
# VM_TIMEOUT (seconds, 3000), VM_CPUS (2), VM_MEM (MiB, 2048), VM_ACCEL (tcg,thread=multi), VM_DIR;
# VM_ARGS: more of QEMU; VM_APPEND: more parameters of the kernel;
# VM_SUITE: the release of Debian that has the kernel, if it is not this machine's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kernel=${VM_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/hawser-vm}/kernel${VM_SUITE:+-$VM_SUITE}
"$here/setup.sh" "$kernel" "${VM_SUITE:-}" >&2
version=$(<"$kernel/version")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

initrd=$work/initrd
mkdir -p "$initrd"/{bin,modules,proc,sys,dev,host,control,top} "$work/control"
cp /bin/busybox "$initrd/bin/"
install -m 755 "$here/init" "$initrd/init"
for module in virtio_pci 9pnet_virtio 9p overlay virtio_console; do
	/sbin/modprobe -d "$kernel" -S "$version" -D "$module"
done | awk '/^insmod/ && !seen[$2]++ { print $2 }' | while read -r file; do
	name=$(basename "$file" .xz)
	case $file in
	*.xz) xz -dc "$file" >"$initrd/modules/$name" ;;
	*) cp "$file" "$initrd/modules/" ;;
	esac
	echo "$name"
done >"$work/order"
mv "$work/order" "$initrd/modules/order"
(cd "$initrd" && find . | cpio -o -H newc --quiet) >"$work/initrd.cpio"

cp "$here/guest.sh" "$work/control/"
echo "$kernel/lib/modules/$version" >"$work/control/modules"
{ printf 'cd %q\n' "$PWD"; export -p | grep -vE '^declare -[a-z]*x (OLDPWD|PWD|SHLVL|_)='; printf '%q ' "$@"; } \
	>"$work/control/command.sh"

# Through cat: qemu opens /dev/stdout anew, which works for a pipe of its own. Foreground:
# in a process group of its own qemu would outlive whoever ends the group of make. Nehalem: to emulate what newer
# processors have (SMAP, five levels of page tables, the state of AVX) takes half as long again.
boot() {
	# shellcheck disable=SC2086 # words
	timeout --foreground -k 5 "${VM_TIMEOUT:-3000}" qemu-system-x86_64 -accel "${VM_ACCEL:-tcg,thread=multi}" -cpu Nehalem \
		-smp "${VM_CPUS:-2}" -m "${VM_MEM:-2048}" -M q35 -nodefaults -no-user-config -display none -no-reboot \
		-kernel "$kernel/vmlinux" -initrd "$work/initrd.cpio" \
		-append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check ${VM_APPEND:-}" \
		-chardev "file,id=console,path=$work/console" -serial chardev:console \
		-device virtio-serial-pci -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out,name=out \
		-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
		-virtfs "local,path=$work/control,mount_tag=control,security_model=none" \
		-netdev hubport,id=wire,hubid=0 -device virtio-net-pci,netdev=wire,mac=02:00:00:00:00:01 \
		-device virtio-rng-pci ${VM_ARGS:-} </dev/null | cat || echo "vm: qemu: exit $?" >&2
}
boot
# Rarely a kernel that patches itself trips over the emulation of the other processor, or has a wrong clock (guest.sh).
[ -f "$work/control/started" ] || { echo "vm: it did not start, once more" >&2; boot; }
[ -f "$work/control/rc" ] || { echo "vm: no result; its console:" >&2; tail -n 40 "$work/console" >&2; exit 125; }
exit "$(<"$work/control/rc")"
