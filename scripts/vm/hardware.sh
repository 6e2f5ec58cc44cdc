#!/bin/bash
# hardware.sh BIN: the specs of host-device and tuning that need hardware, which has rings, and the namespace to
# which the kernel brings it when a container's namespace ends: the machine's own, where nstest has none.
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
if modprobe eql; then # in place of hardware without a permanent MAC address: a virtual function that was given none
	ip netns add one
	call ADD one /run/netns/one '"device": "eql"'
	ip netns del one
	until ip link show net1 &>/dev/null; do sleep 0.1; done
	call DEL one "" '"device": "eql"'
	ip link show eql >/dev/null || fail "it has no permanent MAC address, and not its name"
fi
echo "== host-device brings hardware home"

# rings DEVICE: the numbers of ethtool's ioctl: the most of receiving, mini, jumbo and sending, and what there is of each.
# shellcheck disable=SC2016 # perl's variables
rings() {
	perl -e 'socket(my $s, 2, 2, 0) or die $!; my $d = pack("L9", 0x10); my $r = pack("a16 P x16", $ARGV[0], $d);
		ioctl($s, 0x8946, $r) or die "rings: $!\n"; my (undef, @all) = unpack("L9", $d); print "@all\n"' "$1"
}

# tune VERB RINGS [CODE]: tuning behind host-device in container one, which fails with CODE. It switches rx-gro off, too.
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

# has WANT NOW WHEN
has() { [ "$1" = "$2" ] || fail "rings $3: are $2, not $1"; }

# gro DEVICE: 1 where it is on
# shellcheck disable=SC2016
gro() {
	perl -e 'socket(my $s, 2, 2, 0) or die $!; my $d = pack("L2", 0x2b); my $r = pack("a16 P x16", $ARGV[0], $d);
		ioctl($s, 0x8946, $r) or die "gro: $!\n"; print((unpack("L2", $d))[1])' "$1"
}
[ "$(gro $device)" = 1 ] || fail "$device has no GRO to switch off"

before=$(rings $device)
read -r rx _ _ tx _ <<<"$before"
((rx >= 128 && tx >= 128)) || fail "$device has no rings to change: $before"
wanted="$rx 0 0 $tx 64 0 0 128"
ip netns add one
call ADD one /run/netns/one "\"device\": \"$device\""
cp /tmp/answer /tmp/added
inside() { ip netns exec one bash -c "$(declare -f rings); rings net1"; }
has "$before" "$(inside)" "in a container"
tune ADD "\"rx\": 64, \"tx\": $((tx + 1))" 7
has "$before" "$(inside)" "after a refused ADD"
tune ADD '"rx-jumbo": 1' 7
asked='"rx": 64, "tx": 128'
if [ "$(uname -r | cut -d. -f1)" -lt 6 ]; then # the driver cannot change them before Linux 6.0
	tune ADD "$asked" 2
	asked='' wanted=$before
fi
for _ in 1 2; do
	tune ADD "$asked"
	has "$wanted" "$(inside)" "after ADD"
done
tune CHECK "$asked"
[ -z "$asked" ] || tune CHECK '"rx": 32' 101
tune DEL "$asked"
has "$before" "$(inside)" "after DEL"
tune DEL "$asked"
call DEL one /run/netns/one "\"device\": \"$device\""
ip netns del one
isHome "DEL after tuning"
has "$before" "$(rings $device)" "at home"

# tuned: a container has a tuned device.
tuned() {
	ip netns add one
	call ADD one /run/netns/one "\"device\": \"$device\""
	cp /tmp/answer /tmp/added
	netns=/run/netns/one
	tune ADD "$asked"
}

# gone [HOLDS]: a tuned device whose container ends, or with HOLDS loses the path of its namespace alone.
gone() {
	tuned
	netns=''
	[ -z "${1:-}" ] || exec 5</run/netns/one
	ip netns del one
	[ -n "${1:-}" ] || until ip link show net1 &>/dev/null; do sleep 0.1; done
}

# untuned WHEN
untuned() {
	isHome "$1"
	has "$before" "$(rings $device)" "$1"
	[ "$(gro $device)" = 1 ] || fail "$1: GRO is off"
	[ -z "$(find /run/cni/tuning /run/hawser/tuning -name '*.json')" ] || fail "$1: tuning keeps a record"
}

gone
tune DEL "$asked"
call DEL one "" "\"device\": \"$device\""
untuned "DEL of a tuned device after the namespace ended"
gone
call GC "" "" "\"device\": \"$device\", \"cni.dev/valid-attachments\": []"
tune GC ""
untuned "GC of a tuned device after the namespace ended"
tuned
call GC "" "" "\"device\": \"$device\", \"cni.dev/valid-attachments\": []"
tune GC ""
ip netns del one
untuned "GC of a tuned device whose namespace lives"
if [ -n "$asked" ]; then # a kernel with cookies, by which the namespace is found, and with rings
	gone holds
	tune DEL "$asked"
	call DEL one "" "\"device\": \"$device\""
	exec 5<&-
	untuned "DEL of a tuned device whose namespace has no path"
	gone
	tuned
	tune DEL "$asked"
	call DEL one /run/netns/one "\"device\": \"$device\""
	ip netns del one
	untuned "DEL of a container that took the tuned device of an ended namespace"
	gone
	perl -e 'socket(my $s, 2, 2, 0) or die $!; my $d = pack("L9", 0x11, 0, 0, 0, 0, 32, 0, 0, 128);
		ioctl($s, 0x8946, pack("a16 P x16", "net1", $d)) or die "set rings: $!\n"'
	tune DEL "$asked"
	has "$rx 0 0 $tx 32 0 0 $tx" "$(rings net1)" "after DEL, which leaves what others changed at home"
fi
echo "== tuning changes and restores features and rings"
