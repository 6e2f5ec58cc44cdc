#!/bin/bash
# reboot.sh: reboots a machine twice, with the same disk and without DEL, while a pod borrows eth0 with its network
# (host-device with useInterfaceNetwork). In the second boot, the network manager configures eth0 late; in the third
# boot, before the runtime's DEL. Each time, eth0 must get its own network again, the next pod must be able to borrow
# it, and no lease may be left.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "${1:-}" != inside ]; then
	scripts/deps.sh e2fsprogs
	scripts/build.sh
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	truncate -s 64M "$work/disk"
	mkfs.ext4 -q "$work/disk"
	export VM_ARGS="-drive file=$work/disk,format=raw,if=virtio,cache=writeback"
	for boot in first late early; do
		scripts/vm/run.sh scripts/vm/reboot.sh inside $boot "$PWD/bin" || { echo "== FAILED: reboot, boot $boot"; exit 1; }
	done
	echo "== reboot: after each boot, eth0 has its network and can be borrowed again"
	exit
fi

boot=$2 bin=$3
modprobe -a virtio_net virtio_blk ext4
mkdir /disk
mount -t ext4 /dev/vda /disk

fail() { echo "== $boot: $*"; ip addr; ip route show table all; ip rule; exit 1; }

# configure acts as the machine's network manager. One ip process runs all steps, so that they follow immediately.
configure() {
	ip -batch - <<-END
		link set eth0 up
		addr add 192.0.2.10/24 dev eth0
		addr add 2001:db8::10/64 dev eth0 nodad
		route add default via 192.0.2.1 dev eth0
		route add 198.51.100.0/24 via 192.0.2.254 dev eth0 table 101
		route add default via 2001:db8::1 dev eth0
		rule add from 192.0.2.10 lookup 101
	END
}

# print_network NETNS DEVICE prints the addresses, routes and rules without the device's name. It omits states and
# routes that the kernel adds or removes at any time while the device is up.
print_network() {
	local at=()
	[ -z "$1" ] || at=(-n "$1")
	{
		ip "${at[@]}" -o addr show dev "$2" scope global | awk '{ print $3, $4 }'
		ip "${at[@]}" route show table all dev "$2" type unicast
		ip "${at[@]}" -6 route show default dev "$2"
		ip "${at[@]}" rule | grep 'lookup 101'
	} | sed 's/ linkdown//; s/ *$//' | grep -v '^fe80::/64 ' | sort
}

# call VERB CONTAINER [CODE] runs host-device, with an additional address from host-local, whose leases are on the disk.
# With CODE, host-device must fail with it.
call() {
	local keys='"device": "eth0", "useInterfaceNetwork": true, "ipam": {"type": "host-local", "dataDir": "/disk/leases",
		"ranges": [[{"subnet": "10.99.0.0/24"}]]}' rc=0
	[ "$1" != GC ] || keys+=', "cni.dev/valid-attachments": []'
	[[ $1 == ADD || $1 == GC ]] || keys+=", \"prevResult\": $(<"/disk/$2")"
	local netns=/run/netns/$2
	[ -e "$netns" ] || netns=
	printf '{"cniVersion": "1.1.0", "name": "net", "type": "host-device", %s}' "$keys" |
		CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=$netns CNI_IFNAME=net1 CNI_PATH=$bin "$bin/host-device" >/tmp/answer ||
		rc=$(jq .code /tmp/answer)
	[ "$rc" = "${3:-0}" ] || fail "$1 of $2: code ${3:-0} expected: $(</tmp/answer)"
	[ "$1" != ADD ] || [ "$rc" != 0 ] || cp /tmp/answer "/disk/$2"
}

# borrow POD lends eth0 to a pod, which must get its whole network.
borrow() {
	ip netns add "$1"
	call ADD "$1"
	call CHECK "$1"
	! ip link show eth0 &>/dev/null || fail "the host still has eth0"
	print_network "$1" net1 | grep -v '10\.99\.' >/tmp/inside || true
	diff /disk/network /tmp/inside || fail "the network of pod $1 differs from that of eth0 on the host"
}

# check_restored WHEN checks that the host has eth0 with its network.
check_restored() {
	print_network "" eth0 >/tmp/now
	diff /disk/network /tmp/now || fail "$1: the network of eth0 was not restored"
	[[ $(ip -o link show eth0) == *,UP* ]] || fail "$1: eth0 is down"
}

leases() { find /disk/leases -name '10.99.*' -printf '%f\n' | wc -l; }

case $boot in
first)
	configure
	print_network "" eth0 >/disk/network
	borrow one
	;;
late)
	call DEL one
	[ "$(leases)" = 0 ] || fail "DEL left the lease of the pod of the first boot"
	[ -z "$(ip -o addr show dev eth0 scope global)" ] || fail "DEL configured eth0 without a record"
	ip netns add early
	call ADD early 11
	ip netns del early
	{ sleep 2; configure; } &
	borrow two
	wait
	call DEL two
	ip netns del two
	check_restored "DEL"
	borrow three
	;;
early)
	configure
	check_restored "boot"
	borrow four
	call DEL three # a pod of the previous boot
	call CHECK four
	call DEL four
	ip netns del four
	check_restored "DEL"
	call GC ""
	check_restored "GC"
	[ "$(leases)" = 0 ] || fail "a lease is left"
	[ -z "$(find /run/hawser -name '*.json')" ] || fail "a record is left: $(find /run/hawser -name '*.json')"
	;;
esac
sync
