#!/bin/bash
# hardware.sh BIN: the specs of host-device that need hardware, and the namespace to which the
# kernel brings it when a container's namespace ends: the machine's own, where nstest has none.
set -euo pipefail
bin=$1
modprobe virtio_net
device=eth0 mac=$(</sys/class/net/eth0/address)
ip link set $device up mtu 1400 alias "mine"
fail() { echo "== FAILED: host-device: $*"; ip -d link; exit 1; }

# call VERB CONTAINER NETNS KEYS
call() {
	printf '{"cniVersion": "1.1.0", "name": "net", "type": "host-device", %s}' "$4" |
		CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=$3 CNI_IFNAME=net1 CNI_PATH=$bin "$bin/host-device" >/tmp/answer ||
		fail "$1: $(</tmp/answer)"
}

# lost: a container takes the device, renames it, and ends.
lost() {
	ip netns add one
	call ADD one /run/netns/one "\"device\": \"$device\""
	ip -n one link set net1 down
	ip -n one link set net1 name moved mtu 1300
	ip netns del one
	until ip link show moved &>/dev/null; do sleep 0.1; done # the kernel brings it
}

# isHome WHEN
isHome() {
	local now
	now=$(ip -o link show $device) || fail "$1: it is not there"
	[[ $now == *",UP"*"mtu 1400"*"$mac"*"alias mine"* ]] || fail "$1: it is not as it was: $now"
}

lost
call DEL one "" '"device": "eth0"'
isHome "DEL after the namespace ended"
lost
call GC "" "" '"device": "eth0", "cni.dev/valid-attachments": []'
isHome "GC after the namespace ended"
for key in '"device": "eth0"' "\"hwaddr\": \"$mac\""; do
	lost
	ip netns add two
	call ADD two /run/netns/two "$key"
	call DEL one "" "$key"
	ip -n two link show net1 >/dev/null || fail "the DEL of who lost it takes it from who has it"
	call DEL two /run/netns/two "$key"
	ip netns del two
	isHome "the next ADD, by $key"
done
lost
ip link add $device type bridge
call DEL one "" '"device": "eth0"'
[[ $(ip -o link show moved) == *"alias eth0"* ]] || fail "its name is taken, and its alias is not its name"
ip link del $device type bridge
call DEL one "" '"device": "eth0"'
isHome "DEL again when its name is free"
echo "== host-device brings hardware home"
