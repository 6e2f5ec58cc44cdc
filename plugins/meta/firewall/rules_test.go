package main

import (
	"encoding/json"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// skeleton is what FORWARD has for nftables' sake.
func skeleton(admin string) string {
	return "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n" +
		chainLines("CNI-FORWARD", "HAWSER-ACCEPTED", admin) +
		`-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD` + "\n" +
		`-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j ` + admin + "\n" +
		"-A CNI-FORWARD -j HAWSER-ACCEPTED\n-A HAWSER-ACCEPTED -m mark --mark 0x1000/0x1000 -j ACCEPT\n"
}

func chainLines(names ...string) string {
	return "-N " + strings.Join(slices.Sorted(slices.Values(names)), "\n-N ") + "\n"
}

// set is a set of the layout as nft shows it.
func (w *world) set(name string) string {
	GinkgoHelper()
	return w.Cmd("nft", "list", "set", "inet", "hawser", name)
}

var _ = Describe("nftables", Label("kernel"), func() {
	for _, variant := range []string{"nft", "legacy"} {
		It("has elements with their owner, and one way through FORWARD of iptables-"+variant, func() {
			nstest.UseVariant(variant)
			w := newWorld(1)
			w.forward("DROP")
			a, b := w.container(1, 2), w.container(1, 3)
			a.add(Object{"iptablesAdminChainName": "MY-OWN"})
			b.add(Object{"iptablesAdminChainName": "MY-OWN"})
			for _, set := range []string{"firewall4_v1", "firewall4_published_v1"} {
				Expect(w.set(set)).To(MatchRegexp(
					`10.1.0.2 comment "[0-9a-f]{16} net1 c1-2 eth0",\s+10.1.0.3 comment "[0-9a-f]{16} net1 c1-3 eth0"`))
			}
			Expect(w.set("firewall6_v1")).To(ContainSubstring("fd00:1::2 comment"))
			Expect(w.Cmd("iptables", "-S")).To(Equal(skeleton("MY-OWN")))
			Expect(w.Cmd("ip6tables", "-S")).To(Equal(skeleton("MY-OWN")))
		})
	}

	It("needs a program only where legacy's table is, and says so there", func() {
		w := newWorld(1)
		c, d := w.container(1, 2), w.container(1, 3)
		w.nft("table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }")
		nstest.WithoutPrograms(func() { Expect(w.Call(d.as("ADD")).Stderr).To(BeEmpty()) })
		w.out.Serve("tcp", "192.0.2.2:80")
		Expect(reaches(d.Host, "192.0.2.2:80", true)).To(BeTrue())
		w.Cmd("iptables-legacy-save", "-t", "filter") // makes the table
		nstest.WithoutPrograms(func() {
			said := w.Call(c.as("ADD")).Stderr
			Expect(said).To(ContainSubstring("chain FORWARD of ip (iptables-legacy) drops stays dropped"))
		})
	})

	It("repairs for all containers what others flushed", Label("flushed"), func() {
		w := newWorld(1)
		w.forward("DROP")
		a, b := w.container(1, 2), w.container(1, 3)
		a.add()
		w.Cmd("iptables", "-F")
		w.Cmd("iptables", "-X")
		w.Cmd("nft", "flush", "table", "inet", "hawser")
		Expect(a.drifts()).To(And(ContainSubstring("FORWARD"), ContainSubstring("firewall_forward12_v1")))
		b.add()
		Expect(w.Cmd("iptables", "-S")).To(Equal(skeleton("CNI-ADMIN")))
		b.check()
		a.check()
	})

	It("lets the administrator's chain decide first", Label("admin-chain"), func() {
		w, c := dropping()
		c.add()
		w.out.Serve("tcp", "192.0.2.2:80")
		Expect(reaches(c.Host, "192.0.2.2:80", true)).To(BeTrue())
		w.Cmd("iptables", "-A", "CNI-ADMIN", "-s", c.addrs[0], "-j", "DROP")
		Expect(reaches(c.Host, "192.0.2.2:80", false)).To(BeFalse())
	})

	It("accepts no host ports with acceptPublished false", func() {
		w, c := dropping()
		c.add(Object{"acceptPublished": false})
		c.check(Object{"acceptPublished": false})
		c.Serve("tcp", "[::]:"+servedPort)
		w.out.Serve("tcp", "192.0.2.2:80")
		w.nft("%s", dnat)
		Expect(reaches(w.out, "192.0.2.1:"+hostPort, false)).To(BeFalse())
		Expect(reaches(c.Host, "192.0.2.2:80", true)).To(BeTrue())
	})

	It("leaves the fwmark bit to nobody behind it", func() {
		w, c := newContainer()
		c.add()
		w.Cmd("nft", "add table inet t; add chain inet t c { type filter hook postrouting priority 301; };"+
			"add rule inet t c meta mark & 0x1000 == 0x1000 drop")
		w.out.Serve("tcp", "192.0.2.2:80")
		Expect(reaches(c.Host, "192.0.2.2:80", true)).To(BeTrue())
	})
})

const families = "iptables iptables-restore iptables-save ip6tables ip6tables-restore ip6tables-save"

// withoutIP6Tables runs fn where no programs are found but those of iptables for IPv4.
func withoutIP6Tables(fn func()) {
	GinkgoHelper()
	nstest.WithPrograms(strings.Fields(families)[:3], fn)
}

// withoutLegacy runs fn where no programs of iptables are found that have a variant in their names.
func withoutLegacy(fn func()) {
	GinkgoHelper()
	nstest.WithPrograms(strings.Fields(families), fn)
}

var _ = Describe("iptables", Label("kernel"), func() {
	for _, variant := range []string{"nft", "legacy"} {
		Context(variant, Ordered, func() {
			var w *world
			var containers []*container
			BeforeAll(func() {
				nstest.UseVariant(variant)
				w = newWorld(1)
				containers = []*container{w.container(1, 2), w.container(1, 3)}
			})
			DescribeTable("has the reference's rules, byte for byte", Label("firewall-format"), func(
				p policy, admin string,
			) {
				nstest.UseVariant(variant)
				keys := Object{"cniVersion": "1.0.0", "backend": "iptables", "ingressPolicy": string(p),
					"iptablesAdminChainName": admin}
				ours := w.made(containers, keys, func(c Call) { w.Add(c) })
				theirs := w.made(containers, keys, func(c Call) { w.Reference(nstest.Newest(), c).Added() })
				Expect(ours).To(Equal(theirs))
			},
				Entry("open", policyOpen, ""),
				Entry("same-bridge", policySameBridge, ""),
				Entry("isolated", policyIsolated, "MY-OWN"),
			)
		})
	}
})

// made is what ADDs make in an empty filter table; others' rules come between them. CHECKs and DELs follow.
func (w *world) made(containers []*container, keys Object, add func(Call)) string {
	GinkgoHelper()
	w.Cmd("sh", "-ec", "for t in iptables ip6tables; do $t -F; $t -X; done")
	for _, c := range containers {
		add(c.as("ADD", keys))
		Expect(w.Reference(nstest.Newest(), c.as("CHECK", keys)).Stdout).To(BeEmpty())
		c.check(keys)
		w.Cmd("iptables", "-I", "FORWARD", "-p", "udp", "-j", "DROP") // the jumps stay behind it
	}
	rules := w.filter()
	for _, c := range containers {
		c.del()
	}
	return rules
}

var _ = Describe("the result", Ordered, func() {
	var w *world
	var c *container
	BeforeAll(func() {
		w, c = newContainer()
	})
	AfterEach(func() { c.del() })

	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		It("is prevResult in version "+version, func() {
			prev := Merge(c.prev, Object{"cniVersion": version, "dns": Object{"nameservers": []string{"192.0.2.53"}}})
			if version < "1" {
				for i, ip := range prev["ips"].([]Object) {
					ip["version"] = []string{"4", "6"}[i]
				}
			} else {
				for _, ip := range prev["ips"].([]Object) {
					delete(ip, "version")
				}
			}
			var got Object
			out := w.Add(c.as("ADD", Object{"cniVersion": version, "prevResult": prev})).Text
			Expect(json.Unmarshal([]byte(out), &got)).To(Succeed())
			Expect(Text(got)).To(MatchJSON(Text(prev)))
		})
	}

	It("of a container without addresses is given back, and nothing is made", func() {
		before := w.untouched()
		c.add(Object{"prevResult": Merge(c.prev, Object{"ips": []Object{}})})
		Expect(w.untouched()).To(Equal(before))
	})

	It("counts all addresses where it says of none that it is the interface's", func() {
		c.add(Object{"backend": "iptables", "prevResult": Object{"cniVersion": "1.1.0",
			"interfaces": []Object{{"name": "x"}}, "ips": []Object{{"address": "10.0.0.2/24", "interface": 0}}}})
		Expect(w.Cmd("iptables", "-S", "CNI-FORWARD")).To(ContainSubstring("-s 10.0.0.2/32 -j ACCEPT"))
	})

	It("does not count addresses of other interfaces", func() {
		prev := Merge(c.prev, Object{"ips": append(c.prev["ips"].([]Object),
			Object{"address": "10.9.0.9/24", "interface": 0})})
		c.add(Object{"prevResult": prev})
		Expect(w.set("firewall4_v1")).NotTo(ContainSubstring("10.9.0.9"))
	})
})
