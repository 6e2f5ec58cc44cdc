package firewall

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// withAddrs gives the attachment the addresses of another container.
func (c *container) withAddrs(of *container) *container {
	c.prev["ips"] = of.prev["ips"]
	return c
}

// rolledBack runs an ADD whose result cannot be written.
func (c *container) rolledBack(more ...Object) {
	GinkgoHelper()
	call := c.as("ADD", more...)
	call.Stdout = BrokenPipe{}
	Expect(c.w.Call(call).Code).To(Equal(1))
}

var _ = Describe("the rules of a live container", Label("live-owners", "kernel"), func() {
	eachKind(func(k kind) {
		var w *world
		var pod *container
		isAccepted := func() {
			GinkgoHelper()
			Expect(reaches(pod.Host, "192.0.2.2:80", true)).To(BeTrue())
			pod.check(k.config)
		}
		accepted := func() {
			w = newWorld(1, 2)
			w.forward("DROP")
			w.out.Serve("tcp", "192.0.2.2:80")
			pod = w.container(1, 2)
			pod.add(k.config)
			isAccepted()
		}

		It("remain when an attachment on another bridge with its addresses is added and deleted", func() {
			accepted()
			tenant := w.container(2, 3).withAddrs(pod)
			tenant.add(k.config)
			isAccepted()
			tenant.check(k.config)
			tenant.del()
			isAccepted()
			tenant.rolledBack(k.config)
			isAccepted()
			tenant.add(k.config)
			w.gc(2)
			isAccepted()
			pod.del()
			Expect(w.Snapshot("nftables") + w.filter()).NotTo(ContainSubstring("10.1.0.2"))
		})

		It("remain whichever of an old and a new container with its addresses ends first", func() {
			accepted()
			next := w.container(1, 4).withAddrs(pod)
			next.add(k.config)
			next.del()
			isAccepted()
			next.add(k.config)
			pod.del()
			next.check(k.config)
			next.del()
			Expect(w.Snapshot("nftables") + w.filter()).NotTo(ContainSubstring("10.1.0.2"))
		})

		for _, live := range []policy{policySameBridge, policyIsolated} {
			It("keep policy "+string(live)+" when a network of the same name wants less", func() {
				w = newWorld(1, 2)
				w.SetBridgeNF(false)
				strict, open := Object{"ingressPolicy": string(live)}, Object{"ingressPolicy": "open"}
				pod, other := w.container(1, 2), w.container(2, 2)
				pod.Serve("tcp", "[::]:80")
				other.add(k.config, Object{"ingressPolicy": "same-bridge"})
				pod.add(k.config, strict)
				isKept := func() {
					GinkgoHelper()
					pod.check(k.config, strict)
					Expect(reaches(other.Host, "10.1.0.2:80", false)).To(BeFalse())
				}
				isKept()
				tenant := w.container(1, 3)
				call := tenant.as("ADD", k.config, open)
				Expect(w.Warns(call)).To(ContainSubstring(`bridge "br1"`))
				isKept()
				tenant.check(k.config, open)
				isReached := live == policySameBridge
				Expect(reaches(tenant.Host, "10.1.0.2:80", isReached)).To(Equal(isReached))
				tenant.del()
				isKept()
				tenant.rolledBack(k.config, open)
				isKept()
				tenant.add(k.config, open)
				pod.del()
				Expect(w.Snapshot("nftables") + w.filter()).NotTo(ContainSubstring("br1 "))
				tenant.Serve("tcp", "[::]:80")
				Expect(reaches(other.Host, "10.1.0.3:80", true)).To(BeTrue())
			})
		}
	})

	It("remain without its host ports when an attachment with its addresses accepts them", func() {
		w := newWorld(1, 2)
		w.forward("DROP")
		pod := w.container(1, 2)
		pod.Serve("tcp", "[::]:"+servedPort)
		pod.add(Object{"acceptPublished": false})
		w.nft("%s", dnat)
		tenant := w.container(2, 3).withAddrs(pod)
		Expect(w.Warns(tenant.as("ADD"))).To(ContainSubstring("acceptPublished"))
		Expect(reaches(w.out, "192.0.2.1:"+hostPort, false)).To(BeFalse())
		tenant.check()
		Expect(tenant.drifts(Object{"acceptPublished": false})).To(ContainSubstring("acceptPublished"))
		pod.check(Object{"acceptPublished": false})
		tenant.del()
		pod.check(Object{"acceptPublished": false})
	})

	It("remain if they are the reference plugin's, with an attachment of backend iptables with its addresses", func() {
		keys := Object{"cniVersion": "1.0.0", "backend": "iptables"}
		w := newWorld(1, 2)
		w.forward("DROP")
		pod := w.container(1, 2)
		w.Reference(nstest.Newest(), pod.as("ADD", keys)).Added()
		before := w.filter()
		tenant := w.container(2, 3).withAddrs(pod)
		for range 2 {
			tenant.add(keys)
			tenant.del(keys)
			Expect(w.filter()).To(Equal(before))
			tenant.rolledBack(keys)
			Expect(w.filter()).To(Equal(before))
		}
		pod.del(keys)
		Expect(w.filter()).NotTo(ContainSubstring("10.1.0.2"))
	})

	for _, variant := range []string{"nft", "legacy"} {
		It("remain when a DEL has its addresses in prevResult, on iptables-"+variant, nstest.Variant(variant), func() {
			nstest.UseVariant(variant)
			keys := Object{"cniVersion": "1.0.0", "ingressPolicy": "isolated"}
			w := newWorld(1, 2)
			pods := []*container{w.container(1, 2), w.container(1, 3)}
			for _, c := range pods {
				w.Reference(nstest.Newest(), c.as("ADD", keys)).Added()
			}
			before := w.filter()
			tenant := w.container(2, 4)
			forged := Object{"cniVersion": "1.0.0", "interfaces": []Object{{"name": "br1"}, {"name": pods[0].hostEnd},
				{"name": "eth0", "sandbox": tenant.Path}},
				"ips": []Object{{"address": "10.1.0.2/24", "interface": 2}, {"address": "10.1.0.3/24", "interface": 2},
					{"address": "fd00:1::2/64", "interface": 2}, {"address": "fd00:1::3/64", "interface": 2}}}
			for _, path := range []string{tenant.Path, ""} {
				call := tenant.as("DEL", keys, Object{"prevResult": forged})
				call.Netns = path
				w.Warns(call)
				Expect(w.filter()).To(Equal(before))
			}
			for _, c := range pods {
				c.check(keys)
				c.del(keys)
			}
			Expect(w.filter()).NotTo(Or(ContainSubstring("10.1.0"), ContainSubstring("br1")))
		})
	}
})

var _ = Describe("a container with elements of an earlier version", Label("live-owners", "kernel"), func() {
	It("keeps them, and leaves none", func() {
		w := newWorld(1, 2)
		w.forward("DROP")
		w.out.Serve("tcp", "192.0.2.2:80")
		pod := w.container(1, 2)
		pod.add()
		Expect(strings.Contains(w.Cmd("nft", "list", "ruleset"), "owners")).To(BeFalse(), "the layout is that of 0.1.0")
		tenant := w.container(2, 3).withAddrs(pod)
		tenant.add()
		tenant.del()
		Expect(reaches(pod.Host, "192.0.2.2:80", true)).To(BeTrue())
		pod.check()
		pod.del()
		Expect(w.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.1.0.2"))
	})
})

var _ = Describe("reapply", Label("kernel"), func() {
	eachKind(func(k kind) {
		It("restores rules that DEL removes, like those of ADD", Label("live-owners"), func() {
			w, _ := settled(k, nil)
			before := w.state()
			c := w.container(1, 2)
			c.add(k.config)
			if k.config["backend"] != "iptables" {
				w.Cmd("nft", "delete", "element", "inet", "hawser", "firewall4_v1", "{ 10.1.0.2 }")
			}
			Expect(w.Reapply(c.as("CHECK", k.config))).To(BeEmpty())
			c.check(k.config)
			c.del()
			Expect(w.state()).To(Equal(before))
		})
	})
})
