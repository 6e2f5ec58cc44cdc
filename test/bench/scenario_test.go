package bench

import (
	"fmt"
	"slices"
	"strings"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// step is one plugin of a chain.
type step struct {
	plugin string
	conf   func(port int) object
}

// scenario is a chain of plugins, or one, whose verbs are measured, each a row.
type scenario struct {
	name     string
	verbs    []string
	steps    []step
	before   []step // attached first, and not measured
	others   int    // other pods on the host
	reserved int    // addresses that are reserved already
	parallel int    // pods at the same time; 0: one after the other
	daemon   bool   // of dhcp, and a DHCP server
	nft      bool   // only where the plugins know the nftables backends
	kind     string // of link, as ip makes one: VERSION alone is measured where the kernel lacks it
	quick    bool   // a part of the run of two minutes
	// fresh: each ADD is of another pod, since the reference's fails on an interface that had its DEL.
	fresh bool
	// uncounted: the peer's system calls are so many that tracing takes minutes.
	uncounted bool
	// long: of the other plugins only the first are measured.
	long    bool
	against string // againstPeer, ...
}

// What ours are compared with.
const (
	againstOurs  = "ours"  // shows the noise
	againstEmpty = "empty" // a program that does nothing: what any start costs
)

var (
	version = []string{"VERSION"}
	all     = []string{"ADD", "CHECK", "STATUS", "GC", "DEL"}
	most    = []string{"ADD", "CHECK", "DEL"}

	masquerade  = object{"ipMasq": true}
	byIPTables  = object{"ipMasq": true, "ipMasqBackend": "iptables"}
	byNFTables  = object{"ipMasq": true, "ipMasqBackend": "nftables"}
	onUplink    = object{"master": uplink}
	owned       = object{"owner": 107, "group": 108, "ipam": ipam(false)}
	onIPTables  = object{"backend": "iptables"}
	onNFTables  = object{"backend": "nftables"}
	fixed       = object{"type": "static", "addresses": []object{{"address": "10.22.0.5/16", "gateway": "10.22.0.1"}}}
	ingress     = object{"ingressRate": 8000000, "ingressBurst": 800000}
	egress      = object{"egressRate": 8000000, "egressBurst": 800000}
	plain, dual = object{"ipam": ipam(false)}, object{"ipam": ipam(true)}
)

// Names that the aims refer to.
const (
	manyOthers = 1000
	startName  = "bridge against an empty Go program"
	sameName   = "bridge, masquerade, against itself"
	chainName  = "chain of bridge, portmap, firewall, tuning"
)

func versionName(plugin string) string   { return "start of " + plugin }
func parallelName(n int) string          { return fmt.Sprintf("%s, %d at a time", chainName, n) }
func reservedName(n int) string          { return fmt.Sprintf("host-local, %d reserved", n) }
func portsName(n int) string             { return fmt.Sprintf("portmap, %d published", n) }
func othersName(of string, n int) string { return fmt.Sprintf("%s, %d others", of, n) }

func scenarios() []scenario {
	return slices.Concat([]scenario{
		{name: startName, verbs: version, steps: []step{bridge()}, against: againstEmpty, quick: true},
		{name: sameName, verbs: most, steps: []step{bridge(plain, masquerade)}, against: againstOurs, quick: true},
		{name: "loopback", verbs: all, steps: []step{{"loopback", same(nil)}}, quick: true},
		{name: "tap", verbs: all, steps: []step{{"tap", same(plain)}}, quick: true},
		{name: "tap, owner and group", verbs: most, steps: []step{{"tap", same(owned)}}},
		{name: "tap, dual stack", verbs: most, steps: []step{{"tap", same(dual)}}},
		{name: "tuning, a sysctl", verbs: all, before: []step{bridge(plain)}, steps: []step{tuning()}, quick: true},
		{name: "tuning, the MAC", verbs: most, before: []step{bridge(plain)}, steps: []step{
			{"tuning", same(object{"mac": "c2:11:22:33:44:55"})}}},
		{name: "sbr, dual stack", verbs: all, before: []step{bridge(dual)}, steps: []step{{"sbr", same(nil)}},
			quick: true, fresh: true},
		{name: "macvlan", verbs: all, steps: []step{{"macvlan", same(Merge(plain, onUplink))}}, quick: true},
		{name: "macvlan, layer 2", verbs: most, steps: []step{{"macvlan", same(onUplink)}}},
		{name: "macvlan, dual stack", verbs: most, steps: []step{{"macvlan", same(Merge(dual, onUplink))}}},
		{name: "bridge and dhcp", verbs: all, steps: []step{bridge(object{"isGateway": false,
			"ipam": object{"type": "dhcp"}})}, daemon: true, long: true},
		{name: "host-device", verbs: all, steps: []step{hostDevice(plain)}, quick: true},
		{name: "host-device, no addresses", verbs: most, steps: []step{hostDevice(nil)}},
		{name: "tc-redirect-tap", verbs: most, before: []step{bridge(dual)}, steps: []step{
			{"tc-redirect-tap", same(nil)}}, fresh: true},
		{name: "vrf", verbs: all, before: []step{bridge(plain)}, steps: []step{
			{"vrf", same(object{"vrfname": "red"})}}, kind: "vrf table 9", quick: true},
		{name: "ipvlan", verbs: all, steps: []step{{"ipvlan", same(Merge(plain, onUplink))}}, kind: "ipvlan",
			quick: true},
		{name: "vlan", verbs: all, steps: []step{{"vlan", same(Merge(plain, onUplink, object{"vlanId": 5}))}},
			kind: "vlan id 5", quick: true},
		{name: "dummy", verbs: all, steps: []step{{"dummy", same(plain)}}, kind: "dummy", quick: true},
	}, starts(), lending(), linking("ptp", ptp), linking("bridge", bridge), publishing(), filtering(), crowds(),
		chains())
}

// pluginNames are ours.
func pluginNames() []string {
	return strings.Fields("bandwidth bridge dhcp dummy firewall host-device host-local ipvlan loopback macvlan " +
		"portmap ptp sbr static tap tc-redirect-tap tuning vlan vrf")
}

func starts() (list []scenario) {
	for _, name := range pluginNames() {
		list = append(list, scenario{name: versionName(name), verbs: version, steps: []step{{name, same(nil)}},
			quick: name == "bridge" || name == "loopback"})
	}
	return list
}

func lending() (list []scenario) {
	for i, n := range []int{1, 1000, 10000, 60000} {
		s := scenario{name: reservedName(n), verbs: most, steps: []step{{"host-local", same(plain)}}, reserved: n,
			quick: n <= 1000, uncounted: n > 10000, long: n > 10000}
		if i == 0 {
			s.verbs = all
		}
		list = append(list, s)
	}
	return append(list, scenario{name: "static", verbs: all, steps: []step{{"static", same(object{"ipam": fixed})}},
		quick: true})
}

func linking(name string, plugin func(...object) step) []scenario {
	return []scenario{
		{name: name, verbs: all, steps: []step{plugin(plain)}, quick: true},
		{name: name + ", masquerade", verbs: all, steps: []step{plugin(plain, masquerade)}, quick: true},
		{name: name + ", masquerade by iptables", verbs: most, steps: []step{plugin(plain, byIPTables)}},
		{name: name + ", masquerade by nftables", verbs: most, steps: []step{plugin(plain, byNFTables)}, nft: true},
		{name: name + ", masquerade, dual stack", verbs: most, steps: []step{plugin(dual, masquerade)}},
	}
}

// crowds are pods among others of their network.
func crowds() (list []scenario) {
	for _, of := range []scenario{
		{name: "bridge, masquerade", steps: []step{bridge(plain, masquerade)}},
		{name: "bridge, masquerade by iptables", steps: []step{bridge(plain, byIPTables)}},
		{name: portsName(1), before: []step{bridge(plain)}, steps: []step{portmap(1)}},
		{name: portsName(1) + " by iptables", before: []step{bridge(plain)}, steps: []step{portmap(1, onIPTables)}},
		{name: "firewall", before: []step{bridge(plain)}, steps: []step{firewall()}},
	} {
		of.name, of.verbs, of.others, of.long = othersName(of.name, manyOthers), most, manyOthers, true
		list = append(list, of)
	}
	return list
}

func publishing() (list []scenario) {
	before := []step{bridge(plain)}
	for _, n := range []int{1, 10, 100} {
		s := scenario{name: portsName(n), verbs: most, before: before, steps: []step{portmap(n)}, quick: n <= 10,
			long: n > 10}
		if n == 1 {
			s.verbs = all
		}
		list = append(list, s, scenario{name: portsName(n) + " by iptables", verbs: most, before: before,
			steps: []step{portmap(n, onIPTables)}, long: n > 10},
			scenario{name: portsName(n) + " by nftables", verbs: most, before: before,
				steps: []step{portmap(n, onNFTables)}, nft: true})
	}
	return append(list, scenario{name: portsName(1) + ", dual stack", verbs: most, before: []step{bridge(dual)},
		steps: []step{portmap(1)}})
}

func filtering() (list []scenario) {
	before := []step{bridge(plain)}
	for _, s := range []scenario{
		{name: "firewall", verbs: all, steps: []step{firewall()}, quick: true},
		{name: "firewall, isolated", verbs: most,
			steps: []step{firewall(object{"ingressPolicy": "isolated"})}},
		{name: "firewall by iptables", verbs: most, steps: []step{firewall(onIPTables)}},
		{name: "bandwidth", verbs: all, steps: []step{{"bandwidth", same(Merge(ingress, egress))}}, quick: true,
			fresh: true},
		{name: "bandwidth, ingress", verbs: most, steps: []step{{"bandwidth", same(ingress)}}, fresh: true},
		{name: "bandwidth, no limits", verbs: most, steps: []step{{"bandwidth", same(nil)}}},
	} {
		s.before = before
		list = append(list, s)
	}
	return list
}

func chains() []scenario {
	chain := []step{bridge(plain, masquerade), portmap(1), firewall(), tuning()}
	list := []scenario{
		{name: chainName, verbs: most, steps: chain, quick: true},
		{name: chainName + " by iptables", verbs: most, steps: []step{bridge(plain, byIPTables),
			portmap(1, onIPTables), firewall(onIPTables), tuning()}},
		{name: chainName + " by nftables", verbs: most, steps: []step{bridge(plain, byNFTables),
			portmap(1, onNFTables), firewall(), tuning()}, nft: true},
		{name: chainName + ", dual stack", verbs: most, steps: append([]step{bridge(dual, masquerade)}, chain[1:]...)},
	}
	for _, n := range []int{1, 8, 64} {
		list = append(list, scenario{name: parallelName(n), verbs: []string{"ADD", "DEL"}, steps: chain, parallel: n})
	}
	return list
}

func same(conf object) func(int) object { return func(int) object { return conf } }

func bridge(more ...object) step {
	return step{"bridge", same(Merge(object{"bridge": "cni0", "isGateway": true}, Merge(more...)))}
}

func ptp(more ...object) step { return step{"ptp", same(Merge(more...))} }

// hostDevice takes the pod's device.
func hostDevice(conf object) step {
	return step{"host-device", func(port int) object { return Merge(object{"device": deviceName(port)}, conf) }}
}

func deviceName(port int) string { return fmt.Sprintf("dev%d", port) }

func firewall(more ...object) step { return step{"firewall", same(Merge(more...))} }

func tuning() step {
	return step{"tuning", same(object{"sysctl": object{"net.core.somaxconn": "777"}})}
}

// portmap publishes n ports from the pod's on.
func portmap(n int, more ...object) step {
	return step{"portmap", func(port int) object {
		var mappings []object
		for i := range n {
			mappings = append(mappings, object{"hostPort": port + i, "containerPort": 80 + i, "protocol": "tcp"})
		}
		return Merge(object{"capabilities": object{"portMappings": true},
			"runtimeConfig": object{"portMappings": mappings}}, Merge(more...))
	}}
}

func ipam(dual bool) object {
	if dual {
		return Merge(HostLocal("10.22.0.0/16", "fd00:22::/64"), object{"routes": []object{{"dst": "0.0.0.0/0"},
			{"dst": "::/0"}}})
	}
	return Merge(HostLocal("10.22.0.0/16"), object{"routes": []object{{"dst": "0.0.0.0/0"}}})
}
