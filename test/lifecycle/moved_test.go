package lifecycle_test

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// routes are IPAM's, behind an address of each family with these gateways.
func routes(gw4, gw6 string, routes ...Object) Object {
	return Object{"ipam": Object{"type": "static", "routes": routes, "addresses": []Object{
		{"address": "10.88.0.5/24", "gateway": gw4}, {"address": "fd00:88::5/64", "gateway": gw6}}}}
}

// everywhere are default routes and others, with these keys.
func everywhere(keys Object) Object {
	var all []Object
	for _, dst := range []string{"0.0.0.0/0", "::/0", "10.99.0.0/16", "fd99::/48"} {
		all = append(all, Merge(Object{"dst": dst}, keys))
	}
	return routes("10.88.0.1", "fd00:88::1", all...)
}

// moved is a network whose routes a later plugin moves.
type moved struct {
	name     string
	main     Object // keys of the plugin that makes the interface
	sbr      Object // keys of sbr
	notOfPTP bool   // whose only way is the host
}

func movedNetworks() []moved {
	full := everywhere(Object{"mtu": 1400, "advmss": 1300, "priority": 5})
	asked := Object{"gateways": []string{"10.88.0.9", "fd00:88::9"}}
	return []moved{
		{name: "that say nothing", main: everywhere(nil)},
		{name: "with all that a result can say", main: everywhere(Object{"mtu": 1400, "advmss": 1300, "priority": 5,
			"table": 254, "scope": 0})},
		{name: "of table 0", main: everywhere(Object{"table": 0})},
		{name: "of scope link", main: routes("10.88.0.1", "fd00:88::1", Object{"dst": "0.0.0.0/0", "scope": 253})},
		{name: "through their own gateways", main: routes("10.88.0.1", "fd00:88::1",
			Object{"dst": "0.0.0.0/0", "gw": "10.88.0.7"}, Object{"dst": "::/0", "gw": "fd00:88::7"}), notOfPTP: true},
		{name: "where all is on the link", main: routes("0.0.0.0", "fd00:88::1", Object{"dst": "0.0.0.0/0"}),
			notOfPTP: true},
		{name: "whose gateways are others", main: everywhere(nil), sbr: asked},
		{name: "whose gateways are none", main: everywhere(nil), sbr: Object{"gateways": []string{"0.0.0.0", "::"}}},
		{name: "beside hints", main: full, sbr: Merge(asked, Object{"addSourceHints": true})},
		{name: "that stay", main: full, sbr: Merge(asked, Object{"table": 100})},
	}
}

var _ = Describe("CHECK passes after a later plugin moved the routes", Label("kernel", "check-before"), func() {
	passes := func(m moved, mover Step) {
		GinkgoHelper()
		w := NewNode()
		Uplink(w.Host)
		for _, main := range []Step{{Plugin: "bridge", Keys: Object{"bridge": "cni0"}}, {Plugin: "ptp"},
			{Plugin: "macvlan", Keys: Object{"master": "up0"}}} {
			if main.Plugin == "ptp" && m.notOfPTP {
				continue
			}
			list := List{{Plugin: main.Plugin, Keys: Merge(main.Keys, m.main)}, mover}
			w.Must("CHECK", w.Up(NewPod(main.Plugin), list), list)
		}
	}
	for _, m := range movedNetworks() {
		It(m.name+", by sbr", func() {
			nstest.Need("macvlan")
			passes(m, Step{Plugin: "sbr", Keys: m.sbr})
		})
		if m.sbr == nil {
			It(m.name+", by vrf", func() {
				nstest.Need("macvlan", "vrf")
				passes(m, Step{Plugin: "vrf", Keys: Object{"vrfname": "red"}})
			})
		}
	}
})
