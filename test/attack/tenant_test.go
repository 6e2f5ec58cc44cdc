package attack_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// victimMAC is the address that Calico gives every host end.
const victimMAC = "ee:ee:ee:ee:ee:ee"

// victim gives a container a pair that another network plugin made, with the indexes 77 on the host and 55 in the
// container, as a port of cni0 if asked.
func victim(n *World, port bool) *Pod {
	GinkgoHelper()
	p := NewPod("victim")
	IP(n.Host, "link add cali0 index 77 address %s type veth peer name eth0 index 55 netns %s", victimMAC, p.Name)
	if port {
		IP(n.Host, "link add cni0 type bridge")
		IP(n.Host, "link set cali0 master cni0")
	}
	return p
}

// forged is a configuration whose prevResult names the victim's host end as the tenant's, and the victim's namespace
// if that is not empty.
func forged(plugin, sandbox string) Object {
	cont := Object{"name": "eth0", "sandbox": sandbox}
	return Object{"cniVersion": "1.0.0", "name": "net", "type": plugin, "ingressRate": 8000000, "ingressBurst": 800000,
		"ipam":       Object{"type": "host-local", "subnet": "10.7.0.0/24"},
		"prevResult": Object{"cniVersion": "1.0.0", "interfaces": []Object{{"name": "cali0", "mac": victimMAC}, cont}}}
}

var _ = Describe("a prevResult that names another container's host end", Label("kernel", "forged-result"), func() {
	for _, plugin := range []string{"ptp", "bridge", "bandwidth"} {
		for name, path := range map[string]func(*Pod) string{
			"with the tenant's namespace": func(p *Pod) string { return p.Netns },
			"without a namespace":         func(*Pod) string { return "" },
		} {
			It(fmt.Sprintf("has DEL of %s remove nothing, %s", plugin, name), func() {
				n, tenant := NewNode(), NewPod("tenant")
				v := victim(n, plugin == "bridge")
				if plugin == "bandwidth" {
					IP(n.Host, "link set cali0 up")
					limit := "qdisc add dev cali0 root handle 1: tbf rate 8mbit burst 100000 latency 25ms"
					n.Cmd("tc", strings.Fields(limit)...)
				}
				state := func() string { return n.Snapshot("links") + n.Cmd("tc", "qdisc") + v.Snapshot("links") }
				before := state()
				sandboxes := []string{"", tenant.Netns}
				if plugin == "bandwidth" {
					sandboxes = append(sandboxes, v.Netns)
				}
				for _, sandbox := range sandboxes {
					a := n.Invoke(plugin, Call{Command: "DEL", ID: "tenant", Netns: path(tenant),
						Conf: forged(plugin, sandbox)})
					Expect(a.Verdict("DEL")).To(Succeed())
					Expect(state()).To(Equal(before))
				}
			})
		}
	}

	It("has DEL remove nothing by the path of a namespace in which a process runs", func() {
		n := NewNode()
		v := victim(n, false)
		before := n.Snapshot("links")
		process := v.Start(nstest.Program{Path: "sleep", Args: []string{"1000"}}).Process
		del := func() {
			a := n.Invoke("ptp", Call{Command: "DEL", ID: "tenant", Conf: forged("ptp", v.Netns)})
			Expect(a.Code).To(BeZero(), a.Stdout)
		}
		del()
		Expect(n.Snapshot("links")).To(Equal(before))
		Expect(process.Kill()).To(Succeed())
		Eventually(func() string { del(); return n.Snapshot("links") }).ShouldNot(Equal(before), "an ended container's")
	})

	It("has DEL remove nothing by a path below /proc either", func() {
		n := NewNode()
		v := victim(n, false)
		before := n.Snapshot("links")
		process := v.Start(nstest.Program{Path: "sleep", Args: []string{"1000"}}).Process
		sandbox := fmt.Sprintf("/proc/%d/ns/net", process.Pid)
		a := n.Invoke("ptp", Call{Command: "DEL", ID: "tenant", Conf: forged("ptp", sandbox)})
		Expect(a.Code).To(BeZero(), a.Stdout)
		Expect(n.Snapshot("links")).To(Equal(before))
	})
})

var _ = Describe("a container that chooses the indexes of its links", Label("kernel", "forged-index"), func() {
	It("gives another container no limit of bandwidth", func() {
		n, rogue := NewNode(), NewPod("rogue")
		victim(n, false)
		IP(n.Host, "link set cali0 up")
		// Both ends are in the rogue's namespace.
		IP(rogue.Host, "link add eth0 index 55 type veth peer name x index 77")
		before := n.Snapshot("links") + n.Cmd("tc", "qdisc")
		a := n.Invoke("bandwidth", Call{Command: "ADD", ID: "rogue", Netns: rogue.Netns,
			Conf: forged("bandwidth", rogue.Netns)})
		Expect(a.Failed(7)).To(ContainSubstring("prevResult.interfaces"))
		Expect(n.Snapshot("links") + n.Cmd("tc", "qdisc")).To(Equal(before))
	})
})

var _ = Describe("a configuration that names another container's link", Label("kernel", "owned-link"), func() {
	DescribeTable("is refused, and the link stays as it is", func(plugin string, keys func(link string) Object) {
		n := NewNode()
		v := n.Up(NewPod("victim"), append(Usual("").Only("bridge"), Step{Plugin: "bandwidth",
			Keys: Object{"egressRate": 8000000, "egressBurst": 800000}}))
		before := n.Snapshot("links") + v.Snapshot("links")
		hostEnd := v.Decode().Interfaces[1].Name
		for _, link := range append(Names(n.Host, "ifb"), hostEnd) {
			tenant := NewPod("tenant")
			a := n.Invoke(plugin, Call{Command: "ADD", ID: "tenant", Netns: tenant.Netns,
				Conf: Merge(Object{"cniVersion": "1.0.0", "name": "other", "type": plugin}, keys(link))})
			Expect(a.Failed(103)).To(ContainSubstring(`"` + link + `": belongs to network "net", container "victim"`))
			Expect(n.Snapshot("links") + v.Snapshot("links")).To(Equal(before))
		}
		n.Must("CHECK", v, Usual("").Only("bridge"))
	},
		Entry("host-device", "host-device", func(link string) Object { return Object{"device": link} }),
		Entry("macvlan", "macvlan", func(link string) Object { return Object{"master": link} }),
		Entry("macvlan, passthru", "macvlan", func(link string) Object {
			return Object{"master": link, "mode": "passthru"}
		}),
		Entry("ipvlan", "ipvlan", func(link string) Object {
			return Object{"master": link, "ipam": HostLocal("10.89.0.0/24")}
		}),
		Entry("vlan", "vlan", func(link string) Object { return Object{"master": link, "vlanId": 5} }),
	)
})

var _ = Describe("a host end of another network plugin", Label("kernel", "owned-link"), func() {
	DescribeTable("is refused, and its container stays connected", func(plugin string, keys Object, port bool) {
		n, tenant := NewNode(), NewPod("tenant")
		v := victim(n, port)
		v.IP("addr add 10.7.0.9/32 dev eth0", "link set eth0 up")
		n.IP("link set cali0 up")
		if !port {
			n.IP("route add 10.7.0.9/32 dev cali0")
		}
		before := n.Snapshot("links", "routes") + v.Snapshot("links")
		a := n.Invoke(plugin, Call{Command: "ADD", ID: "tenant", Netns: tenant.Netns,
			Conf: Merge(Object{"cniVersion": "1.0.0", "name": "other", "type": plugin}, keys)})
		Expect(a.Failed(103)).To(ContainSubstring(`"cali0": connects a container of another network plugin`))
		Expect(n.Snapshot("links", "routes") + v.Snapshot("links")).To(Equal(before))
	},
		Entry("host-device, with a route", "host-device", Object{"device": "cali0"}, false),
		Entry("host-device, of a bridge", "host-device", Object{"device": "cali0"}, true),
		Entry("macvlan, with a route", "macvlan", Object{"master": "cali0", "mode": "passthru"}, false),
		Entry("vlan, of a bridge", "vlan", Object{"master": "cali0", "vlanId": 5}, true),
	)

	It("is not taken for one if a router is behind it", func() {
		n, p := NewNode(), NewPod("one")
		victim(n, false).IP("link set eth0 up", "addr add 169.254.1.1/32 dev eth0")
		n.IP("link set cali0 up", "route add 169.254.1.1/32 dev cali0", "route add default via 169.254.1.1 dev cali0")
		n.Up(p, List{{Plugin: "macvlan", Keys: Object{"master": "cali0"}}})
	})
})

var _ = Describe("a gateway in the subnet of the host's router", Label("kernel", "router-subnet"), func() {
	DescribeTable("is refused, and the host keeps its connection", func(plugin, address, gateway string) {
		n, tenant := NewNode(), NewPod("tenant")
		nstest.NewOutside(n.Host)
		n.IP("route add default via 192.0.2.2")
		before := n.Snapshot("addresses", "routes")
		a := n.Invoke(plugin, Call{Command: "ADD", ID: "tenant", Netns: tenant.Netns, Conf: Object{
			"cniVersion": "1.0.0", "name": "other", "type": plugin, "bridge": "brx", "isGateway": true,
			"ipam": Object{"type": "static", "addresses": []Object{{"address": address, "gateway": gateway}}}}})
		Expect(a.Failed(103)).To(ContainSubstring("the host's own router 192.0.2.2 is in this subnet"))
		n.Run(nstest.Program{Path: "ip", Args: []string{"link", "del", "brx"}})
		Expect(n.Snapshot("addresses", "routes")).To(Equal(before))
		Expect(Ping(n.Host, "192.0.2.2")).To(BeTrue())
	},
		Entry("bridge, the router itself", "bridge", "192.0.2.5/24", "192.0.2.2"),
		Entry("bridge, the same subnet", "bridge", "192.0.2.5/24", "192.0.2.200"),
		Entry("bridge, a part of the subnet", "bridge", "192.0.2.5/28", "192.0.2.9"),
		Entry("bridge, the router itself in a larger subnet", "bridge", "192.0.2.5/16", "192.0.2.2"),
		Entry("ptp, the router itself", "ptp", "192.0.2.5/24", "192.0.2.2"),
	)

	DescribeTable("is served where the host still reaches the router", func(
		plugin, address, gateway, router string,
	) {
		n, p := NewNode(), NewPod("one")
		nstest.NewOutside(n.Host)
		n.IP("route add default via " + router + " dev ext")
		a := n.Invoke(plugin, Call{Command: "ADD", ID: "one", Netns: p.Netns, Conf: Object{"cniVersion": "1.0.0",
			"name": "net", "type": plugin, "bridge": "brx", "isGateway": true,
			"ipam": Object{"type": "static", "addresses": []Object{{"address": address, "gateway": gateway}}}}})
		Expect(a.Code).To(BeZero(), a.Stdout)
		Expect(n.Cmd("ip", "route", "get", router, "oif", "ext")).To(ContainSubstring(" dev ext "))
		Expect(n.Cmd("ip", "route", "get", "198.51.100.1")).To(Or(ContainSubstring(" dev ext "), BeEmpty()))
	},
		Entry("bridge, a larger subnet", "bridge", "192.0.128.5/16", "192.0.128.1", "192.0.2.2"),
		Entry("bridge, link-local addresses", "bridge", "169.254.7.5/16", "169.254.7.1", "192.0.2.2"),
	)

	It("is served for link-local addresses, which each link has", func() {
		n, p := NewNode(), NewPod("one")
		nstest.NewOutside(n.Host)
		n.IP("route add default via fe80::1 dev ext")
		a := n.Invoke("ptp", Call{Command: "ADD", ID: "one", Netns: p.Netns, Conf: Object{"cniVersion": "1.0.0",
			"name": "net", "type": "ptp", "ipam": Object{"type": "static",
				"addresses": []Object{{"address": "fd00:9::5/64", "gateway": "fe80::1"}}}}})
		Expect(a.Code).To(BeZero(), a.Stdout)
	})

	It("is served where the bridge is the way to the router", func() {
		n, p := NewNode(), NewPod("one")
		out := nstest.NewHost()
		n.IP("link add brx up type bridge")
		nstest.Wire(nstest.End{Host: n.Host, Name: "uplink"},
			nstest.End{Host: out, Name: "eth0", Addrs: []string{"192.0.2.2/24"}})
		n.IP("link set uplink master brx", "addr add 192.0.2.1/24 dev brx", "route add default via 192.0.2.2")
		a := n.Invoke("bridge", Call{Command: "ADD", ID: "one", Netns: p.Netns, Conf: Object{"cniVersion": "1.0.0",
			"name": "lan", "type": "bridge", "bridge": "brx", "isGateway": true, "forceAddress": false, "ipam": Object{
				"type": "static", "addresses": []Object{{"address": "192.0.2.9/24", "gateway": "192.0.2.1"}}}}})
		Expect(a.Code).To(BeZero(), a.Stdout)
	})
})
