package firewall

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("CHECK", Label("kernel"), func() {
	keys := Object{"ingressPolicy": "isolated"}

	Context("of a container on nftables", Ordered, func() {
		var w *world
		var c *container
		BeforeAll(func() {
			w, c = dropping()
		})
		// What one change leaves the next ADD repairs.
		DescribeTable("finds", func(change, want string) {
			w.Cmd("ip", "link", "set", c.hostEnd, "master", "br1")
			c.add(keys)
			c.check(keys)
			w.Cmd("sh", "-ec", change)
			before := w.Snapshot("nftables")
			Expect(c.drifts(keys)).To(ContainSubstring(want))
			Expect(w.Snapshot("nftables")).To(Equal(before), "it changes nothing")
			c.del()
		},
			Entry("FORWARD flushed", "iptables -F FORWARD", `no rule jumps from FORWARD to "CNI-FORWARD"`),
			Entry("no way to the administrator's chain", "iptables -D CNI-FORWARD 1", `"CNI-ADMIN"`),
			Entry("no jump to the accepting chain", "ip6tables -D CNI-FORWARD 2", `"HAWSER-ACCEPTED"`),
			Entry("no rule for the fwmark", "iptables -F HAWSER-ACCEPTED", "HAWSER-ACCEPTED"),
			Entry("no element", "nft flush set inet hawser firewall6_v1", "fd00:1::2"),
			Entry("no element for host ports", "nft flush set inet hawser firewall4_published_v1", "10.1.0.2"),
			Entry("another owner's element", "nft 'delete element inet hawser firewall4_v1 { 10.1.0.2 }; "+
				`add element inet hawser firewall4_v1 { 10.1.0.2 comment "0123456789abcdef net9 other eth0" }'`,
				"net9 other"),
			Entry("shared rules flushed", "nft flush chain inet hawser firewall_policy_v2", "firewall_policy_v2"),
			Entry("no policy", "nft flush set inet hawser firewall_policed_v1",
				"ingress policy is open, not isolated"),
			Entry("a weaker policy", `nft add element inet hawser firewall_same_v1 '{ "br1" . "br1" }'`,
				"is same-bridge"),
			Entry("no isolated port", "ip link set v1-2 type bridge_slave isolated off", "not an isolated port"),
			Entry("a port that left the bridge", "ip link set v1-2 nomaster", `"br1"`),
			Entry("no record", "rm "+recordDir+"/*.json", "CNI-FORWARD"),
		)
	})

	for _, variant := range []string{"nft", "legacy"} {
		Context("of a container on iptables-"+variant, nstest.Variant(variant), Ordered, func() {
			var w *world
			var c *container
			onIPTables := Object{"backend": "iptables"}
			BeforeEach(func() { nstest.UseVariant(variant) })
			BeforeAll(func() {
				w, c = newContainer()
			})
			DescribeTable("finds", func(change, want string) {
				c.add(keys, onIPTables)
				c.check(keys, onIPTables)
				w.Cmd("sh", "-ec", change)
				before := w.filter()
				Expect(c.drifts(keys, onIPTables)).To(ContainSubstring(want))
				Expect(w.filter()).To(Equal(before), "it changes nothing")
				c.del()
			},
				Entry("FORWARD flushed", "iptables -F FORWARD", "-j CNI-FORWARD"),
				Entry("no rule of an address", "ip6tables -D CNI-FORWARD -s fd00:1::2 -j ACCEPT", "-s fd00:1::2/128"),
				Entry("no policy", "iptables -F CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-1"),
				Entry("everything flushed", "iptables -F; iptables -X", "CNI-FORWARD"),
			)
		})
	}

	Context("of a container whose configuration or result changed since ADD", Ordered, func() {
		var c *container
		BeforeAll(func() {
			w := newWorld(1)
			c = w.container(1, 2)
			c.add(keys)
		})
		DescribeTable("finds", func(change Object, want string) {
			Expect(c.drifts(keys, change)).To(ContainSubstring(want))
		},
			Entry("policy", Object{"ingressPolicy": "open"}, "ingressPolicy: changed since ADD from isolated to open"),
			Entry("chain", Object{"iptablesAdminChainName": "MINE"}, "iptablesAdminChainName"),
			Entry("host ports", Object{"acceptPublished": false}, "acceptPublished"),
			Entry("address", Object{"prevResult": Object{"cniVersion": "1.1.0",
				"ips": []Object{{"address": "10.1.0.9/24"}}}}, "10.1.0.9"),
		)
	})
})

var _ = Describe("a policy next to that of another backend", Label("kernel"), func() {
	for _, first := range []string{"nftables", "iptables"} {
		It("ends with its last container, of "+first, func() {
			nstest.UseVariant("nft")
			w := newWorld(1)
			one, two := w.container(1, 2), w.container(1, 3)
			isolated := Object{"backend": first, "ingressPolicy": "isolated"}
			second := map[string]string{"nftables": "iptables", "iptables": "nftables"}[first]
			open := Object{"backend": second, "name": "other"}
			one.add(isolated)
			two.add(open)
			one.del(isolated)
			two.check(open)
			two.del(open)
			Expect(w.filter()).NotTo(ContainSubstring("br1"))
			Expect(w.Cmd("nft", "list", "table", "inet", "hawser")).NotTo(ContainSubstring("br1"))
		})
	}
})

var _ = Describe("a policy that changes", Label("kernel"), func() {
	isolated, same := Object{"ingressPolicy": "isolated"}, Object{"ingressPolicy": "same-bridge"}

	eachKind(func(k kind) {
		It("is the strictest of the containers that run, each of which keeps its own", Label("policy-changes"), func() {
			w := newWorld(1, 2)
			w.SetBridgeNF(false)
			a, b := w.container(1, 2), w.container(2, 2)
			a.add(k.config, isolated)
			b.add(k.config, same)
			flag := func(c *container) string { return w.Cmd("sh", "-c", "bridge -d link show dev "+c.hostEnd) }
			a2 := w.container(1, 3)
			a2.add(k.config, same)
			for _, c := range []*container{a, a2} {
				Expect(flag(c)).To(ContainSubstring("isolated on"))
				c.Serve("tcp", "[::]:80")
			}
			a.check(k.config, isolated)
			a2.check(k.config, same)
			Expect(reaches(a.Host, "10.1.0.3:80", false)).To(BeFalse())
			a.del()
			Expect(reaches(b.Host, "10.1.0.3:80", false)).To(BeFalse())
			a3 := w.container(1, 4)
			a3.add(k.config)
			a2.check(k.config, same)
			Expect(reaches(b.Host, "10.1.0.3:80", false)).To(BeFalse())
			a2.del()
			a3.Serve("tcp", "[::]:80")
			Expect(reaches(b.Host, "10.1.0.4:80", true)).To(BeTrue())
			a4 := w.container(1, 5)
			a4.add(k.config, isolated)
			for _, c := range []*container{a3, a4} {
				Expect(flag(c)).To(ContainSubstring("isolated on"))
			}
			a3.check(k.config)
			Expect(reaches(b.Host, "10.1.0.4:80", false)).To(BeFalse())
			a4.del()
			Expect(flag(a3)).To(ContainSubstring("isolated off"))
			Expect(reaches(b.Host, "10.1.0.4:80", true)).To(BeTrue())
		})

		It("isolates the network's other ports where another network gave the bridge that policy before", func() {
			w := newWorld(1)
			other, a, b := w.container(1, 2), w.container(1, 3), w.container(1, 4)
			other.call.Conf = Merge(other.call.Conf.(Object), Object{"name": "other"})
			a.add(k.config, same)
			other.add(k.config, isolated)
			b.add(k.config, isolated)
			flag := func() string { return w.Cmd("bridge", "-d", "link", "show", "dev", a.hostEnd) }
			Expect(flag()).To(ContainSubstring("isolated on"))
			other.del()
			Expect(flag()).To(ContainSubstring("isolated on"))
			b.del()
			Expect(flag()).To(ContainSubstring("isolated off"))
			a.check(k.config, same)
		})

		It("isolates the network's other ports where no bridge had a policy before", func() {
			w := newWorld(1)
			w.SetBridgeNF(false)
			a, b := w.container(1, 2), w.container(1, 3)
			a.add(k.config)
			b.add(k.config, isolated)
			a.check(k.config)
			b.Serve("tcp", "[::]:80")
			Expect(reaches(a.Host, "10.1.0.3:80", false)).To(BeFalse())
			b.del()
			Expect(w.Cmd("bridge", "-d", "link", "show", "dev", a.hostEnd)).To(ContainSubstring("isolated off"))
			Expect(w.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("chain firewall_policy"))
		})
	})

	eachKind(func(k kind) {
		It("ends with its network if two share a bridge, and the other network's policy remains", func() {
			w := newWorld(1, 2)
			a, b, c := w.container(1, 2), w.container(1, 3), w.container(2, 2)
			b.call.Conf = Merge(b.call.Conf.(Object), Object{"name": "other"})
			w.forward("ACCEPT")
			c.add(k.config, same)
			b.add(k.config, same)
			rules := func() string {
				return w.Cmd("sh", "-c", "iptables -S; nft list set inet hawser firewall_same_v1 || true")
			}
			alone := rules()
			a.add(k.config, isolated)
			a.del()
			Expect(rules()).To(Equal(alone))
			b.check(k.config, same)
			b.Serve("tcp", "[::]:80")
			Expect(reaches(c.Host, "10.1.0.3:80", false)).To(BeFalse())
			Expect(reaches(a.Host, "10.1.0.3:80", true)).To(BeTrue())
		})
	})

	for _, variant := range []string{"nft", "legacy"} {
		more := nstest.Variant(variant)
		It("ends with a container without IPv6 for both families, on iptables-"+variant, more, func() {
			nstest.UseVariant(variant)
			w := newWorld(1)
			isolated, same := Merge(kinds()[2].config, isolated), Merge(kinds()[2].config, same)
			a, b, c := w.container(1, 2), w.container(1, 3), w.container(1, 4)
			for _, dual := range []*container{b, c} {
				dual.call.Conf = Merge(dual.call.Conf.(Object), Object{"name": "other"})
			}
			a.prev["ips"] = a.prev["ips"].([]Object)[:1]
			b.add(same)
			a.add(isolated)
			c.add(same)
			Expect(w.Cmd("ip6tables", "-S")).To(ContainSubstring("(ingressPolicy: isolated)"))
			withoutIP6Tables(func() {
				Expect(w.Warns(a.as("DEL"))).To(ContainSubstring("not found"))
			})
			a.del()
			Expect(w.filter()).NotTo(ContainSubstring("(ingressPolicy: isolated)"))
			b.check(same)
			c.check(same)
		})
	}

	It("ends with a container without IPv6 on a host without ip6tables", func() {
		w, a, b := newContainers()
		b.call.Conf = Merge(b.call.Conf.(Object), Object{"name": "other"})
		withoutIP6Tables(func() {
			for _, c := range []*container{a, b} {
				c.prev["ips"] = c.prev["ips"].([]Object)[:1]
			}
			b.add(Object{"backend": "iptables", "ingressPolicy": "same-bridge"})
			a.add(Object{"backend": "iptables", "ingressPolicy": "isolated"})
			Expect(w.Warns(a.as("DEL"))).To(BeEmpty())
		})
		Expect(w.filter()).NotTo(ContainSubstring("(ingressPolicy: isolated)"))
		Expect(w.Files(recordDir)).NotTo(ContainSubstring(hashOf(a)))
	})

	It("keeps the flag that the bridge plugin set", func() {
		w := newWorld(1)
		a := w.container(1, 2)
		w.Cmd("ip", "link", "set", a.hostEnd, "type", "bridge_slave", "isolated", "on", "hairpin", "on")
		a.add(isolated)
		a.del()
		Expect(w.Cmd("bridge", "-d", "link", "show", "dev", a.hostEnd)).To(MatchRegexp("hairpin on.*isolated on"))
	})

	It("is refused where the host's own packets may not go to the container, so that its interface is not known",
		Label("fail-closed"), func() {
			w := newWorld(1)
			w.Cmd("ip", "link", "add", "br1.5", "type", "veth", "peer", "name", "vlanport")
			w.IP("link set br1.5 up", "link set vlanport master br1 up", "addr del 10.1.0.1/24 dev br1",
				"addr add 10.1.0.1/24 dev br1.5", "rule add iif lo to 10.1.0.0/24 prohibit")
			c := w.container(1, 2)
			before := w.Snapshot("nftables", "links")
			Expect(w.Fails(c.as("ADD", isolated), 999)).To(And(
				ContainSubstring("permission denied; remove the rule or route, or the other interfaces of the bridge"),
				HavePrefix(`bridge "br1": interface of address 10.1.0.2: `)))
			Expect(w.Snapshot("nftables", "links")).To(Equal(before))
			Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
			c.add()
			c.check()
			c.del()
		})

	for _, kind := range []string{"unreachable", "prohibit", "blackhole"} {
		It("applies to a bridge whose containers the host cannot reach because of a route of type "+kind,
			Label("policy-unreachable"), func() {
				w := newWorld(1)
				w.IP("addr flush dev br1", "route add "+kind+" 10.0.0.0/8", "route add "+kind+" fd00::/8")
				c := w.container(1, 2)
				c.add(same)
				Expect(w.set("firewall_policed_v1")).To(ContainSubstring(`"br1"`))
				c.check(same)
				c.del()
			})
	}

	It("is about the interface of the VLAN where the container is in one", func() {
		w := newWorld(1)
		w.Cmd("ip", "link", "add", "br1.5", "type", "veth", "peer", "name", "vlanport")
		w.IP("link set br1.5 up", "link set vlanport master br1 up", "addr del 10.1.0.1/24 dev br1",
			"addr add 10.1.0.1/24 dev br1.5")
		c := w.container(1, 2)
		c.add(same)
		Expect(w.set("firewall_policed_v1")).To(ContainSubstring(`"br1.5"`))
		open := w.container(1, 3)
		open.add()
		c.check(same)
		c.del()
		Expect(w.set("firewall_policed_v1")).NotTo(ContainSubstring("br1"))
		open.check()
	})
})

var _ = Describe("GC", Label("kernel"), func() {
	eachKind(func(k kind) {
		It("removes stale attachments of its network, and nothing else", func() {
			keys := Object{"ingressPolicy": "isolated"}
			w, stays := settled(k, keys)
			w.Bridge(2)
			before := w.state()
			other := w.container(2, 2)
			other.add(k.config)
			with := w.state()
			for i := range 2 {
				w.container(1, 10+i).add(k.config, keys)
			}
			w.gc(1, stays)
			Expect(w.state()).To(Equal(with))
			stays.check(k.config, keys)
			other.check(k.config)
			w.gc(2)
			Expect(w.state()).To(Equal(before))
			w.gc(1)
			Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
		})
	})

	It("finds elements without a record, and policies without a bridge", func() {
		w, c := newContainer()
		c.add(Object{"ingressPolicy": "isolated"})
		w.Cmd("sh", "-c", "rm "+recordDir+"/*.json; ip link del br1")
		w.gc(1)
		Expect(w.Snapshot("nftables")).NotTo(Or(ContainSubstring("10.1.0.2"), ContainSubstring("br1")))
	})

	It("fails if the kernel does not report whether a bridge exists", func() {
		w := newWorld()
		w.Bridge(1)
		w.container(1, 2).add(Object{"ingressPolicy": "isolated"})
		w.Cmd("sh", "-c", "rm "+recordDir+"/*.json")
		const question = 40 // bytes of the request for the link "br1"
		said := w.Fails(Call{Command: "GC", Conf: Object{"cniVersion": "1.1.0", "name": "net1", "type": "firewall",
			"cni.dev/valid-attachments": []Object{}},
			Before: func() {
				nstest.FailCall(unix.SYS_SENDTO, unix.EPERM, nstest.Arg{Number: 2, Value: question})
			}}, 999)
		Expect(said).To(ContainSubstring(`link "br1": operation not permitted`))
	})
})

var _ = Describe("STATUS", Label("kernel"), func() {
	status := func(w *world, more ...Object) Call {
		conf := Object{"cniVersion": "1.1.0", "name": "net1", "type": "firewall"}
		return Call{Command: "STATUS", Conf: Merge(append([]Object{conf}, more...)...)}
	}

	It("succeeds, runs no program and leaves nothing", func() {
		w := newWorld()
		before := w.untouched()
		w.Succeeds(status(w, Object{"backend": "iptables"}))
		nstest.WithoutPrograms(func() { w.Succeeds(status(w)) })
		Expect(w.untouched()).To(Equal(before))
	})

	It("warns of chains that drop what it accepts, until they have the rule it names", Label("drop-warning"), func() {
		w := newWorld()
		w.forward("DROP")
		chain := "{ chain %s { type filter hook %s priority 0; policy %s; }; }"
		w.Cmd("nft", fmt.Sprintf("table inet other "+chain+"; table ip mine "+chain+"; table ip6 open "+chain,
			"site", "forward", "drop", "in", "input", "drop", "rest", "forward", "accept"))
		warned := func() string {
			GinkgoHelper()
			return w.Warns(status(w))
		}
		_, remedy, _ := strings.Cut(strings.TrimSpace(warned()), ": nft ")
		Expect(remedy).To(Equal("insert rule inet other site meta mark and 0x1000 == 0x1000 accept"))
		w.Cmd("nft", remedy)
		Expect(warned()).To(BeEmpty())
		By("with the bit that ADD would take")
		w.Bridge(1)
		w.container(1, 2).add(Object{"markAcceptBit": 31})
		Expect(warned()).To(ContainSubstring("meta mark and 0x80000000 == 0x80000000 accept"))
	})

	It("reports missing programs, without which ADD writes no record", func() {
		w := newWorld(1)
		w.Cmd("iptables-legacy-save", "-t", "filter") // makes the table
		w.Cmd("ip6tables-legacy-save", "-t", "filter")
		c := w.container(1, 2)
		nstest.WithoutPrograms(func() {
			said := w.Fails(c.as("ADD", Object{"backend": "iptables"}), 5)
			Expect(said).To(ContainSubstring(`program "iptables-restore"`))
		})
		Expect(w.Cmd("find", recordDir, "-name", "*.json")).To(BeEmpty())
	})

	It("is code 50 where ADD would fail", Label("status-variant"), func() {
		w := newWorld()
		nstest.WithoutPrograms(func() { w.Fails(status(w, Object{"backend": "iptables"}), 50) })
		asked := refused(status(w, Object{"backend": "nftables"}))
		Expect(w.Fails(asked, 50)).To(ContainSubstring("not supported"))
		nstest.UseVariant("legacy")
		Expect(w.Call(refused(status(w))).Code).To(BeZero())
		nstest.UseVariant("nft")
		Expect(w.Fails(refused(status(w)), 50)).To(ContainSubstring("xtables-nft-multi needs nf_tables"))
		w.Cmd("sh", "-c", "rm -rf /run/hawser; touch /run/hawser")
		w.Fails(status(w), 50)
	})
})

// refused is a call on a kernel without nfnetlink.
func refused(c Call) Call {
	c.Before = nstest.RefuseNetfilterSockets
	return c
}

var _ = Describe("a kernel without nf_tables", Label("kernel"), func() {
	It("has the rules in iptables, unless nftables were asked for", func() {
		nstest.UseVariant("legacy")
		w, c := newContainer()
		w.Fails(refused(c.as("ADD", Object{"backend": "nftables"})), 2)
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			Expect(w.Call(refused(c.as(command))).Code).To(BeZero())
		}
		Expect(w.filter()).NotTo(ContainSubstring("10.1.0.2"))
	})

	It("lets a network join a bridge that has its policy", func() {
		nstest.UseVariant("legacy")
		w, a, b := newContainers()
		w.IP("link set " + a.hostEnd + " alias '" + cni.Attachment{Network: "net1", ContainerID: "c1-2",
			IfName: "eth0"}.Mark() + "'")
		keys := Object{"ingressPolicy": "same-bridge"}
		w.Add(refused(a.as("ADD", keys)))
		w.Fails(refused(b.as("ADD", keys, Object{"name": "net2", "ingressPolicy": "isolated"})), 103)
		w.Add(refused(b.as("ADD", keys, Object{"name": "net2"})))
	})
})
