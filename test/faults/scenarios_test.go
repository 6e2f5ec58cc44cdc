package faults_test

import (
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

type object = plugintest.Object

// scenario is a plugin with a configuration that uses all of its features.
type scenario struct {
	Name   string
	Conf   object
	Below  object // the plugin of the chain that runs before it
	IfName string // "eth0" when empty

	// Other has the keys that differ in the other attachment, such as another network's name.
	Other object

	// Cold means that the host is new in each case. Otherwise it has another attachment of the network, which must not
	// be disturbed.
	Cold bool

	// Inside means that the plugin changes the container, which GC does not enter.
	Inside bool

	// Device is a shell script that configures a device of the host, $0, with its peer, $0p. $1 is its number.
	Device string

	Needs []string // features of the kernel

	// Again means that another scenario has the plugin and its backend. make test omits this one.
	Again bool
}

// network gives a device addresses, routes and rules. It shares a route with its peer.
const network = `
sysctl -qw net.ipv6.conf.$0.accept_dad=0
ip addr add 10.7$1.0.5/24 dev $0 metric 100
ip addr add 10.7$1.0.6/24 dev $0 noprefixroute
ip addr add fd07:$1::5/64 dev $0 nodad
ip addr add 10.7$1.1.5/24 dev $0p
ip route add default via 10.7$1.0.1 dev $0 metric 10$1
ip route add 10.8$1.0.0/16 nexthop via 10.7$1.0.1 dev $0 nexthop via 10.7$1.1.1 dev $0p
ip route add fd08:$1::/64 via fd07:$1::1 dev $0 src fd07:$1::5
ip route add default via 10.7$1.0.1 dev $0 table 10$1
ip route add unreachable 10.9$1.0.0/16 table 10$1
ip rule add from 10.7$1.0.5 lookup 10$1 priority 100$1`

// lending returns an IPAM configuration with one address more than there are other attachments, so that an address that
// leaks or is assigned twice is noticed immediately.
func lending(others int, sets ...string) object {
	var ranges [][]object
	for _, subnet := range sets {
		prefix := subnet[:len(subnet)-len("0/24")]
		ranges = append(ranges, []object{{"subnet": subnet, "rangeStart": prefix + "2",
			"rangeEnd": prefix + string('2'+rune(others))}})
	}
	return object{"type": "host-local", "ranges": ranges}
}

func dual(others int) object { return lending(others, "10.1.0.0/24", "fd01::0/64") }

func bridge(others int, more object) object {
	return plugintest.Merge(object{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipam": dual(others)},
		more)
}

func portmap(backend string) object {
	return object{"type": "portmap", "backend": backend, "runtimeConfig": object{"portMappings": []object{
		{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
		{"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
		{"hostPort": 8443, "containerPort": 443, "protocol": "tcp", "hostIP": "127.0.0.1"},
	}}}
}

// scenarios returns all scenarios.
func scenarios() []scenario {
	nft, ipt := []string{"nft", "nft-inet-nat"}, []string{"iptables"}
	tuned := object{"type": "tuning", "mac": "0a:00:00:00:00:17", "mtu": 1400, "promisc": true, "txQLen": 77,
		"allmulti": true,
		"sysctl":   object{"net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.tcp_keepalive_time": "700"},
		"ethtool":  object{"features": object{"rx-gro": true, "tx-tcp-segmentation": false}}}
	special := object{"ipMasq": true, "masqExclude": []string{"10.9.0.0/16", "fd09::1"}, "masqRandomFully": true,
		"masqPorts": "32768-60999"}
	limited := object{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000,
		"egressBurst": 800000, "exempt": []string{"10.9.0.0/16", "fd09::/64"}}
	onBridge := bridge(1, nil)
	return []scenario{
		{Name: "loopback", IfName: "lo", Inside: true, Conf: object{"type": "loopback"}},
		{Name: "host-local", Conf: object{"type": "bridge", "ipam": dual(1)}},
		{Name: "host-local, first on the host", Cold: true, Conf: object{"type": "bridge", "ipam": dual(0)}},
		{Name: "static", Conf: object{"type": "bridge", "ipam": object{"type": "static",
			"addresses": []object{{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd01::5/64"}}}}},
		{Name: "dhcp", Conf: object{"type": "bridge", "ipam": object{"type": "dhcp"}},
			Below: object{"type": "bridge", "bridge": "cni0"}},
		{Name: "bridge", Conf: bridge(1, object{"ipMasq": true, "macspoofchk": true, "hairpinMode": true}),
			Needs: append(nft, "nft-bridge")},
		{Name: "bridge, first on the host", Cold: true, Conf: bridge(0, object{"ipMasq": true, "macspoofchk": true}),
			Needs: append(nft, "nft-bridge")},
		{Name: "bridge, VLAN", Again: true, Conf: bridge(1, object{"vlan": 7}),
			Needs: []string{"vlan_filtering", "8021q"}},
		{Name: "bridge, iptables", Conf: bridge(1, object{"ipMasq": true, "ipMasqBackend": "iptables"}), Needs: ipt},
		{Name: "tap", Conf: object{"type": "tap", "owner": 107, "group": 108, "mtu": 1400, "mac": "0a:00:00:00:00:17",
			"ipam": dual(1)}},
		{Name: "ptp", Conf: plugintest.Merge(special, object{"type": "ptp", "ipam": plugintest.Merge(dual(1),
			object{"routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}}})}), Needs: nft},
		{Name: "ptp, first on the host", Cold: true, Conf: object{"type": "ptp", "ipMasq": true, "ipam": dual(0)},
			Needs: nft},
		{Name: "ptp, iptables", Again: true, Conf: plugintest.Merge(special, object{"type": "ptp",
			"ipMasqBackend": "iptables", "ipam": dual(1)}), Needs: ipt},
		{Name: "ptp, netkit", Conf: object{"type": "ptp", "deviceType": "netkit", "ipMasq": true, "ipam": dual(1)},
			Needs: append(nft, "netkit")},
		{Name: "macvlan", Conf: onUplink("macvlan", object{"mode": "vepa"}), Needs: []string{"macvlan"}},
		{Name: "macvlan, first on the host", Cold: true, Conf: object{"type": "macvlan", "master": "up0",
			"enabledad": false, "ipam": dual(0)}, Needs: []string{"macvlan"}},
		{Name: "ipvlan", Conf: onUplink("ipvlan", nil), Needs: []string{"ipvlan"}},
		{Name: "vlan", Conf: onUplink("vlan", object{"vlanId": 5}), Needs: []string{"8021q"}},
		{Name: "dummy", Conf: object{"type": "dummy", "ipam": dual(1)}, Needs: []string{"dummy"}},
		{Name: "host-device", Conf: object{"type": "host-device", "device": victim, "enabledad": false,
			"ipam": dual(1)}},
		{Name: "host-device, with the device's network", Device: network, Conf: object{"type": "host-device",
			"device": victim, "enabledad": false, "useInterfaceNetwork": true, "ipam": dual(1)}},
		{Name: "bandwidth", Conf: limited, Below: onBridge, Needs: []string{"tbf", "ifb"}},
		{Name: "bandwidth, in the container", Again: true, Conf: limited,
			Below: object{"type": "tap", "ipam": dual(1)}, Needs: []string{"tbf", "ifb"}},
		{Name: "tc-redirect-tap", Conf: object{"type": "tc-redirect-tap"}, Below: onBridge},
		{Name: "tuning", Conf: tuned, Below: onBridge, Inside: true},
		{Name: "sbr", Conf: object{"type": "sbr", "addSourceHints": true}, Below: onBridge, Inside: true},
		{Name: "vrf", Conf: object{"type": "vrf", "vrfname": "red"}, Below: onBridge, Inside: true,
			Needs: []string{"vrf"}},
		{Name: "portmap", Conf: portmap("nftables"), Below: onBridge, Needs: nft},
		{Name: "portmap, first on the host", Cold: true, Conf: portmap("nftables"), Below: bridge(0, nil), Needs: nft},
		{Name: "portmap, iptables", Conf: portmap("iptables"), Below: onBridge, Needs: ipt},
		{Name: "portmap, iptables, first on the host", Cold: true, Conf: portmap("iptables"), Below: bridge(0, nil),
			Needs: ipt},
		{Name: "firewall", Conf: firewall("nftables"), Below: onBridge, Needs: nft},
		{Name: "firewall, first on the host", Cold: true, Conf: firewall("nftables"), Below: bridge(0, nil),
			Needs: nft},
		{Name: "firewall, iptables", Conf: firewall("iptables"), Below: onBridge, Needs: ipt},
		{Name: "firewall, iptables, two networks", Again: true, Conf: firewall("iptables"), Below: onBridge,
			Other: object{"name": "other", "ingressPolicy": "same-bridge"}, Needs: ipt},
	}
}

func onUplink(plugin string, more object) object {
	return plugintest.Merge(object{"type": plugin, "master": "up0", "mtu": 1400, "enabledad": false, "ipam": dual(1)},
		more)
}

func firewall(backend string) object {
	return object{"type": "firewall", "backend": backend, "ingressPolicy": "isolated"}
}

func scenarioOf(name string) scenario {
	all := scenarios()
	return all[slices.IndexFunc(all, func(s scenario) bool { return s.Name == name })]
}

// labels returns the labels of the scenario's specs.
func (s scenario) labels() ginkgo.Labels {
	var labels ginkgo.Labels
	if slices.Contains(s.Needs, "netkit") {
		labels = ginkgo.Label("netkit") // scripts/test-vm.sh searches for this call
	}
	if s.Cold || s.Again {
		labels = append(labels, "slow")
	}
	return labels
}

func (s scenario) commands() []string {
	if s.Cold { // DEL is the same as on other hosts
		return []string{"ADD"}
	}
	return []string{"ADD", "DEL"}
}

func (s scenario) plugin() string {
	// IPAM plugins find their part in a main plugin's configuration.
	for _, ipam := range []string{"host-local", "static", "dhcp"} {
		if strings.HasPrefix(s.Name, ipam) {
			return ipam
		}
	}
	return s.Conf["type"].(string)
}
