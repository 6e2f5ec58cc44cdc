package main

import (
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// withoutPrograms makes the search path of programs empty until the end of
// the spec.
func withoutPrograms() {
	GinkgoHelper()
	old := os.Getenv("PATH")
	DeferCleanup(func() { _ = os.Setenv("PATH", old) })
	Expect(os.Setenv("PATH", "/nowhere")).To(Succeed())
}

// withPrograms runs fn with the programs that withoutPrograms took away.
func withPrograms(path string, fn func()) {
	old := os.Getenv("PATH")
	_ = os.Setenv("PATH", path)
	defer func() { _ = os.Setenv("PATH", old) }()
	fn()
}

// settle makes what is shared and stays, so that it does not count as a
// difference: the first ADD of a host leaves empty tables and chains.
func (w *world) settle(k kind) {
	GinkgoHelper()
	c := w.container(1, 200)
	c.add(k.config, ports("60000:80"))
	c.del()
}

var all = []string{"8080:80", "192.0.2.1:8081:81", "53:53/udp", "127.0.0.1:9:9/sctp"}

var _ = Describe("DEL", Label("kernel"), func() {
	eachKind(func(k kind) {
		var w *world
		var a, b *container
		var empty, before string

		BeforeEach(func() {
			w = newWorld()
			w.bridge(1)
			w.settle(k)
			a, b = w.container(1, 2), w.container(1, 3)
			empty = w.rules()
			b.add(k.config, ports("7000:70"))
			before = w.rules()
			a.add(k.config, ports(all...))
			Expect(w.rules()).NotTo(Equal(before))
		})

		AfterEach(func() {
			a.Path = ""
			Expect(w.rules()).To(Equal(before))
			b.check(k.config, ports("7000:70"))
			a.del(k.config, ports(all...)) // again
			Expect(w.rules()).To(Equal(before))
			b.del()
			Expect(w.rules()).To(Equal(empty))
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		})

		// after is a DEL after an ADD that leaves the host as it was, whatever the runtime sends.
		after := func(del func()) {
			GinkgoHelper()
			del()
			Expect(w.rules()).To(Equal(before))
			a.add(k.config, ports(all...))
		}

		It("leaves nothing behind, whatever the runtime sends", Label("portmap-del"), func() {
			By("with all that it may send")
			after(func() { a.del(k.config, ports(all...)) })
			By("needs no runtimeConfig")
			after(func() { a.del(k.config) })
			By("needs no prevResult")
			after(func() { a.del(k.config, ports(all...), object{"prevResult": nil}) })
			By("needs neither, nor the backend")
			after(func() { a.del(object{"prevResult": nil}) })
			By("does not mind another backend in the configuration")
			after(func() { a.del(object{"backend": "iptables", "conditionsV4": []string{"-s", "10.0.0.0/8"}}) })
			By("does not mind a configuration that ADD would refuse")
			after(func() { a.del(object{"backend": "none", "markMasqBit": 99}, ports("99999:0/icmp")) })
			By("does not mind a prevResult that cannot be read")
			o := a.call("DEL", object{"prevResult": object{"cniVersion": "9.9.9"}})
			Expect(o.exit).To(BeZero(), o.text())
		})

		It("needs no namespace", func() {
			path := a.Path
			for _, other := range []string{"", b.Path, "/etc/passwd", "/run/netns/none"} {
				By("at " + other)
				after(func() {
					a.Path = other
					o := a.call("DEL", ports(all...))
					Expect(o.exit).To(BeZero(), o.text())
					Expect(o.stdout).To(BeEmpty())
					a.Path = path
				})
			}
			By("gone with the interface")
			a.vanish()
			a.del(ports(all...))
		})

		It("needs no record", func() {
			if k.name != "nftables" {
				// Which container it was is in iptables' chains, on which network too.
				w.Cmd("sh", "-c", "rm /run/hawser/portmap/*.json")
				a.del()
				b.del()
				b.add(k.config, ports("7000:70"))
				return
			}
			w.Cmd("rm", "-rf", "/run/hawser/portmap")
			other := w.container(1, 9)
			other.add(ports("7500:75"))
			a.del()
			other.check(ports("7500:75"))
			other.del()
			b.del()
			b.add(k.config, ports("7000:70"))
		})

		It("needs no record when only part of them was lost", func() {
			w.Cmd("sh", "-c", "rm /run/hawser/portmap/"+ownerHash(a)+".json")
			a.del(ports(all...))
		})

		It("needs no programs, where the kernel has the rules in nf_tables", Label("portmap-del"), func() {
			path := os.Getenv("PATH")
			withoutPrograms()
			if k.variant == "legacy" {
				o := a.call("DEL")
				Expect(o.exit).To(BeZero(), o.text())
				Expect(o.stderr).To(ContainSubstring("executable file not found"))
				withPrograms(path, func() { a.del() })
			} else {
				a.del()
			}
			Expect(os.Setenv("PATH", path)).To(Succeed())
		})

		It("comes back after others changed the rules", func() {
			if k.name == "nftables" {
				w.Cmd("nft", "delete", "element", "inet", "hawser", "portmap4_v1", "{ tcp . 8080 }")
				w.Cmd("nft", "delete", "element", "inet", "hawser", "portmap6_via_v1", "{ udp . 53 }")
			} else {
				chain := dnChain(a.network, a.id)
				w.Cmd("iptables", "-t", "nat", "-F", chain)
				w.Cmd("ip6tables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT")
				before = w.rules()
				a.del()
				b.del()
				b.add(k.config, ports("7000:70"))
				before = w.rules()
				return
			}
			a.del()
		})
	})

	It("succeeds before any ADD, and makes nothing", func() {
		w := newWorld()
		w.bridge(1)
		c := w.container(1, 2)
		before := w.rules()
		c.del(ports("8080:80"))
		c.del()
		w.gc("net1")
		Expect(w.rules()).To(Equal(before))
		Expect(w.Files("/run/hawser")).To(BeEmpty())
	})

	It("lets a bridge's route_localnet go with the last who needs it, unless it was on before", func() {
		w := newWorld()
		w.bridge(1)
		w.bridge(2)
		w.SetSysctl("net/ipv4/conf/br2/route_localnet", "1")
		localnet := func() string {
			return w.Sysctl("net/ipv4/conf/br1/route_localnet") + w.Sysctl("net/ipv4/conf/br2/route_localnet")
		}
		a, b, c := w.container(1, 2), w.container(1, 3), w.container(2, 2)
		for i, x := range []*container{a, b, c} {
			x.add(ports(string(rune('1'+i)) + "000:80"))
		}
		Expect(localnet()).To(Equal("11"))
		Expect(parts(w.Cmd("nft", "list", "ruleset"))).
			To(ContainSubstring(`@portmap_localnet_v1
elements = { "br1" comment "route_localnet was 0",
"br2" comment "route_localnet was 1" }`))
		a.del()
		Expect(localnet()).To(Equal("11"))
		b.del()
		c.del()
		Expect(localnet()).To(Equal("01"))
		Expect(parts(w.Cmd("nft", "list", "ruleset"))).To(Equal("\n"))
	})

	It("takes route_localnet back also when somebody flushed all rules", Label("loopback-guard"), func() {
		w := newWorld()
		w.bridge(1)
		w.bridge(2)
		w.SetSysctl("net/ipv4/conf/br2/route_localnet", "1")
		localnet := func() string {
			return w.Sysctl("net/ipv4/conf/br1/route_localnet") + w.Sysctl("net/ipv4/conf/br2/route_localnet")
		}
		a, c := w.container(1, 2), w.container(2, 2)
		a.add(ports("1000:80"))
		c.add(ports("2000:80"))
		w.Cmd("nft", "flush", "ruleset")
		b := w.container(1, 3)
		b.add(ports("3000:80"))
		w.Cmd("nft", "flush", "ruleset")
		a.del()
		Expect(localnet()).To(Equal("11"))
		b.del()
		c.del()
		Expect(localnet()).To(Equal("01"))
	})
})

var _ = Describe("route_localnet of an owner that died", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("is taken back with its guard by the last DEL, though the same attachment or another took over", func() {
			w := newWorld()
			w.bridge(1)
			w.settle(k)
			before := w.rules()
			for range 3 {
				c := w.container(1, 2)
				c.add(k.config, ports("8080:80"))
				c.vanish()
			}
			other := w.container(1, 3)
			other.add(k.config, ports("8080:80"))
			Expect(w.Sysctl("net/ipv4/conf/br1/route_localnet")).To(Equal("1"))
			other.check(k.config, ports("8080:80"))
			other.del()
			Expect(w.rules()).To(Equal(before))
		})

		It("is taken back on the link that it had", func() {
			w := newWorld()
			w.bridge(1)
			w.bridge(2)
			w.settle(k)
			for i, id := range []string{"c1-2", "c2-2"} { // the same attachment, another one
				old := w.container(1, 2)
				old.add(k.config, ports("8080:80"))
				old.vanish()
				c := w.container(2, 3+i)
				c.network, c.id = "net1", id
				c.add(k.config, ports("8080:80"))
				Expect(w.Sysctl("net/ipv4/conf/br1/route_localnet")).To(Equal("0"), id)
				Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(ContainSubstring("br1"), id)
				c.check(k.config, ports("8080:80"))
				c.del()
			}
		})
	})
})

func ownerHash(c *container) string {
	return cni.Attachment{Network: c.network, ContainerID: c.id, IfName: c.ifName}.Hash()
}

var _ = Describe("GC", Label("kernel"), func() {
	eachKind(func(k kind) {
		It("removes what is not valid of its network, and nothing else", func() {
			w := newWorld()
			w.bridge(1)
			w.bridge(2)
			w.settle(k)
			a, b, other := w.container(1, 2), w.container(1, 3), w.container(2, 2)
			second := b.second("net1", 1, 4)
			b.add(k.config, ports("8002:80"))
			other.add(k.config, ports("8003:80"))
			before := w.rules()
			a.add(k.config, ports("8001:80"))
			second.add(k.config, ports("8004:80"))
			a.vanish()
			w.gc("net1", "c1-3/eth0", "c1-3/net1")
			second.check(k.config, ports("8004:80"))
			w.gc("net1", "c1-3/eth0")
			Expect(w.rules()).To(Equal(before))
			b.check(k.config, ports("8002:80"))
			other.check(k.config, ports("8003:80"))
			w.gc("net1")
			other.check(k.config, ports("8003:80"))
			Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(ContainSubstring("8002"))
			Expect(w.run("GC", conf()).Code).To(BeZero())
			Expect(w.Snapshot("nftables", "iptables-legacy")).To(ContainSubstring("8003"),
				"without a list nothing goes")
		})

		It("finds what has no record", func() {
			w := newWorld()
			w.bridge(1)
			w.settle(k)
			before := w.Snapshot("nftables", "iptables-legacy")
			a := w.container(1, 2)
			a.add(k.config, ports("8001:80"))
			w.Cmd("rm", "-rf", "/run/hawser/portmap")
			w.gc("net2")
			Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(Equal(before))
			w.Cmd("ip", "link", "del", "br1")
			w.gc("net1")
			Expect(w.Snapshot("nftables", "iptables-legacy")).To(Equal(before))
		})
	})
})
