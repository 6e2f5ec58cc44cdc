#!/bin/bash
# power.sh [CYCLES]: a node that loses its power again and again, 3 times or CYCLES, and comes up once more.
# POWER_PODS (200), POWER_SEED (any; it is printed).
#
# The virtual machine has a disk, with ext4 as Debian makes and mounts it, that holds /var/lib/cni: the leases, and
# tuning's records. test/power brings the same pods up in each boot, then detaches and attaches some without end.
# At a moment that the seed decides QEMU gets SIGKILL. What is in the guest's memory by then is lost: files that were
# not written back (the kernel does that after half a minute), and what the journal had not committed (5 seconds). What
# the guest wrote to the disk stays, in its order: this is no disk that loses what it has in a cache of its own.
#
# It proves that after each boot the same pods come up, in ranges that have just room for them, no two with one address,
# and those that ask for an address with that; that no file has anything but what an ADD writes, or nothing; and that
# nothing is left when all pods are detached at the end.
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

# boot CHURN: the node, until its spec ends; what it says is in $work/out.
boot() {
	export HAWSER_POWER_CHURN=$1
	# shellcheck disable=SC2016 # expanded in the machine
	scripts/vm/run.sh bash -c 'modprobe -a virtio_blk ext4 && mkdir /disk &&
		mount -t ext4 -o errors=remount-ro /dev/vda /disk && cd test/power &&
		exec "$1" -test.timeout 20m -ginkgo.no-color -ginkgo.label-filter power-loss -ginkgo.seed "$2"' \
		power "$work/power.test" $((seed + n)) >"$work/out" 2>&1
}
fail() { echo "== FAILED: power loss, seed $seed, boot $n"; cat "$work/out"; exit 1; }
found() { sed -n 's/^== found/  boot '"$n"' found/p' "$work/out"; }

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
	found
done
boot 0s || fail
found
echo "== power loss: all pods came up after each of $cycles, and nothing is left"
