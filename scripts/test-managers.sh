#!/bin/bash
# test-managers.sh: attaches and detaches pods on a host managed by Debian's udev, NetworkManager and systemd-networkd,
# with their default configuration and with that of docs/kernels.md. Pods also borrow an interface that a manager
# configures from a router (host-device with useInterfaceNetwork). Runs in namespaces, on a temporary copy of this
# machine's root directory. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${XDG_CACHE_HOME:-$HOME/.cache}/hawser/managers

# unpack extracts systemd, udev, NetworkManager and their libraries into the user's cache without installing them.
unpack() (
	scripts/deps.sh dbus-daemon dnsmasq-base iproute2 iputils-ping jq radvd
	[ ! -d "$programs" ] || return 0
	rm -rf "$programs.tmp"
	mkdir -p "$programs.tmp/debs"
	local retry=$PWD/scripts/retry.sh
	exec 9>"${programs%/*}/.apt.lock" # as in deps.sh
	flock 9
	cd "$programs.tmp/debs"
	local download=(apt-get -qq -o APT::Sandbox::User=root download systemd libsystemd-shared udev network-manager libnm0
		libndp0 libteamdctl0 libmm-glib0 libpsl5 libcurl3-gnutls libjansson4 libreadline8 libbluetooth3)
	"${download[@]}" || { "$retry" apt-get -qq update; "$retry" "${download[@]}"; }
	for package in *.deb; do dpkg -x "$package" ..; done
	cd ..
	for dir in bin lib; do # on this machine, links to the directories in /usr
		cp -a "$dir/." "usr/$dir/"
		rm -r "$dir"
	done
	rm -r debs
	mv -T "$programs.tmp" "$programs"
)

# enter PROGRAMS ARG... runs "inside ARG..." of this script on an overlay of this machine's root directory and PROGRAMS.
enter() {
	mount -t tmpfs tmpfs /mnt
	mkdir /mnt/{upper,work,root}
	mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
	cd /mnt/root
	mount -t proc proc proc
	mount -t sysfs sysfs sys
	mount -t tmpfs tmpfs run
	mount -t tmpfs tmpfs dev
	cp -a /dev/{null,zero,random,urandom} dev/
	ln -s /proc/self/fd dev/fd
	cp -a "$1/." .
	ip link set lo up
	export SYSTEMD_IGNORE_CHROOT=1
	exec chroot . "$OLDPWD/scripts/test-managers.sh" inside "${@:2}"
}

fail() { echo "== FAILED: $step: $*"; ip -br link; ip -br addr; exit 1; }
settle() { [ ! -S /run/udev/control ] || udevadm settle -t 120; }
attach() { ip netns add "$2" && cnitool add "$1" "/run/netns/$2" >"/run/$2"; }
detach() { cnitool del "$1" "/run/netns/$2" && ip netns del "$2"; }

# check_pod LIST POD checks that the pod's gateway answers and that CHECK succeeds.
check_pod() {
	local gateway
	gateway=$(ip netns exec "$2" ip -j route | jq -r '.[] | select(.dst == "default").gateway')
	ip netns exec "$2" ping -q -c 1 -w 60 "$gateway" >/dev/null || fail "the gateway $gateway does not answer"
	cnitool check "$1" "/run/netns/$2" || fail "CHECK"
}

# has_mac POD PREFIX reports whether the host interface whose name begins with PREFIX has the MAC address in the pod's
# result.
has_mac() {
	local name mac
	read -r name mac < <(jq -r --arg name "$2" '.interfaces[] | select((.sandbox // "") == "" and
		(.name | startswith($name))) | .name + " " + .mac' "/run/$1")
	[ "$(<"/sys/class/net/$name/address")" = "$mac" ]
}

check_pods() {
	check_pod net one
	check_pod p2p two
	has_mac one cni0 || fail "the bridge's MAC address changed"
	report=$(hawser doctor 2>&1) || true
}

# Expectations of test_pods. expect_working: nothing changes. expect_new_macs: host ends may get other MAC addresses.
# expect_drift: the manager breaks the network, and hawser doctor reports it.
expect_working() {
	check_pods
	has_mac one veth || fail "the MAC address of a bridge port changed"
	has_mac two veth || fail "the MAC address of a gateway changed"
	[ "$report" = "nothing is wrong" ] || fail "$report"
}
expect_new_macs() {
	check_pods
	local want="*changed-mac*" # unless udev changed the address before ADD read it
	! has_mac two veth || want="nothing is wrong"
	# shellcheck disable=SC2053 # a pattern
	[[ $report == $want ]] || fail "$report"
}
expect_drift() {
	timeout 180 sh -c 'until hawser doctor 2>&1 | grep -q "error drift"; do sleep 0.1; done' ||
		fail "hawser doctor reports no drift"
}

# test_pods EXPECTATION STEP attaches two pods and checks EXPECTATION, before and after a third pod comes and goes.
test_pods() {
	step=$2
	attach net one
	attach p2p two
	settle
	"$1"
	attach net three
	settle
	detach net three
	settle
	"$1"
	detach net one
	detach p2p two
	settle
	! ip -br link | grep '^veth' || fail "DEL left interfaces"
	ip link del cni0
	echo "== passed: $step"
}

# start_router creates the interface nic and starts a router behind it, from which a manager can configure nic by DHCP
# and router advertisements.
start_router() {
	cat >/etc/cni/net.d/30-nic.conflist <<-END
		{"cniVersion": "1.0.0", "name": "nic", "plugins": [{"type": "host-device", "device": "nic",
		 "useInterfaceNetwork": true}]}
	END
	cat >/etc/radvd.conf <<-END
		interface port { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; prefix fd00:90::/64 { }; };
	END
	ip netns add router
	ip link add nic type veth peer name port netns router
	ip netns exec router sh -ec '
		ip link set lo up
		ip link set port up
		ip addr add 10.90.0.1/24 dev port
		ip addr add fd00:90::1/64 dev port nodad
		sysctl -qw net.ipv6.conf.all.forwarding=1
		dnsmasq --conf-file=/dev/null --port=0 --interface=port --bind-interfaces --user=root --group=root --no-ping \
			--pid-file=/run/dnsmasq.pid --dhcp-leasefile=/run/dnsmasq.leases --dhcp-authoritative \
			--dhcp-range=10.90.0.50,10.90.0.59,2m --dhcp-option=3,10.90.0.1
		radvd -C /etc/radvd.conf -m none -p /run/radvd.pid'
}

# wait_configured WHEN waits until the manager has given nic an address of each family and the default route.
wait_configured() {
	timeout 180 sh -c 'until ip -4 addr show nic | grep -q "10\.90\.0\.5" && ip -6 addr show nic | grep -q "fd00:90::" &&
		ip route | grep -q "default via 10.90.0.1 dev nic"; do sleep 0.1; done' || fail "nic is not configured $1"
}

# print_nic prints nic's addresses and IPv4 routes without values that can change, such as lifetimes and, with
# systemd-networkd on a busy machine, the metric of the kernel's route of the subnet.
print_nic() {
	ip -j addr show nic | jq -cS '[.[0].addr_info[] | select(.scope == "global") |
		{local, prefixlen, noprefixroute, temporary}] | sort_by(.local)'
	ip route show dev nic | sed '/proto kernel/s/ metric [0-9]*//; s/ *$//' | sort -u
}

# test_borrow MANAGER lends nic to one pod after the other. Each pod must get the addresses and routes of nic, and the
# manager must configure nic again afterwards.
test_borrow() {
	local before pod
	step="useInterfaceNetwork, $1"
	ip link set nic up
	wait_configured "at first"
	before=$(print_nic)
	for pod in four five; do
		attach nic "$pod"
		[ "$(jq -r '.ips[0].gateway' "/run/$pod")" = 10.90.0.1 ] || fail "no gateway: $(<"/run/$pod")"
		ip netns exec "$pod" ping -q -c 1 -w 60 10.90.0.1 >/dev/null || fail "the router does not answer"
		ip netns exec "$pod" ping -q -c 1 -w 60 fd00:90::1 >/dev/null || fail "the router does not answer over IPv6"
		sleep 3 # time for the manager to interfere
		cnitool check nic "/run/netns/$pod" || fail "CHECK"
		detach nic "$pod"
		wait_configured "after the pod"
		sleep 3
		timeout 120 sh -c "until [ \"\$($0 print_nic)\" = '$before' ]; do sleep 0.5; done" ||
			fail "nic was not restored: before: $before; now: $(print_nic)"
	done
	echo "== passed: $step"
}

inside() {
	export PATH=$1:${1%/one}:$2:$PATH CNI_PATH=$1 NETCONFPATH=/etc/cni/net.d
	[ -s /etc/machine-id ] || tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
	rm -rf /etc/cni/net.d /etc/systemd/network /var/lib/cni
	mkdir -p /etc/cni/net.d /etc/systemd/network /run/{udev,dbus,NetworkManager} /run/systemd/netif/{links,leases,lldp}
	cat >/etc/cni/net.d/10-net.conflist <<-END
		{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "cni0", "ipMasq": true,
		 "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}],
		 [{"subnet": "fd00:88::/64"}]]}}, {"type": "firewall"}]}
	END
	cat >/etc/cni/net.d/20-p2p.conflist <<-END
		{"cniVersion": "1.0.0", "name": "p2p", "plugins": [{"type": "ptp", "ipMasq": true, "ipam": {
		 "type": "host-local", "ranges": [[{"subnet": "10.89.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
	END
	test_pods expect_working "host without a manager"
	/lib/systemd/systemd-udevd --daemon
	udevadm trigger --subsystem-match=net
	settle
	test_pods expect_new_macs "udev"
	printf '[Match]\nOriginalName=veth* cni*\n[Link]\nMACAddressPolicy=none\n' >/etc/systemd/network/10-containers.link
	udevadm control --reload
	test_pods expect_working "udev, with 10-containers.link"
	dbus-daemon --system --fork
	# NetworkManager does not manage veth interfaces unless told to.
	printf '[main]\nplugins=keyfile\nauth-polkit=false\n[device-nic]\nmatch-device=interface-name:nic\nmanaged=1\n' \
		>/etc/NetworkManager/NetworkManager.conf
	mkdir -p /etc/NetworkManager/system-connections
	(umask 077 && cat >/etc/NetworkManager/system-connections/nic.nmconnection) <<-END
		[connection]
		id=nic
		uuid=$(</proc/sys/kernel/random/uuid)
		type=ethernet
		interface-name=nic
		[ipv4]
		method=auto
		[ipv6]
		method=auto
	END
	NetworkManager
	test_pods expect_working "NetworkManager"
	start_router
	test_borrow "NetworkManager"
	pid=$(</run/NetworkManager/NetworkManager.pid)
	kill "$pid"
	timeout 180 sh -c "while [ -e /proc/$pid ]; do sleep 0.1; done" || fail "NetworkManager did not exit"
	ip link set nic down # as after a boot
	ip addr flush dev nic
	getent passwd systemd-network >/dev/null || useradd -r systemd-network
	chown -R systemd-network: /run/systemd/netif
	printf '[Match]\nName=*\n[Network]\nDHCP=yes\n' >/etc/systemd/network/20-all.network
	start_networkd
	test_pods expect_drift "systemd-networkd with Name=*"
	printf '[Match]\nName=veth* cni* bwp*\n[Link]\nUnmanaged=yes\n' >/etc/systemd/network/10-containers.network
	kill $!
	wait $! || true
	start_networkd
	test_pods expect_working "systemd-networkd, with 10-containers.network"
	test_borrow "systemd-networkd"
}
start_networkd() {
	rm -f /run/systemd/netif/state # of the previous process
	/lib/systemd/systemd-networkd 2>/run/networkd.log &
	timeout 180 sh -c 'until [ -e /run/systemd/netif/state ]; do sleep 0.1; done' ||
		fail "systemd-networkd did not start: $(</run/networkd.log)"
}

case ${1:-} in
enter | inside | print_nic) "$@" ;;
*)
	scripts/build.sh
	unpack
	exec unshare -n -m -p -u -i --fork --kill-child --propagation private "$PWD/scripts/test-managers.sh" enter \
		"$programs" "$PWD/bin/one" "$(scripts/clients.sh cnitool)"
	;;
esac
