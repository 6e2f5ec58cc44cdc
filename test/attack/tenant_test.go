package attack_test

import (
	"encoding/json"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// victimMAC is the address that Calico gives every host end.
const victimMAC = "ee:ee:ee:ee:ee:ee"

// victim gives a container a pair that another network plugin created, with the indexes 77 on the host and 55 in the
// container, as a port of cni0 if port is true.
func victim(n *World, port bool) *Pod {
	GinkgoHelper()
	p := NewPod("victim")
	IP(n.Host, "link add veth0 index 77 address %s type veth peer name eth0 index 55 netns %s", victimMAC, p.Name)
	if port {
		IP(n.Host, "link add cni0 type bridge")
		IP(n.Host, "link set veth0 master cni0")
	}
	return p
}

// tenantADD attaches a container of the tenant to network "other".
func tenantADD(n *World, plugin string, keys Object) Answer {
	GinkgoHelper()
	return n.Invoke(plugin, Call{Command: "ADD", ID: "tenant", Netns: NewPod("tenant").Netns,
		Conf: Merge(Object{"cniVersion": "1.0.0", "name": "other", "type": plugin}, keys)})
}

// forged returns a configuration whose prevResult names the victim's host end as the tenant's, and the victim's
// namespace if that is not empty.
func forged(plugin, sandbox string) Object {
	cont := Object{"name": "eth0", "sandbox": sandbox}
	return Object{"cniVersion": "1.0.0", "name": "net", "type": plugin, "ingressRate": 8000000, "ingressBurst": 800000,
		"ipam":       Object{"type": "host-local", "subnet": "10.7.0.0/24"},
		"prevResult": Object{"cniVersion": "1.0.0", "interfaces": []Object{{"name": "veth0", "mac": victimMAC}, cont}}}
}

var _ = Describe("a prevResult that names another container's host end", Label("kernel", "forged-result"), func() {
	for _, plugin := range []string{"ptp", "bridge", "bandwidth"} {
		for name, path := range map[string]func(*Pod) string{
			"with the tenant's namespace": func(p *Pod) string { return p.Netns },
			"without a namespace":         func(*Pod) string { return "" },
		} {
			It(fmt.Sprintf("makes DEL of %s remove nothing, %s", plugin, name), func() {
				n, tenant := NewNode(), NewPod("tenant")
				v := victim(n, plugin == "bridge")
				if plugin == "bandwidth" {
					IP(n.Host, "link set veth0 up")
					limit := "qdisc add dev veth0 root handle 1: tbf rate 8mbit burst 100000 latency 25ms"
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

	It("makes DEL remove nothing if it names a namespace in which a process runs", func() {
		n := NewNode()
		v := victim(n, false)
		before := n.Snapshot("links")
		process := v.Start(nstest.Program{Path: "sleep", Args: []string{"1000"}}).Process
		leaves := func(sandbox string) string {
			a := n.Invoke("ptp", Call{Command: "DEL", ID: "tenant", Conf: forged("ptp", sandbox)})
			Expect(a.Code).To(BeZero(), a.Stdout)
			return n.Snapshot("links")
		}
		Expect(leaves(fmt.Sprintf("/proc/%d/ns/net", process.Pid))).To(Equal(before))
		Expect(leaves(v.Netns)).To(Equal(before))
		Expect(process.Kill()).To(Succeed())
		Eventually(leaves).WithArguments(v.Netns).ShouldNot(Equal(before), "the container has ended")
	})
})

var _ = Describe("a container that chooses the indexes of its links", Label("kernel", "forged-index"), func() {
	It("cannot limit the bandwidth of another container", func() {
		n, rogue := NewNode(), NewPod("rogue")
		victim(n, false)
		IP(n.Host, "link set veth0 up")
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
	DescribeTable("is refused without a change of the link:", func(plugin string, keys func(link string) Object) {
		n := NewNode()
		v := n.Up(NewPod("victim"), append(Usual("").Only("bridge"), Step{Plugin: "bandwidth",
			Keys: Object{"egressRate": 8000000, "egressBurst": 800000}}))
		before := n.Snapshot("links") + v.Snapshot("links")
		hostEnd := v.Decode().Interfaces[1].Name
		for _, link := range append(Names(n.Host, "ifb"), hostEnd) {
			Expect(tenantADD(n, plugin, keys(link)).Failed(103)).To(ContainSubstring(
				`"` + link + `": belongs to network "net", container "victim"`))
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

var _ = Describe("a VLAN gateway", Label("kernel", "owned-link"), func() {
	DescribeTable("stays on the host with", func(plugin string, keys Object, link string) {
		n := NewNode()
		n.IP("link add cni0 type bridge", "link set cni0 up", "link add cni0.7 type veth peer name port7",
			"link set port7 master cni0 up", "link set cni0.7 up")
		before := n.Snapshot("links")
		Expect(tenantADD(n, plugin, keys).Failed(103)).To(ContainSubstring(
			`"` + link + `": belongs to the VLAN gateway "cni0.7" of bridge "cni0"`))
		Expect(n.Snapshot("links")).To(Equal(before))
	},
		Entry("host-device", "host-device", Object{"device": "cni0.7"}, "cni0.7"),
		Entry("host-device, its port", "host-device", Object{"device": "port7"}, "port7"),
		Entry("macvlan, passthru", "macvlan", Object{"master": "cni0.7", "mode": "passthru"}, "cni0.7"),
	)

	It("is not any pair whose name begins with the bridge's", func() {
		n, pod := NewNode(), NewPod("pod")
		n.IP("link add cni0 type bridge", "link add cni0.vm type veth peer name port7", "link set port7 master cni0")
		list := List{{Plugin: "host-device", Keys: Object{"device": "cni0.vm"}}}
		n.Up(pod, list)
		n.Must("DEL", pod, list)
	})

	Describe("of another network", func() {
		var n *World
		var v, tenant *Pod
		BeforeEach(func() {
			nstest.Need("vlan_filtering")
			n, v, tenant = NewNode(), NewPod("victim"), NewPod("tenant")
			n.Spoiled = true // the gateways stay
			v.Network, tenant.Network = "cluster", "tenant"
			n.Up(v, Usual("").Only("bridge").With("bridge", Object{"vlan": 7}))
			Expect(Ping(n.Host, v.Addr())).To(BeTrue())
		})
		DescribeTable("keeps its addresses, and its containers keep theirs,", func(keys Object, reason string) {
			list := List{{Plugin: "bridge", Keys: Merge(Object{"bridge": "cni0", "vlan": 7}, keys)}}
			before := n.Snapshot("addresses")
			Expect(n.Chain("ADD", tenant, list).Failed(103)).To(ContainSubstring(reason))
			Expect(n.Snapshot("addresses")).To(Equal(before))
			n.Must("DEL", tenant, list)
			Expect(Ping(n.Host, v.Addr())).To(BeTrue())
		},
			Entry("with forceAddress",
				Object{"isGateway": true, "forceAddress": true, "ipam": static("10.99.0.5/24", "10.99.0.1")},
				`is in use by network "cluster", container "victim"`),
			Entry("with the address of a container", Object{"ipam": static("10.88.0.2/24", "")},
				`address 10.88.0.2: network "cluster", container "victim"`),
		)

		It("does not reserve its addresses in another VLAN", func() {
			list := List{{Plugin: "bridge", Keys: Object{"bridge": "cni0", "vlan": 8,
				"ipam": static("10.88.0.2/24", "")}}}
			n.Up(tenant, list)
			Expect(Ping(n.Host, v.Addr())).To(BeTrue())
			n.Must("DEL", tenant, list)
		})

		It("does not reserve an address that a trunk has in its own VLAN", func() {
			trunk := List{{Plugin: "bridge", Keys: Object{"bridge": "cni0", "vlan": 8, "vlanTrunk": []Object{{"id": 7}},
				"ipam": static("10.88.0.9/24", "")}}}
			n.Up(tenant, trunk)
			n.IP("neigh replace 10.88.0.9 lladdr 02:00:00:00:00:09 dev cni0.7")
			third := NewPod("third")
			third.Network = "third"
			list := List{{Plugin: "bridge", Keys: Object{"bridge": "cni0", "vlan": 7,
				"ipam": static("10.88.0.9/24", "")}}}
			n.Up(third, list)
			n.Must("DEL", third, list)
			n.Must("DEL", tenant, trunk)
		})
	})

	It("is not a bridge to which a tenant gave its name", func() {
		nstest.Need("vlan_filtering")
		n, tenant, v := NewNode(), NewPod("tenant"), NewPod("victim")
		n.Spoiled = true // the bridges stay
		tenant.Network = "tenant"
		n.Up(tenant, List{{Plugin: "bridge", Keys: Object{"bridge": "cni0.7", "ipam": static("10.99.0.5/24", "")}}})
		vlan := Usual("").Only("bridge").With("bridge", Object{"vlan": 7})
		Expect(n.Chain("ADD", v, vlan).Failed(103)).To(ContainSubstring(
			`gateway of vlan 7: the name "cni0.7" is taken by a bridge of another network`))
		n.Must("DEL", v, vlan)
	})

	DescribeTable("is a bridge of that name if an administrator connected it", func(steps ...string) {
		nstest.Need("vlan_filtering")
		n, v := NewNode(), NewPod("victim")
		n.Spoiled = true // the bridges stay
		n.IP(append([]string{"link add cni0 up type bridge vlan_filtering 1", "link add cni0.7 up type bridge"},
			steps...)...)
		vlan := Usual("").Only("bridge").With("bridge", Object{"vlan": 7})
		n.Up(v, vlan)
		Expect(n.Cmd("ip", "-br", "addr", "show", "dev", "cni0.7")).To(ContainSubstring("10.88.0.1/"))
		n.Must("DEL", v, vlan)
	},
		Entry("by a pair", "link add p7 up type veth peer name q7", "link set p7 master cni0.7",
			"link set q7 up master cni0"),
		Entry("by a port of another kind", "link add d7 up type dummy", "link set d7 master cni0.7"),
	)
})

var _ = Describe("a host end of another network plugin", Label("kernel", "owned-link"), func() {
	DescribeTable("is refused, and its container stays connected", func(plugin string, keys Object, port bool) {
		n := NewNode()
		v := victim(n, port)
		v.IP("addr add 10.7.0.9/32 dev eth0", "link set eth0 up")
		n.IP("link set veth0 up")
		if !port {
			n.IP("route add 10.7.0.9/32 dev veth0")
		}
		before := n.Snapshot("links", "routes") + v.Snapshot("links")
		Expect(tenantADD(n, plugin, keys).Failed(103)).To(ContainSubstring(
			`"veth0": connects a container of another network plugin`))
		Expect(n.Snapshot("links", "routes") + v.Snapshot("links")).To(Equal(before))
	},
		Entry("host-device, with a route", "host-device", Object{"device": "veth0"}, false),
		Entry("host-device, of a bridge", "host-device", Object{"device": "veth0"}, true),
		Entry("macvlan, with a route", "macvlan", Object{"master": "veth0", "mode": "passthru"}, false),
		Entry("vlan, of a bridge", "vlan", Object{"master": "veth0", "vlanId": 5}, true),
	)

	It("is not assumed if a router is behind the link", func() {
		n, p := NewNode(), NewPod("one")
		victim(n, false).IP("link set eth0 up", "addr add 169.254.1.1/32 dev eth0")
		n.IP("link set veth0 up", "route add 169.254.1.1/32 dev veth0", "route add default via 169.254.1.1 dev veth0")
		n.Up(p, List{{Plugin: "macvlan", Keys: Object{"master": "veth0"}}})
	})
})

var _ = Describe("a gateway in the subnet of the host's router", Label("kernel", "router-subnet"), func() {
	// add attaches a container to a bridge or a link whose gateway is on the host.
	add := func(n *World, plugin, address, gateway string) Answer {
		GinkgoHelper()
		return tenantADD(n, plugin, Object{"bridge": "brx", "isGateway": true, "ipam": static(address, gateway)})
	}
	DescribeTable("is refused, and the host keeps its connection", func(plugin, address, gateway string) {
		n := NewNode()
		nstest.NewOutside(n.Host)
		n.IP("route add default via 192.0.2.2")
		before := n.Snapshot("addresses", "routes")
		Expect(add(n, plugin, address, gateway).Failed(103)).To(ContainSubstring(
			"the host's own router 192.0.2.2 is in this subnet"))
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

	DescribeTable("is accepted if the host still reaches the router:", func(
		plugin, address, gateway, router string,
	) {
		n := NewNode()
		nstest.NewOutside(n.Host)
		n.IP("route add default via " + router + " dev ext")
		a := add(n, plugin, address, gateway)
		Expect(a.Code).To(BeZero(), a.Stdout)
		Expect(n.Cmd("ip", "route", "get", router, "oif", "ext")).To(ContainSubstring(" dev ext "))
		Expect(n.Cmd("ip", "route", "get", "198.51.100.1")).To(Or(ContainSubstring(" dev ext "), BeEmpty()))
	},
		Entry("bridge, a larger subnet", "bridge", "192.0.128.5/16", "192.0.128.1", "192.0.2.2"),
		Entry("bridge, link-local addresses", "bridge", "169.254.7.5/16", "169.254.7.1", "192.0.2.2"),
	)

	It("is accepted for link-local addresses, which each link has", func() {
		n := NewNode()
		nstest.NewOutside(n.Host)
		n.IP("route add default via fe80::1 dev ext")
		a := add(n, "ptp", "fd00:9::5/64", "fe80::1")
		Expect(a.Code).To(BeZero(), a.Stdout)
	})

	It("is accepted if the host reaches the router through the bridge", func() {
		n, out := NewNode(), nstest.NewHost()
		n.IP("link add brx up type bridge")
		nstest.Wire(nstest.End{Host: n.Host, Name: "uplink"},
			nstest.End{Host: out, Name: "eth0", Addrs: []string{"192.0.2.2/24"}})
		n.IP("link set uplink master brx", "addr add 192.0.2.1/24 dev brx", "route add default via 192.0.2.2")
		a := add(n, "bridge", "192.0.2.9/24", "192.0.2.1")
		Expect(a.Code).To(BeZero(), a.Stdout)
	})
})

var _ = Describe("a policy for a bridge that another network uses", Label("kernel", "shared-bridge"), func() {
	var n *World
	var a, b, tenant *Pod
	const bridge = "cni0"
	// tenants returns the tenant's list, with a policy. Its bridge is the victims' unless more has another one.
	tenants := func(backend, policy string, more Object) List {
		first := Merge(Object{"bridge": bridge, "ipam": static("10.88.0.77/24", "")}, more)
		return List{{Plugin: "bridge", Keys: first},
			{Plugin: "firewall", Keys: Object{"backend": backend, "ingressPolicy": policy}}}
	}
	cluster := Usual("").Only("bridge")
	talk := func() error {
		_, err := a.AskWithin(nstest.Patience(soon), "tcp", b.Addr()+":81")
		return err
	}
	// administers writes a list into the administrator's directory.
	administers := func(name string, entries List) {
		GinkgoHelper()
		conf := Object{"cniVersion": "1.0.0", "name": name}
		var plugins []Object
		for _, e := range entries {
			plugins = append(plugins, Merge(e.Keys, Object{"type": e.Plugin}))
		}
		conf["plugins"] = plugins
		text := string(nstest.Must(json.Marshal(conf)))
		n.Cmd("sh", "-ec", "mount -t tmpfs -o mode=755 tmpfs /etc; mkdir -p /etc/cni/net.d; "+
			"cat >/etc/cni/net.d/"+name+".conflist <<'END'\n"+text+"\nEND\n")
	}
	BeforeEach(func() {
		nstest.Need("iptables")
		n = NewNode()
		a, b, tenant = NewPod("a"), NewPod("b"), NewPod("tenant")
		a.Network, b.Network, tenant.Network = "cluster", "cluster", "tenant"
	})
	attached := func() {
		GinkgoHelper()
		n.Up(a, cluster)
		n.Up(b, cluster)
		b.Serve("tcp", b.Addr()+":81")
		Expect(talk()).To(Succeed())
	}
	refused := func(list List, holder string) {
		GinkgoHelper()
		said := n.Chain("ADD", tenant, list).Failed(103)
		Expect(said).To(ContainSubstring("also connects " + holder))
		Expect(said).To(ContainSubstring("which the policy would restrict; use another bridge, or a list in"))
		Expect(said).To(ContainSubstring("trustedDirs in /etc/cni/hawser/policy.json"))
		n.Must("DEL", tenant, list)
	}

	for _, backend := range []string{"nftables", "iptables"} {
		for _, policy := range []string{"isolated", "same-bridge"} {
			It("is refused, and the network's containers still reach each other: "+policy+", "+backend, func() {
				attached()
				before := n.Snapshot("nftables", "iptables-legacy")
				refused(tenants(backend, policy, nil), `network "cluster", container "a"`)
				Expect(n.Snapshot("nftables", "iptables-legacy")).To(Equal(before))
				Expect(talk()).To(Succeed())
			})
		}
	}

	It("cuts the network's containers off with the reference", Label("slow"), func() {
		n.Spoiled = true
		n.SetBridgeNF(true)
		attached()
		theirs := referenceOn(n)
		theirs.Chain("ADD", tenant, tenants("iptables", "isolated", nil))
		Expect(talk()).NotTo(Succeed())
	})

	It("is refused even if the administrator's network has no container yet", func() {
		administers("cluster", cluster)
		n.IP("link add cni0 type bridge")
		refused(tenants("", "isolated", nil), `network "cluster" of the administrator`)
	})

	It("is accepted for the containers of its own network, whose name is too long for a mark", func() {
		a.Network = strings.Repeat("n", 70)
		tenant.Network = a.Network
		n.Up(a, cluster)
		n.Up(tenant, tenants("", "same-bridge", nil))
	})

	It("is refused for a network that only has the name of an administrator's network", func() {
		attached()
		administers("cluster", cluster.With("bridge", Object{"bridge": "bry"}))
		tenant.Network = "cluster"
		refused(tenants("", "isolated", nil), `network "cluster", container "a"`)
	})

	DescribeTable("is refused in a VLAN", func(vlan int) {
		nstest.Need("vlan_filtering")
		n.Spoiled = true // the gateway of the VLAN stays as long as the bridge
		n.Up(a, cluster.With("bridge", Object{"vlan": 6}))
		refused(tenants("", "isolated", Object{"vlan": vlan}), `network "cluster", container "a"`)
	},
		Entry("if the network is in it", 6),
		Entry("if the address is of the network's subnet", 5),
	)

	It("is the administrator's choice only if the list can be read, and the error names the file otherwise", func() {
		attached()
		own := tenants("", "isolated", nil)
		administers("tenant", own)
		n.Cmd("sh", "-ec", "cd /etc/cni/net.d; echo '{' >0-broken.conf; ln -s 1-loop.conf 1-loop.conf")
		n.Up(tenant, own)
		n.Must("DEL", tenant, own)

		const file = "/etc/cni/net.d/tenant.conflist"
		n.Cmd("sh", "-ec", "rm /etc/cni/net.d/?-*; mv "+file+" /etc/whole; ln -s tenant.conflist "+file)
		tenant.Result = nil
		Expect(n.Chain("ADD", tenant, own).Failed(5)).To(ContainSubstring(
			`ingressPolicy: "isolated": networks of the administrator: open ` + file + ": too many levels"))
		n.Must("DEL", tenant, own)
		n.Cmd("sh", "-ec", "rm "+file+"; head -c 20 /etc/whole >"+file)
		Expect(n.Chain("ADD", tenant, own).Failed(103)).To(ContainSubstring(
			`container "a", interface "eth0", which the policy would restrict; use another bridge, or a list in ` +
				"a directory of the administrator (trustedDirs in " +
				"/etc/cni/hawser/policy.json, by default /etc/cni/net.d); " + file +
				": not valid JSON: unexpected EOF"))
		n.Must("DEL", tenant, own)
	})

	DescribeTable("is the administrator's choice against other networks,", func(first ...Step) {
		attached()
		own := tenants("", "isolated", nil)
		administers("tenant", append(first, own[len(own)-1]))
		n.Up(tenant, own)
		n.Must("DEL", tenant, own)
	},
		Entry("for the bridge plugin", Step{Plugin: "bridge"}),
		Entry("for flannel's delegate", Step{Plugin: "flannel"}),
	)

	It("is the administrator's choice in a directory that the policy for tenants names", func() {
		attached()
		own := tenants("", "same-bridge", nil)
		administers("tenant", own)
		n.Cmd("mv", "/etc/cni/net.d", "/etc/lists")
		refused(own, `network "cluster", container "a"`)
		n.Cmd("sh", "-ec", "mkdir -p /etc/cni/hawser; "+
			`echo '{"trustedDirs": ["/etc/lists"]}' >/etc/cni/hawser/policy.json`)
		tenant.Result = nil
		n.Up(tenant, own)
		n.Must("DEL", tenant, own)
	})

	DescribeTable("is accepted if it harms no container", func(feature string, own Object, policy string, more Object) {
		if feature != "" {
			nstest.Need(feature)
			n.Spoiled = true // the gateways of the VLANs stay as long as the bridge
		}
		list := cluster.With("bridge", own)
		if policy != "" {
			list = append(list, Step{Plugin: "firewall", Keys: Object{"ingressPolicy": policy}})
		}
		n.Up(a, list)
		theirs := tenants("", "isolated", more)
		n.Up(tenant, theirs)
		n.Must("DEL", tenant, theirs)
		n.Must("DEL", a, list)
	},
		Entry("in another VLAN", "vlan_filtering", Object{"vlan": 6}, "",
			Object{"vlan": 5, "isGateway": true, "ipam": static("10.99.0.5/24", "10.99.0.1")}),
		Entry("on another bridge", "", Object{}, "", Object{"bridge": "brx"}),
		Entry("if the bridge has the policy", "", Object{}, "isolated", Object{}),
	)
})

var _ = Describe("an ipvlan with the address of another network's container", Label("kernel", "taken-address"), func() {
	var n *World
	var v, tenant *Pod
	var router *nstest.Host
	isReached := func() error {
		_, err := router.AskWithin(nstest.Patience(soon), "tcp", v.Addr()+":81")
		return err
	}
	attack := List{{Plugin: "ipvlan", Keys: Object{"master": "ext", "ipam": static("10.88.0.2/24", "")}}}
	BeforeEach(func() {
		nstest.Need("ipvlan")
		n, v, tenant = NewNode(), NewPod("victim"), NewPod("tenant")
		v.Network, tenant.Network = "cluster", "tenant"
		router = nstest.NewOutside(n.Host)
		router.IP("route add 10.88.0.0/24 via 192.0.2.1")
		n.IP("route add default via 192.0.2.2")
		n.Up(v, Usual("").Only("bridge").With("bridge", Object{"ipMasq": false}))
		v.Serve("tcp", v.Addr()+":81")
		Expect(isReached()).To(Succeed())
	})

	It("is refused, and the container stays reachable from outside", func() {
		Expect(n.Chain("ADD", tenant, attack).Failed(103)).To(ContainSubstring(
			`address 10.88.0.2: network "cluster", container "victim"`))
		Expect(isReached()).To(Succeed())
		n.Must("DEL", tenant, attack)
	})

	It("receives the container's packets with the reference", Label("slow"), func() {
		n.Spoiled = true
		referenceOn(n).Chain("ADD", tenant, attack)
		Expect(isReached()).NotTo(Succeed())
	})
})

var _ = DescribeTable("an address behind several routers is assigned", Label("kernel", "several-routers"),
	func(plugin, address, gateway string, commands ...string) {
		if plugin == "ipvlan" {
			nstest.Need("ipvlan")
		}
		n, p := NewNode(), NewPod("pod")
		nstest.NewOutside(n.Host)
		n.IP(commands...)
		list := List{{Plugin: plugin, Keys: Object{"ipam": static(address, gateway)}}}
		if plugin == "ipvlan" {
			list[0].Keys["master"] = "ext"
		}
		n.Up(p, list)
		n.Must("DEL", p, list)
	},
	Entry("by ptp", "ptp", "10.1.0.5/24", "10.1.0.1",
		"route add 10.0.0.0/8 nexthop via 192.0.2.2 nexthop via 192.0.2.3"),
	Entry("by ptp, in IPv6", "ptp", "2001:db8:9::5/64", "2001:db8:9::1",
		"route add 2001:db8:9::/48 nexthop via 2001:db8::2 nexthop via 2001:db8::3"),
	Entry("by ptp, with a nexthop object", "ptp", "10.1.0.5/24", "10.1.0.1", "nexthop add id 1 via 192.0.2.2 dev ext",
		"nexthop add id 2 via 192.0.2.3 dev ext", "nexthop add id 3 group 1/2", "route add 10.0.0.0/8 nhid 3"),
	Entry("by ipvlan", "ipvlan", "10.1.0.5/24", "",
		"route add 10.0.0.0/8 nexthop via 192.0.2.2 nexthop via 192.0.2.3"),
)

// divided returns a list with a plugin whose network uses a part of the addresses of 10.87.0.0/24.
func divided(plugin string, from, to int) List {
	addr := func(host int) string { return fmt.Sprintf("10.87.0.%d", host) }
	return List{{Plugin: plugin, Keys: Object{"bridge": "brd", "isGateway": true, "ipam": Object{"type": "host-local",
		"subnet": "10.87.0.0/24", "rangeStart": addr(from), "rangeEnd": addr(to), "gateway": addr(1)}}}}
}

var _ = Describe("addresses of the node's networks", Label("kernel", "node-subnet"), func() {
	var n *World
	BeforeEach(func() {
		n = NewNode()
		n.Spoiled = true // a refused ADD leaves the bridge
		nstest.NewOutside(n.Host)
		// An uplink that is not a pair, like a network card.
		n.IP("addr del 192.0.2.1/24 dev ext", "link add uplink link ext up type macvlan mode bridge",
			"addr add 192.0.2.1/24 dev uplink", "route add default via 192.0.2.2 dev uplink metric 100")
		v := NewPod("victim")
		v.Network = "cluster"
		n.Up(v, Usual("").Only("bridge"))
	})
	DescribeTable("are refused with ptp", func(address, gateway, message string) {
		before := n.Snapshot("addresses", "routes")
		a := tenantADD(n, "ptp", Object{"ipam": static(address, gateway)})
		Expect(a.Failed(103)).To(ContainSubstring(message))
		Expect(n.Snapshot("addresses", "routes")).To(Equal(before))
	},
		Entry("the router's", "192.0.2.2/32", "10.99.0.1", "address 192.0.2.2: the host's own router"),
		Entry("a container's, as the gateway", "10.99.0.9/32", "10.88.0.2",
			`address 10.88.0.2: network "cluster", container "victim"`),
	)

	DescribeTable("may be divided with ptp by ranges", func(first, second List) {
		a, b, next := NewPod("a"), NewPod("b"), NewPod("next")
		a.Network, b.Network, next.Network = "first", "second", "first"
		n.Up(a, first)
		n.Up(b, second)
		n.Up(next, first)
		for _, p := range []*Pod{a, b, next} {
			p.Serve("tcp", p.Addr()+":81")
			Expect(n.AskWithin(nstest.Patience(soon), "tcp", p.Addr()+":81")).Error().NotTo(HaveOccurred())
		}
	},
		Entry("after a bridge", divided("bridge", 10, 99), divided("ptp", 100, 199)),
		Entry("before a bridge", divided("ptp", 100, 199), divided("bridge", 10, 99)),
	)

	DescribeTable("are refused as the gateway of another bridge", func(address, gateway, message string) {
		routes := n.Snapshot("routes")
		a := tenantADD(n, "bridge", Object{"bridge": "brx", "isGateway": true, "ipam": static(address, gateway)})
		Expect(a.Failed(103)).To(ContainSubstring(message))
		n.Run(nstest.Program{Path: "ip", Args: []string{"link", "del", "brx"}})
		Expect(n.Snapshot("routes")).To(Equal(routes))
	},
		Entry("a free part of a bridge's subnet", "10.88.0.66/28", "10.88.0.65",
			`address 10.88.0.64/28: is in subnet 10.88.0.0/24 of network "cluster", container "victim"`),
		Entry("half of all addresses", "10.99.0.5/1", "10.99.0.1", "takes packets of the host's default route"),
		Entry("all global addresses of IPv6", "2001:db8:9::5/3", "2001:db8:9::1", "takes packets of the host"),
	)
})
