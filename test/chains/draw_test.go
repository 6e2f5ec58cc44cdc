package chains_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// chain is a list that was drawn, for each of two containers: what only one can
// have (a host port, a device, an address) differs.
type chain struct {
	version string
	lists   [2]List
}

// perPod is a value that no two containers share.
type perPod func(pod int) any

// required are the keys without which a plugin does nothing of interest.
var required = map[string]Object{
	"bridge":      {"bridge": "cni0"},
	"ptp":         {},
	"macvlan":     {"master": "up0"},
	"tap":         {},
	"host-device": {"device": perPod(func(pod int) any { return fmt.Sprintf("d%d", pod) })},
	"tuning":      {},
	"portmap": {"runtimeConfig": perPod(func(pod int) any {
		return Object{"portMappings": []Object{{"hostPort": 8080 + pod, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": 5300 + pod, "containerPort": 53, "protocol": "udp"}}}
	})},
	"firewall":  {},
	"bandwidth": {"ingressRate": 8000000, "ingressBurst": 800000},
	"sbr":       {},
}

// optional are values of more keys, of which each list has some.
var optional = map[string]map[string][]any{
	"bridge": {"isGateway": {true}, "isDefaultGateway": {true}, "ipMasq": {true}, "hairpinMode": {true},
		"promiscMode": {true}, "mtu": {1400, 1500}, "macspoofchk": {true}, "portIsolation": {true},
		"ipMasqBackend": {"iptables", "nftables"}, "mac": {mac(0x10)}, "forceAddress": {true}},
	"ptp":         {"ipMasq": {true}, "ipMasqBackend": {"iptables", "nftables"}, "mtu": {1400}},
	"macvlan":     {"mode": {"bridge", "private", "vepa"}, "mtu": {1400, 1500}, "mac": {mac(0x20)}},
	"tap":         {"mtu": {1400, 1500}, "mac": {mac(0x30)}, "owner": {107}, "multiQueue": {true}},
	"host-device": {},
	"tuning": {"mtu": {1300, 1400}, "mac": {mac(0x40)}, "promisc": {true}, "allmulti": {true}, "txQLen": {77},
		"sysctl": {Object{"net.ipv4.conf.eth0.arp_filter": "1"}, Object{"net.ipv6.conf.eth0.accept_ra": "0",
			"net.ipv4.tcp_keepalive_time": "700"}}},
	"portmap": {"backend": {"iptables", "nftables"}, "snat": {false}, "masqAll": {true}},
	"firewall": {"backend": {"iptables", "nftables"}, "ingressPolicy": {"same-bridge", "isolated", "open"},
		"acceptPublished": {false}},
	"bandwidth": {"egressRate": {16000000}, "egressBurst": {1600000}},
	"sbr":       {"table": {300}, "addSourceHints": {true}},
}

var (
	mains   = []string{"bridge", "bridge", "ptp", "macvlan", "tap", "host-device"}
	chained = []string{"tuning", "portmap", "firewall", "bandwidth", "sbr"}
)

func mac(kind int) perPod {
	return func(pod int) any { return fmt.Sprintf("0a:00:00:00:%02x:%02x", kind, pod+1) }
}

// ipams are configurations of IPAM, and of IPAM that leaves the container without addresses.
var ipams = []any{
	HostLocal("10.88.0.0/24"), HostLocal("fd00:88::/64"), HostLocal("10.88.0.0/24", "fd00:88::/64"),
	HostLocal("10.88.0.0/24", "10.89.0.0/24"),
	routed(Object{"dst": "0.0.0.0/0"}),
	routed(Object{"dst": "0.0.0.0/0", "mtu": 1280, "advmss": 1200, "priority": 50}, Object{"dst": "192.0.2.0/24"}),
	routed(Object{"dst": "198.51.100.0/24", "table": 254}, Object{"dst": "203.0.113.0/24", "scope": 0}),
	perPod(func(pod int) any {
		return Object{"type": "static", "routes": []Object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
			"addresses": []Object{{"address": fmt.Sprintf("10.88.0.%d/24", 50+pod), "gateway": "10.88.0.1"},
				{"address": fmt.Sprintf("fd00:88::%d/64", 50+pod), "gateway": "fd00:88::1"}}}
	}),
	Object{},
}

func routed(routes ...Object) Object {
	return Merge(HostLocal("10.88.0.0/24", "fd00:88::/64"), Object{"routes": routes})
}

// draw makes a chain of up to five plugins, most of them in an order that makes sense.
func draw(seed uint64) chain {
	r := rand.New(rand.NewPCG(seed, 0))
	c := chain{version: []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.1.0"}[r.IntN(5)]}
	for i := range 1 + r.IntN(5) {
		kind := chained
		if likely := r.IntN(8) > 0; likely == (i == 0) {
			kind = mains
		}
		plugin := kind[r.IntN(len(kind))]
		keys := maps.Clone(required[plugin])
		if slices.Contains(mains, plugin) {
			keys["ipam"] = ipams[r.IntN(len(ipams))]
		}
		for _, key := range slices.Sorted(maps.Keys(optional[plugin])) {
			if values := optional[plugin][key]; r.IntN(3) == 0 {
				keys[key] = values[r.IntN(len(values))]
			}
		}
		if slices.ContainsFunc(c.lists[0], func(e Step) bool { return e.Keys["macspoofchk"] != nil }) {
			delete(keys, "mac") // its packets would be dropped, and CHECK says so
		}
		for pod := range c.lists {
			c.lists[pod] = append(c.lists[pod], Step{Plugin: plugin, Keys: forPod(keys, pod)})
		}
	}
	return c
}

func forPod(keys Object, pod int) Object {
	keys = maps.Clone(keys)
	for key, value := range keys {
		if of, ok := value.(perPod); ok {
			keys[key] = of(pod)
		}
	}
	return keys
}
