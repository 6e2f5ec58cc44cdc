#!/bin/bash
# hardware.sh BIN: tests host-device and tuning with a physical network device, in the virtual machine. Only physical
# devices have rings. When a container's namespace ends, the kernel moves them to the initial network namespace, which
# specs, in their own namespaces, cannot observe.
set -euo pipefail
bin=$1
modprobe virtio_net
device=eth0 mac=$(</sys/class/net/eth0/address)
ip link set $device up mtu 1400 alias "mine"
fail() { echo "== FAILED: host-device: $*"; ip -d link; exit 1; }

# call VERB CONTAINER NETNS KEYS runs host-device.
call() {
	printf '{"cniVersion": "1.1.0", "name": "net", "type": "host-device", %s}' "$4" |
		CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=$3 CNI_IFNAME=net1 CNI_PATH=$bin "$bin/host-device" >/tmp/answer ||
		fail "$1: $(</tmp/answer)"
}

# end_without_del attaches the device to container one, where it is renamed, and ends the container without DEL.
end_without_del() {
	ip netns add one
	call ADD one /run/netns/one "\"device\": \"$device\""
	ip -n one link set net1 down
	ip -n one link set net1 name moved mtu 1300
	ip netns del one
	until ip link show moved &>/dev/null; do sleep 0.1; done # the kernel moves it
}

# check_restored WHEN checks that the host has the device with its original state.
check_restored() {
	local now
	now=$(ip -o link show $device) || fail "$1: $device does not exist on the host"
	[[ $now == *",UP"*"mtu 1400"*"$mac"*"alias mine"* ]] || fail "$1: $device was not restored: $now"
}

end_without_del
call DEL one "" '"device": "eth0"'
check_restored "DEL after the namespace ended"
end_without_del
call GC "" "" '"device": "eth0", "cni.dev/valid-attachments": []'
check_restored "GC after the namespace ended"
for key in '"device": "eth0"' "\"hwaddr\": \"$mac\""; do
	end_without_del
	ip netns add two
	call ADD two /run/netns/two "$key"
	call DEL one "" "$key"
	ip -n two link show net1 >/dev/null || fail "DEL of the former container took the device from container two"
	call DEL two /run/netns/two "$key"
	ip netns del two
	check_restored "DEL after the next ADD, by $key"
done
end_without_del
ip link add $device type bridge
call DEL one "" '"device": "eth0"'
[[ $(ip -o link show moved) == *"alias eth0"* ]] || fail "DEL with its name in use: wrong alias"
ip link del $device type bridge
call DEL one "" '"device": "eth0"'
check_restored "DEL after its name is free again"
if modprobe eql; then # has no permanent MAC address, like a virtual function without an assigned one
	ip netns add one
	call ADD one /run/netns/one '"device": "eql"'
	ip netns del one
	until ip link show net1 &>/dev/null; do sleep 0.1; done
	call DEL one "" '"device": "eql"'
	ip link show eql >/dev/null || fail "DEL did not restore the name of a device without a permanent MAC address"
fi
echo "== host-device restores physical devices"

# rings DEVICE prints ethtool's ring sizes: the maximum for rx, rx-mini, rx-jumbo and tx, then the current size of each.
# shellcheck disable=SC2016 # perl's variables
rings() {
	perl -e 'socket(my $s, 2, 2, 0) or die $!; my $d = pack("L9", 0x10); my $r = pack("a16 P x16", $ARGV[0], $d);
		ioctl($s, 0x8946, $r) or die "rings: $!\n"; my (undef, @all) = unpack("L9", $d); print "@all\n"' "$1"
}

# tune VERB RINGS [CODE] runs tuning after host-device in container one, with these rings and without rx-gro. With CODE,
# tuning must fail with it.
netns=/run/netns/one
tune() {
	local keys rc=0
	keys=$(printf '"prevResult": %s, "ethtool": {"rings": {%s}, "features": {"rx-gro": false}}' "$(</tmp/added)" "$2")
	[ "$1" != GC ] || keys='"cni.dev/valid-attachments": []'
	printf '{"cniVersion": "1.1.0", "name": "net", "type": "tuning", %s}' "$keys" |
		CNI_COMMAND=$1 CNI_CONTAINERID=one CNI_NETNS=$netns CNI_IFNAME=net1 CNI_PATH=$bin \
			"$bin/tuning" >/tmp/answer || rc=$?
	if [ -z "${3:-}" ]; then
		[ $rc = 0 ] || fail "tuning $1 $2: $(</tmp/answer)"
	else
		[ "$(jq .code /tmp/answer)" = "$3" ] || fail "tuning $1 $2: code $3 expected: $(</tmp/answer)"
	fi
}

# check_rings WANT GOT WHEN
check_rings() { [ "$1" = "$2" ] || fail "rings $3: got $2, expected $1"; }

# gro DEVICE prints 1 if GRO is on, and 0 otherwise.
# shellcheck disable=SC2016
gro() {
	perl -e 'socket(my $s, 2, 2, 0) or die $!; my $d = pack("L2", 0x2b); my $r = pack("a16 P x16", $ARGV[0], $d);
		ioctl($s, 0x8946, $r) or die "gro: $!\n"; print((unpack("L2", $d))[1])' "$1"
}
[ "$(gro $device)" = 1 ] || fail "GRO of $device is off at first"

before=$(rings $device)
read -r rx _ _ tx _ <<<"$before"
((rx >= 128 && tx >= 128)) || fail "rings of $device are too small for the test: $before"
wanted="$rx 0 0 $tx 64 0 0 128"
ip netns add one
call ADD one /run/netns/one "\"device\": \"$device\""
cp /tmp/answer /tmp/added
inside() { ip netns exec one bash -c "$(declare -f rings); rings net1"; }
check_rings "$before" "$(inside)" "in a container"
tune ADD "\"rx\": 64, \"tx\": $((tx + 1))" 7
check_rings "$before" "$(inside)" "after a refused ADD"
tune ADD '"rx-jumbo": 1' 7
ring_keys='"rx": 64, "tx": 128'
if [ "$(uname -r | cut -d. -f1)" -lt 6 ]; then # the driver cannot change them before Linux 6.0
	tune ADD "$ring_keys" 2
	ring_keys='' wanted=$before
fi
for _ in 1 2; do
	tune ADD "$ring_keys"
	check_rings "$wanted" "$(inside)" "after ADD"
done
tune CHECK "$ring_keys"
[ -z "$ring_keys" ] || tune CHECK '"rx": 32' 101
tune DEL "$ring_keys"
check_rings "$before" "$(inside)" "after DEL"
tune DEL "$ring_keys"
call DEL one /run/netns/one "\"device\": \"$device\""
ip netns del one
check_restored "DEL after tuning"
check_rings "$before" "$(rings $device)" "on the host"

# add_tuned attaches the device to container one and tunes it.
add_tuned() {
	ip netns add one
	call ADD one /run/netns/one "\"device\": \"$device\""
	cp /tmp/answer /tmp/added
	netns=/run/netns/one
	tune ADD "$ring_keys"
}

# end_tuned [hold] attaches and tunes the device, and ends the container without DEL. With hold, the container's
# namespace stays, but without its path.
end_tuned() {
	add_tuned
	netns=''
	[ -z "${1:-}" ] || exec 5</run/netns/one
	ip netns del one
	[ -n "${1:-}" ] || until ip link show net1 &>/dev/null; do sleep 0.1; done
}

# check_untuned WHEN checks that the host has the device with its original state, rings and GRO, and that no record is
# left.
check_untuned() {
	check_restored "$1"
	check_rings "$before" "$(rings $device)" "$1"
	[ "$(gro $device)" = 1 ] || fail "$1: GRO is off"
	[ -z "$(find /run/cni/tuning /run/hawser/tuning -name '*.json')" ] || fail "$1: a record of tuning is left"
}

end_tuned
tune DEL "$ring_keys"
call DEL one "" "\"device\": \"$device\""
check_untuned "DEL of a tuned device after the namespace ended"
end_tuned
call GC "" "" "\"device\": \"$device\", \"cni.dev/valid-attachments\": []"
tune GC ""
check_untuned "GC of a tuned device after the namespace ended"
add_tuned
call GC "" "" "\"device\": \"$device\", \"cni.dev/valid-attachments\": []"
tune GC ""
ip netns del one
check_untuned "GC of a tuned device whose namespace exists"
if [ -n "$ring_keys" ]; then # this kernel changes rings, and finds a namespace by its cookie
	end_tuned hold
	tune DEL "$ring_keys"
	call DEL one "" "\"device\": \"$device\""
	exec 5<&-
	check_untuned "DEL of a tuned device whose namespace has no path"
	end_tuned
	add_tuned
	tune DEL "$ring_keys"
	call DEL one /run/netns/one "\"device\": \"$device\""
	ip netns del one
	check_untuned "DEL of a container that took the tuned device of an ended namespace"
	end_tuned
	perl -e 'socket(my $s, 2, 2, 0) or die $!; my $d = pack("L9", 0x11, 0, 0, 0, 0, 32, 0, 0, 128);
		ioctl($s, 0x8946, pack("a16 P x16", "net1", $d)) or die "set rings: $!\n"'
	tune DEL "$ring_keys"
	check_rings "$rx 0 0 $tx 32 0 0 $tx" "$(rings net1)" "after DEL, which keeps changes by other programs"
fi
echo "== tuning changes and restores features and rings"
