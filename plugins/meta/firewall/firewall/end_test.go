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

// state returns everything that firewall can change on the host.
func (w *world) state() string {
	GinkgoHelper()
	return w.Snapshot("nftables", "iptables-legacy") + w.filter() +
		w.Cmd("sh", "-c", "bridge -d link show dev v1-3 | grep -o 'isolated o[nf]*'")
}

// settled returns a world with bridge 1, the shared rules that remain, so that they are not a difference, and a
// container that remains.
func settled(k kind, keys Object) (w *world, stays *container) {
	GinkgoHelper()
	w = newWorld(1)
	w.forward("DROP")
	stays = w.container(1, 3)
	first := w.container(1, 200)
	first.add(k.config, Object{"ingressPolicy": "isolated"})
	first.del()
	stays.add(k.config, keys)
	w.IP("link del " + first.hostEnd)
	return w, stays
}

func hashOf(c *container) string {
	return cni.Attachment{Network: c.call.Conf.(Object)["name"].(string), ContainerID: c.call.ID, IfName: "eth0"}.Hash()
}

var _ = Describe("DEL", Label("kernel"), func() {
	eachKind(func(k kind) {
		for _, p := range []policy{policyOpen, policyIsolated} {
			Context("of a container with ingressPolicy "+string(p), Ordered, func() {
				var w *world
				var stays, c *container
				keys := Object{"ingressPolicy": string(p)}
				BeforeAll(func() {
					w, stays = settled(k, keys)
					c = w.container(1, 2)
				})
				DescribeTable("removes its own rules only", Label("firewall-del"), func(del func(c *container)) {
					before, files := w.state(), w.Files("/run/hawser")
					c.add(k.config, keys)
					Expect(w.state()).NotTo(Equal(before))
					same := *c
					del(&same)
					Expect(w.state()).To(Equal(before))
					Expect(w.Files("/run/hawser")).To(Equal(files))
					stays.check(k.config, keys)
					c.del(k.config, keys) // again
					Expect(w.state()).To(Equal(before))
				},
					Entry("with all that the runtime has", func(c *container) { c.del(k.config, keys) }),
					Entry("without prevResult and keys", func(c *container) { c.del(Object{"prevResult": nil}) }),
					Entry("without the namespace", func(c *container) { c.call.Netns = ""; c.del() }),
					Entry("with keys that ADD refuses", func(c *container) {
						c.del(Object{"backend": "x", "ingressPolicy": "Open", "iptablesAdminChainName": "-X"})
					}),
					Entry("with another backend, policy and chain", func(c *container) {
						c.del(Object{"backend": "iptables", "ingressPolicy": "open", "iptablesAdminChainName": "OTHER"})
					}),
					Entry("with a prevResult that cannot be read", func(c *container) {
						a := c.w.Call(c.as("DEL", Object{"prevResult": Object{"cniVersion": "9.9.9"}}))
						Expect(a.Code).To(BeZero(), a.Stdout)
					}),
				)
			})
		}

		Context("of an open container", Ordered, func() {
			var w *world
			var stays, c *container
			var before string
			BeforeAll(func() {
				w, stays = settled(k, nil)
				c = w.container(1, 2)
				before = w.state()
			})

			It("needs no program except on backend iptables, and names it there", func() {
				c.add(k.config)
				if k.config["backend"] == "iptables" {
					var said string
					nstest.WithoutPrograms(func() { said = w.Call(c.as("DEL")).Stderr })
					Expect(said).To(ContainSubstring("not found"))
					c.del()
				} else {
					nstest.WithoutPrograms(func() { c.del() })
				}
				Expect(w.state()).To(Equal(before))
			})

			It("finds its rules if the record is lost", func() {
				c.add(k.config)
				w.Cmd("rm", recordDir+"/"+hashOf(c)+".json")
				c.del()
				Expect(w.state()).To(Equal(before))
				stays.check(k.config)
			})
		})

		Context("of an isolated container", Ordered, func() {
			var w *world
			var stays, c *container
			keys := Object{"ingressPolicy": "isolated"}
			BeforeAll(func() {
				w, stays = settled(k, keys)
				c = w.container(1, 2)
			})

			It("of the last container removes the bridge's policy", func() {
				c.add(k.config, keys)
				c.del()
				Expect(w.state()).To(ContainSubstring("br1"))
				stays.del()
				Expect(w.state()).NotTo(ContainSubstring("br1"))
			})

			It("keeps an administrator's rules about address and bridge", Label("firewall-del"), func() {
				if k.config["backend"] == nil {
					w.Cmd("iptables", "-N", "CNI-ISOLATION-STAGE-1")
				}
				for _, rule := range []string{"CNI-FORWARD -s 10.1.0.2 -p tcp --dport 25 -j DROP",
					"CNI-FORWARD -s 10.1.0.2 -j DROP", "CNI-FORWARD -s 10.1.0.2 -o ext -j ACCEPT",
					"CNI-FORWARD -d 10.1.0.2 -m conntrack --ctstate NEW -j ACCEPT",
					"CNI-FORWARD -s 10.1.0.2 -m comment --comment mine -j ACCEPT",
					"CNI-ISOLATION-STAGE-1 -i br1 -o br1 -p icmp -j RETURN",
					"CNI-ISOLATION-STAGE-1 -i br1 -o br1 -m comment --comment mine -j DROP"} {
					w.Cmd("iptables", append([]string{"-A"}, strings.Fields(rule)...)...)
				}
				before := w.state()
				c.add(k.config, keys)
				c.del()
				Expect(w.state()).To(Equal(before))
			})
		})

		It("of our last container leaves the bridge's policy to the reference's", func() {
			keys := Object{"cniVersion": "1.0.0", "ingressPolicy": "isolated", "backend": "iptables"}
			w := newWorld(1)
			w.forward("DROP")
			old, c := w.container(1, 2), w.container(1, 3)
			w.Reference(nstest.Newest(), old.as("ADD", keys)).Added()
			before := w.filter()
			c.add(keys)
			c.del()
			Expect(w.filter()).To(Equal(before))
			old.check(keys)
			c.add(keys)
			old.del(keys)
			c.del()
			Expect(w.filter()).NotTo(ContainSubstring("br1"))
		})

		It("removes the reference plugin's rules, and CHECK accepts them", Label("firewall-reference"), func() {
			keys := Object{"cniVersion": "1.0.0", "ingressPolicy": "same-bridge"}
			w, c := dropping()
			w.Reference(nstest.Newest(), c.as("ADD", keys)).Added()
			c.check(k.config, keys)
			w.Cmd("iptables", "-D", "CNI-FORWARD", "-s", c.addrs[0], "-j", "ACCEPT")
			Expect(c.drifts(k.config, keys)).To(ContainSubstring("-s 10.1.0.2/32"))
			c.del(k.config, keys)
			Expect(w.filter()).NotTo(Or(ContainSubstring("10.1.0.2"), ContainSubstring("fd00:1::2")))
		})
	})

	It("fails for other errors than a missing program, and keeps the record", func() {
		nstest.UseVariant("legacy")
		w, c := newContainer()
		keys := Object{"backend": "iptables"}
		c.add(keys)
		call := c.as("DEL", keys)
		call.Before = func() { nstest.FailNetfilterSockets(unix.EMFILE) }
		nstest.WithoutPrograms(func() {
			Expect(w.Fails(call, 5)).To(And(ContainSubstring("too many open files"), ContainSubstring("not found")))
		})
		Expect(w.Files(recordDir)).To(ContainSubstring(hashOf(c)))
		c.del(keys)
		Expect(w.filter()).NotTo(ContainSubstring("10.1.0.2"))
	})

	It("does not need iptables-legacy for another program's table if ADD did not use it", func() {
		w := newWorld(1)
		a, c := w.container(1, 2), w.container(1, 3)
		keys := Object{"backend": "iptables", "ingressPolicy": "isolated"}
		w.Cmd("iptables-legacy-save", "-t", "filter") // makes the table
		w.Cmd("ip6tables-legacy-save", "-t", "filter")
		withoutLegacy(func() {
			a.add(keys)
			before := w.filter()
			c.add(keys)
			for _, d := range []*container{c, a} {
				Expect(w.Warns(d.as("DEL", Object{"prevResult": nil}))).To(BeEmpty())
				if d == c {
					Expect(w.filter()).To(Equal(before))
				}
			}
		})
		Expect(w.filter()).NotTo(Or(ContainSubstring("10.1.0."), ContainSubstring("br1")))
		Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
	})

	It("by the reference, and its ADD with another address, are no hindrance to our CHECK, DEL and ADD", func() {
		keys := Object{"cniVersion": "1.0.0", "backend": "iptables"}
		w, c := dropping()
		c.add(keys)
		before := w.filter()
		Expect(w.Reference(nstest.Newest(), c.as("DEL", keys)).Code).To(BeZero())
		c.add(keys)
		Expect(w.filter()).To(Equal(before))
		Expect(w.Reference(nstest.Newest(), c.as("DEL", keys)).Code).To(BeZero())
		next := Object{"prevResult": Merge(c.prev, Object{"cniVersion": "1.0.0",
			"ips": []Object{{"address": "10.1.0.9/24", "interface": 2}}})}
		w.Reference(nstest.Newest(), c.as("ADD", keys, next)).Added()
		c.IP("addr add 10.1.0.9/24 dev eth0")
		c.check(keys, next)
		c.del(keys, next)
		Expect(w.filter()).NotTo(ContainSubstring("10.1.0."))
	})

	eachKind(func(k kind) {
		It("removes later rules of the reference plugin for its address", Label("firewall-reference"), func() {
			keys := Object{"cniVersion": "1.0.0", "ingressPolicy": "isolated"}
			w, c := dropping()
			c.add(k.config, keys)
			w.Reference(nstest.Newest(), c.as("DEL", keys))
			w.Reference(nstest.Newest(), c.as("ADD", keys)).Added()
			c.del(keys)
			Expect(w.Snapshot("nftables") + w.filter()).NotTo(Or(ContainSubstring("10.1.0.2"), ContainSubstring("br1")))
		})
	})

	for _, variant := range []string{"nft", "legacy"} {
		Context("on iptables-"+variant, nstest.Variant(variant), func() {
			keys := Object{"cniVersion": "1.0.0", "ingressPolicy": "isolated"}
			// reference returns a network of the reference plugin only.
			reference := func() (w *world, a, b *container) {
				GinkgoHelper()
				nstest.UseVariant(variant)
				w, a, b = newContainers()
				for _, c := range []*container{a, b} {
					w.Reference(nstest.Newest(), c.as("ADD", keys)).Added()
				}
				return w, a, b
			}

			It("is not run by a failed ADD: rules of the reference plugin remain", func() {
				w, a, _ := reference()
				call := a.as("ADD", keys)
				call.Stdout = BrokenPipe{}
				Expect(w.Call(call).Code).To(Equal(1))
				a.check(keys)
			})

			It("of the reference plugin's last container ends its policy", Label("firewall-reference"), func() {
				w, a, b := reference()
				a.del()
				Expect(w.filter()).To(ContainSubstring("-i br1 -o br1"))
				b.check(keys)
				b.del()
				Expect(w.filter()).NotTo(ContainSubstring("br1"))
			})

			It("is not needed where the bridge went: GC ends the reference's policy", func() {
				w, a, b := reference()
				w.gc(2)
				Expect(w.filter()).To(ContainSubstring("-i br1 -o br1"))
				for _, c := range []*container{a, b} {
					w.Cmd("ip", "link", "del", c.hostEnd)
				}
				w.gc(2)
				Expect(w.filter()).NotTo(ContainSubstring("br1"))
			})
		})
	}

	It("before any ADD succeeds and creates nothing", func() {
		w := newWorld()
		c := w.container(1, 2)
		before := w.untouched()
		c.del()
		w.gc(1)
		Expect(w.untouched()).To(Equal(before))
	})
})

var _ = Describe("an ADD that fails", Label("kernel"), func() {
	eachKind(func(k kind) {
		for _, p := range []policy{policyOpen, policyIsolated} {
			keys := Object{"ingressPolicy": string(p)}
			It("with an unread result leaves only others' policy", Label("firewall-add-fails"), func() {
				w, stays := settled(k, keys)
				c := w.container(1, 2)
				for _, p := range []policy{policyIsolated, p} { // then the record that stays has its bridge
					c.add(k.config, Object{"ingressPolicy": string(p)})
					c.del()
				}
				before, files := w.state(), w.Files("/run/hawser")
				for _, other := range policies() {
					call := c.as("ADD", k.config, Object{"ingressPolicy": string(other)})
					call.Stdout = BrokenPipe{}
					Expect(w.Call(call).Code).To(Equal(1))
					Expect(w.state()).To(Equal(before))
					Expect(w.Files("/run/hawser")).To(Equal(files))
					stays.check(k.config, keys)
				}
			})
		}

		Context("of an attachment that had one", Ordered, func() {
			var w *world
			var old *container
			BeforeAll(func() { w, old = settled(k, nil) })

			It("because the attachment exists harms nothing", Label("firewall-add-fails"), func() {
				before := w.state() + w.Files("/run/hawser")
				Expect(w.Fails(old.as("ADD", k.config), 100)).To(ContainSubstring("c1-3"))
				Expect(w.state() + w.Files("/run/hawser")).To(Equal(before))
				old.check(k.config)
			})

			It("replaces stale rules of the same attachment in a former namespace", func() {
				again := w.container(1, 4)
				again.call.ID = old.call.ID
				again.add(k.config)
				again.check(k.config)
				Expect(w.state()).NotTo(ContainSubstring("10.1.0.3"))
			})
		})
	})
})

var _ = Describe("calls at once", Label("kernel"), func() {
	eachKind(func(k kind) {
		It("do not fail because of each other, and add nothing twice", func() {
			w := newWorld(1)
			w.forward("DROP")
			keys := Object{"ingressPolicy": "isolated"}
			alone := w.container(1, 100)
			alone.add(k.config, keys)
			alone.del()
			before := w.Snapshot("nftables", "iptables-legacy") + w.filter()
			var all []*container
			for i := range 12 {
				all = append(all, w.container(1, 2+i))
			}
			if k.variant == "nft" {
				w.Cmd("nft", "flush", "ruleset") // all are the first one
				w.forward("DROP")
			}
			for _, command := range []string{"ADD", "CHECK", "DEL"} {
				said := make([]Answer, len(all))
				nstest.AtOnce(len(all), func(i int) { said[i] = w.Exec(all[i].as(command, k.config, keys)) })
				for _, a := range said {
					Expect(a.Code).To(BeZero(), command+a.Stdout)
				}
			}
			Expect(w.Snapshot("nftables", "iptables-legacy") + w.filter()).To(Equal(before))
		})
	})
})

var _ = It("is listed until DEL, and the list changes nothing", Label("kernel"), func() {
	nstest.Need("nft")
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		keys := Object{"backend": "nftables", "ingressPolicy": "same-bridge"}
		a := w.AttachBehind(id, network, keys, Addrs(n)...)
		return a.As("DEL"), []string{fmt.Sprintf(
			"firewall: 10.1.0.%d 2001:db8:1::%d nftables policy same-bridge dev br-%s", n, n, network)}
	})
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[record],
	Entry("0.1.0",
		`"netns": ID, "backend": "nftables", "addrs": ["10.1.0.2"], "policy": "open"`,
		`"netnsPath": "", "netns": ID, "backend": "nftables", "addrs": ["10.1.0.2"], "policy": "open"`),
	Entry("before 0.2.0",
		`"path": "/run/netns/c1", "netns": ID, "backend": "nftables", "addrs": []`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "backend": "nftables", "addrs": []`))
