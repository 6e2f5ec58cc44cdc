#!/bin/bash
# power.sh [CYCLES]: simulates CYCLES (3) losses of power of a node, and one more boot.
#
# The virtual machine has an ext4 disk, created and mounted as on Debian, with /var/lib/cni: leases and tuning records.
# In each boot, test/power attaches the same pods, then detaches and attaches some of them until QEMU gets SIGKILL at a
# random time. The guest's memory is then lost: files that were not written back (the kernel writes back after 30
# seconds) and metadata that the journal had not committed (5 seconds). The disk keeps all writes of the guest in order;
# a disk that loses its own write cache is not simulated.
#
# After each boot, the same pods must come up. Their ranges are just large enough, no two pods may get the same address,
# and pods that request an address must get it. Each file must be empty or have content that an ADD writes. When all
# pods are detached at the end, nothing may be left.
#
# Environment:
#   POWER_PODS  number of pods (200)
#   POWER_SEED  seed of the random choices (random; the script prints it)
set -euo pipefail
cd "$(dirname "$0")/../.."
cycles=${1:-3}
seed=${POWER_SEED:-$((SRANDOM % 30000))}
RANDOM=$seed
scripts/deps.sh e2fsprogs
scripts/build.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd test && go test -c -o "$work/power.test" ./power)
truncate -s 256M "$work/disk"
mkfs.ext4 -q "$work/disk"
export VM_ARGS="-drive file=$work/disk,format=raw,if=virtio,cache=writeback -pidfile $work/pid"
export HAWSER_BIN=$PWD/bin/one NSTEST_REQUIRE=all NSTEST_SLOWNESS=10
export HAWSER_POWER=/disk HAWSER_POWER_PODS=${POWER_PODS:-200}

# boot CHURN runs the node until its spec ends, with CHURN as HAWSER_POWER_CHURN. Its output goes to $work/out.
boot() {
	export HAWSER_POWER_CHURN=$1
	# shellcheck disable=SC2016 # expanded by the machine's bash
	scripts/vm/run.sh bash -c 'modprobe -a virtio_blk ext4 && mkdir /disk &&
		mount -t ext4 -o errors=remount-ro /dev/vda /disk && cd test/power &&
		exec "$1" -test.timeout 20m -ginkgo.no-color -ginkgo.label-filter power-loss -ginkgo.seed "$2"' \
		power "$work/power.test" $((seed + n)) >"$work/out" 2>&1
}
fail() { echo "== FAILED: power loss, seed $seed, boot $n"; cat "$work/out"; exit 1; }
# print_found prints what the spec found on the disk.
print_found() { sed -n 's/^== found/  boot '"$n"' found/p' "$work/out"; }

echo "== power loss: $cycles cycles of $HAWSER_POWER_PODS pods, seed $seed"
for ((n = 1; n <= cycles; n++)); do
	after=$((RANDOM % (HAWSER_POWER_PODS * 100))) # ms
	: >"$work/out"
	boot 1h &
	until grep -q '^== all are up' "$work/out"; do
		kill -0 $! 2>/dev/null || fail
		sleep 0.1
	done
	sleep "$((after / 1000)).$(printf %03d $((after % 1000)))"
	kill -0 $! 2>/dev/null || fail
	kill -9 "$(<"$work/pid")"
	wait $! || true
	print_found
done
boot 0s || fail
print_found
echo "== power loss: all pods came up after each loss ($cycles), and nothing is left"
