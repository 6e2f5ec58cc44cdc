#!/bin/bash
# run.sh COMMAND [ARG...]: boots Debian's kernel in QEMU, runs COMMAND there as root, and exits with its status, or with
# 125 if the machine did not report one. COMMAND sees this machine's files; its changes are discarded.
#
# Environment:
#   VM_SUITE    Debian release of the kernel, for example trixie (this machine's)
#   VM_TIMEOUT  time limit in seconds (3000)
#   VM_CPUS     number of processors (2)
#   VM_MEM      memory in MiB (2048)
#   VM_ACCEL    QEMU accelerator (tcg,thread=multi)
#   VM_ARGS     additional arguments of QEMU
#   VM_APPEND   additional kernel parameters
#   VM_DIR      directory of the unpacked kernels (~/.cache/hawser-vm)
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

# cat: QEMU reopens /dev/stdout, which works for a pipe. --foreground: in its own process group, QEMU would survive a
# signal to make's group. Nehalem: emulating features of newer processors (SMAP, five-level page tables, AVX state)
# takes 50 % more time.
boot() {
	# shellcheck disable=SC2086 # a list of words
	timeout --foreground -k 5 "${VM_TIMEOUT:-3000}" qemu-system-x86_64 -accel "${VM_ACCEL:-tcg,thread=multi}" -cpu Nehalem \
		-smp "${VM_CPUS:-2}" -m "${VM_MEM:-2048}" -M q35 -nodefaults -no-user-config -display none -no-reboot \
		-kernel "$kernel/vmlinux" -initrd "$work/initrd.cpio" \
		-append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check ${VM_APPEND:-}" \
		-chardev "file,id=console,path=$work/console" -serial chardev:console \
		-device virtio-serial-pci -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out,name=out \
		-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
		-virtfs "local,path=$work/control,mount_tag=control,security_model=none" \
		-netdev hubport,id=wire,hubid=0 -device virtio-net-pci,netdev=wire,mac=02:00:00:00:00:01 \
		-device virtio-rng-pci ${VM_ARGS:-} </dev/null | cat || echo "vm: QEMU failed with status $?" >&2
}
boot
# In rare cases the kernel crashes under emulation while it patches its code, or its clock is wrong (guest.sh).
[ -f "$work/control/started" ] || { echo "vm: the virtual machine did not start, trying again" >&2; boot; }
[ -f "$work/control/rc" ] || { echo "vm: no exit status; console:" >&2; tail -n 40 "$work/console" >&2; exit 125; }
exit "$(<"$work/control/rc")"
