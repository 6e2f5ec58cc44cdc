package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// eachKind runs the same specs on each backend, with either variant of iptables.
func eachKind(specs func(k kind)) { onEach(kinds, specs) }

// eachBackend runs the same specs on each backend, for what is the same with either variant of iptables.
func eachBackend(specs func(k kind)) { onEach(kinds[:2], specs) }

func onEach(list []kind, specs func(k kind)) {
	for _, k := range list {
		Context("on "+k.name, func() {
			BeforeEach(func() { useVariant(k.variant) })
			specs(k)
		})
	}
}

// patience is the time for an answer that must come.
func patience() time.Duration { return nstest.Patience(nstest.Hang) }

// reach asks a TCP host port from outside: the source that the server sees.
func (w *world) reach(port int) string {
	GinkgoHelper()
	return ask(w.out, "tcp", fmt.Sprintf("192.0.2.1:%d", port), patience())
}

// serve answers on a TCP port of the container with the source.
func (c *container) serve(port int) {
	GinkgoHelper()
	c.Serve("tcp4", fmt.Sprintf("%s:%d", c.addr(false), port))
}

var _ = Describe("a host port", Label("kernel"), func() {
	eachBackend(func(k kind) {
		var w *world
		var a, b *container

		BeforeEach(func() {
			w = newWorld()
			w.bridge(1)
			a, b = w.container(1, 2), w.container(1, 3)
			a.serve(80)
			b.serve(80)
		})

		It("of a live owner is refused before anything changes, and keeps working", Label("port-owner"), func() {
			a.add(k.config, ports("8080:80"))
			before := w.rules()
			files := w.Files("/run/hawser")
			o := b.call("ADD", k.config, ports("9000:80", "8080:80"))
			Expect(o.Code).To(Equal(cni.CodePortTaken))
			Expect(o.Msg).To(Equal(`host port 0.0.0.0:8080/tcp: held on 0.0.0.0 (all addresses) by ` +
				`network "net1", container "c1-2", interface "eth0"`))
			Expect(w.rules()).To(Equal(before))
			Expect(w.Files("/run/hawser")).To(Equal(files))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			a.check(k.config, ports("8080:80"))
		})

		It("of the container's other network is left to that with a warning, and nothing is handed on", func() {
			w.bridge(2)
			first, second := a, a.second("eth1", 2, 2)
			second.serve(80)
			first.add(k.config, ports("8080:80"))
			o := second.call("ADD", k.config, ports("8080:80", "9000:80"))
			Expect(o.exit).To(BeZero(), o.text())
			Expect(o.stderr).To(ContainSubstring(`host port 0.0.0.0:8080/tcp: left to ` +
				`network "net1", container "c1-2", interface "eth0"`))
			first.check(k.config, ports("8080:80"))
			second.check(k.config, ports("8080:80", "9000:80"))
			Expect(b.call("ADD", k.config, ports("8080:80")).Code).To(Equal(cni.CodePortTaken))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			first.del()
			second.check(k.config, ports("8080:80", "9000:80"))
			Expect(w.reach(8080)).To(Equal(refused))
			Expect(w.reach(9000)).To(Equal("192.0.2.2"))
			b.add(k.config, ports("8080:80"))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			second.del()
			b.check(k.config, ports("8080:80"))
			Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(ContainSubstring("9000"))
		})

		DescribeTable("is refused as bind would refuse it", func(first, second string, taken bool) {
			a.add(k.config, ports(first))
			o := b.call("ADD", k.config, ports(second))
			if taken {
				Expect(o.Code).To(Equal(cni.CodePortTaken), o.text())
				return
			}
			Expect(o.exit).To(BeZero(), o.text())
			a.check(k.config, ports(first))
			b.check(k.config, ports(second))
		},
			Entry("one address beside all", "8080:80", "192.0.2.1:8080:80", true),
			Entry("all beside one address", "192.0.2.1:8080:80", "8080:80", true),
			Entry("different addresses", "192.0.2.1:8080:80", "127.0.0.1:8080:80", false),
			Entry("different protocols", "8080:80/tcp", "8080:80/udp", false),
			Entry("different families", "0.0.0.0:8080:80", "[::]:8080:80", false),
		)

		It("of an owner whose namespace and link are gone passes to the next", Label("port-owner"), func() {
			a.add(k.config, ports("8080:80", "9000:80"))
			a.vanish()
			b.add(k.config, ports("8080:80"))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			b.check(k.config, ports("8080:80"))
			a.del(ports("8080:80", "9000:80")) // late, and somebody else's by now
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			b.check(k.config, ports("8080:80"))
			b.del()
			Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(ContainSubstring("8080"))
			Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(ContainSubstring("9000"))
		})

		It("of an owner whose namespace the kernel still keeps for a moment passes to the next", func() {
			gone := w.container(1, 4)
			gone.add(k.config, ports("8080:80"))
			kept, err := os.Open(gone.Path)
			Expect(err).NotTo(HaveOccurred())
			gone.Unpin()
			answer := make(chan outcome, 1)
			go func() {
				defer GinkgoRecover()
				answer <- b.call("ADD", k.config, ports("8080:80"))
			}()
			waits := func() string { return w.Cmd("cat", "/proc/thread-self/net/netlink") }
			Eventually(waits).Should(MatchRegexp(`(?m)^\S+ 0 +\d+ +00000001 `))
			Expect(kept.Close()).To(Succeed())
			// The kernel may have the namespaces of others to end, and be too slow for one ADD.
			o := <-answer
			Eventually(func() int {
				if o.exit != 0 {
					Expect(o.Code).To(Equal(cni.CodePortTaken), o.text())
					o = b.call("ADD", k.config, ports("8080:80"))
				}
				return o.exit
			}).Should(BeZero())
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		})

		It("of owners whose links stay is refused after one wait for all of them", func() {
			var held []string
			for i := range 6 {
				stale := w.container(1, 10+i)
				held = append(held, fmt.Sprintf("%d:80", 8000+i))
				stale.add(k.config, ports(held[i]))
				kept, err := os.Open(stale.Path)
				Expect(err).NotTo(HaveOccurred())
				DeferCleanup(kept.Close)
				stale.Unpin()
			}
			begin := time.Now()
			Expect(b.call("ADD", k.config, ports(held...)).Code).To(Equal(cni.CodePortTaken))
			Expect(time.Since(begin)).To(BeNumerically("<", nstest.Patience(3*linkPatience)))
		})

		It("of an owner stays its own as long as either is there", func() {
			a.add(k.config, ports("8080:80"))
			a.Unpin() // the path may be invisible from here: the link still says that it lives
			Expect(b.call("ADD", k.config, ports("8080:80")).Code).To(Equal(cni.CodePortTaken))
		})

		It("of an owner passes on when its path leads to another namespace, and not while the link is there", func() {
			a.add(k.config, ports("8080:80"))
			a.Unpin()
			w.Cmd("touch", a.Path)
			w.Cmd("mount", "--bind", b.Path, a.Path)
			DeferCleanup(func() { w.Run(nstest.Program{Path: "umount", Args: []string{a.Path}}) })
			Expect(b.call("ADD", k.config, ports("8080:80")).Code).To(Equal(cni.CodePortTaken))
			w.Run(nstest.Program{Path: "ip", Args: []string{"link", "del", a.hostEnd}})
			b.add(k.config, ports("8080:80"))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		})

		It("is asked for twice by the same attachment: the second fails, the first works on", func() {
			a.add(k.config, ports("8080:80"))
			b.add(k.config, ports("8081:80"))
			before := w.rules() + w.Files("/run/hawser")
			for _, second := range []struct {
				keys object
				code uint
			}{
				{ports("8080:80", "9000:80"), cni.CodeExists},
				{ports("8080:80", "8081:80"), cni.CodeExists}, // one is taken, too
				{object{"backend": "iptables"}, cni.CodeExists},
				{object{"backend": "nftables"}, cni.CodeExists},
				{object{"backend": nil, "conditionsV4": []string{"ip", "none"}}, cni.CodeExists},
				{object{"prevResult": object{"cniVersion": "1.1.0"}}, cni.CodeConfig},
			} {
				o := a.call("ADD", k.config, ports("8080:80"), second.keys)
				Expect(o.Code).To(Equal(second.code), o.text())
				Expect(w.rules()+w.Files("/run/hawser")).To(Equal(before), "%v", second.keys)
			}
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			a.check(k.config, ports("8080:80"))
		})

		It("is taken over by the same attachment in a new namespace", func() {
			a.add(k.config, ports("8080:80", "9000:80"))
			a.vanish()
			again := w.container(1, 2)
			again.serve(81)
			again.add(k.config, ports("8080:81"))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			again.check(k.config, ports("8080:81"))
			again.del()
			Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(MatchRegexp("8080|9000"))
		})
	})

	It("of a live owner on the other backend is refused, of one that is gone replaced", func() {
		useVariant("nft")
		w := newWorld()
		w.bridge(1)
		a, b := w.container(1, 2), w.container(1, 3)
		b.serve(80)
		for i, order := range [][]object{{{"backend": "iptables"}, {}}, {{}, {"backend": "iptables"}}} {
			port := fmt.Sprintf("808%d:80", i)
			if i > 0 {
				a = w.container(1, 2)
				b.del()
			}
			a.add(order[0], ports(port))
			Expect(b.call("ADD", order[1], ports(port)).Code).To(Equal(cni.CodePortTaken))
			a.vanish()
			b.add(order[1], ports(port))
			b.check(order[1], ports(port))
			Expect(w.reach(8080 + i)).To(Equal("192.0.2.2"))
			Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("10.1.0.2"))
		}
	})
})

var _ = Describe("host ports of several", Label("kernel"), func() {
	eachKind(func(k kind) {
		var w *world
		var a, b *container

		BeforeEach(func() {
			w = newWorld()
			w.bridge(1)
			a, b = w.container(1, 2), w.container(1, 3)
			a.serve(80)
			b.serve(80)
		})

		It("that begin at once on a new host work, from one set of shared rules", func() {
			all := []*container{a, b}
			for i := range 6 {
				all = append(all, w.container(1, 4+i))
			}
			nstest.AtOnce(len(all), func(i int) { all[i].add(k.config, ports(fmt.Sprintf("%d:80", 8000+i))) })
			for i, c := range all {
				c.check(k.config, ports(fmt.Sprintf("%d:80", 8000+i)))
			}
			for i := range 2 {
				Expect(w.reach(8000 + i)).To(Equal("192.0.2.2"))
			}
			if k.name == "nftables" {
				Expect(strings.Count(w.Cmd("nft", "list", "ruleset"), "masquerade\n")).To(Equal(1))
			} else {
				Expect(strings.Count(w.natRules(), "-j CNI-HOSTPORT-DNAT")).To(Equal(4))
			}
			nstest.AtOnce(len(all), func(i int) { all[i].del(k.config) })
			Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(MatchRegexp(`80\d\d|CNI-DN`))
		})
	})
})
