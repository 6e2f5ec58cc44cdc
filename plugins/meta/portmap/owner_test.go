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
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
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
			Expect(o.Msg).To(Equal(`host port 0.0.0.0:8080/tcp: held on 0.0.0.0 by ` +
				`network "net1", container "c1-2", interface "eth0"`))
			Expect(w.rules()).To(Equal(before))
			Expect(w.Files("/run/hawser")).To(Equal(files))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			a.check(k.config, ports("8080:80"))
		})

		It("of the container's other network is left to that with a warning, and nothing is handed on", func() {
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
			Expect(w.ruleset()).NotTo(ContainSubstring("9000"))
		})

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
			Expect(w.ruleset()).NotTo(ContainSubstring("8080"))
			Expect(w.ruleset()).NotTo(ContainSubstring("9000"))
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

		It("is asked for twice by the same attachment: the second fails, the first works on", func() {
			a.add(k.config, ports("8080:80"))
			b.add(k.config, ports("8081:80"))
			before := w.rules() + w.Files("/run/hawser")
			for _, second := range []struct {
				keys Object
				code uint
			}{
				{ports("8080:80", "9000:80"), cni.CodeExists},
				{ports("8080:80", "8081:80"), cni.CodeExists}, // one is taken, too
				{Object{"backend": "iptables"}, cni.CodeExists},
				{Object{"backend": "nftables"}, cni.CodeExists},
				{Object{"backend": nil, "conditionsV4": []string{"ip", "none"}}, cni.CodeExists},
				{Object{"prevResult": Object{"cniVersion": "1.1.0"}}, cni.CodeConfig},
			} {
				o := a.call("ADD", k.config, ports("8080:80"), second.keys)
				Expect(o.Code).To(Equal(second.code), o.text())
				Expect(w.rules()+w.Files("/run/hawser")).To(Equal(before), "%v", second.keys)
			}
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			a.check(k.config, ports("8080:80"))
		})
	})
})

// These wait for links, alike on each backend.
var _ = Describe("a host port whose owner may be gone", Label("kernel"), func() {
	var w *world
	var a, b *container

	BeforeEach(func() {
		w = newWorld()
		a, b = w.container(1, 2), w.container(1, 3)
		a.serve(80) // which keeps its namespace
		b.serve(80)
	})

	It("of owners whose links stay is refused after one wait for all of them", func() {
		var held []string
		for i := range 6 {
			stale := w.container(1, 10+i)
			held = append(held, fmt.Sprintf("%d:80", 8000+i))
			stale.add(ports(held[i]))
			kept, err := os.Open(stale.Path)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(kept.Close)
			stale.Unpin()
		}
		begin := time.Now()
		Expect(b.call("ADD", ports(held...)).Code).To(Equal(cni.CodePortTaken))
		Expect(time.Since(begin)).To(BeNumerically("<", nstest.Patience(3*linkPatience)))
	})

	It("of an owner stays its own as long as either is there", func() {
		a.add(ports("8080:80"))
		a.Unpin() // the path may be invisible from here: the link still says that it lives
		Expect(b.call("ADD", ports("8080:80")).Code).To(Equal(cni.CodePortTaken))
	})

	It("of an owner passes on when its path leads to another namespace, and not while the link is there", func() {
		a.add(ports("8080:80"))
		a.Unpin()
		w.Cmd("touch", a.Path)
		w.Cmd("mount", "--bind", b.Path, a.Path)
		DeferCleanup(func() { w.Run(nstest.Program{Path: "umount", Args: []string{a.Path}}) })
		Expect(b.call("ADD", ports("8080:80")).Code).To(Equal(cni.CodePortTaken))
		w.Run(nstest.Program{Path: "ip", Args: []string{"link", "del", a.hostEnd}})
		b.add(ports("8080:80"))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
	})
})

var _ = Describe("host ports of several", Label("kernel"), func() {
	eachKind(func(k kind) {
		var w *world
		var a, b *container

		BeforeEach(func() {
			w = newWorld()
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
			Expect(w.ruleset()).NotTo(MatchRegexp(`80\d\d|CNI-DN`))
		})
	})
})

var _ = Describe("a container's ports on its other networks", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("need route_localnet on the link of the network that serves them, and on no other", func() {
			w := newWorld()
			w.settle(k)
			before := w.rules()
			first := w.container(1, 2)
			second := first.second("eth1", 2, 2)
			first.serve(80)
			second.serve(80)
			localnet := func() string {
				return w.Sysctl("net/ipv4/conf/br1/route_localnet") + w.Sysctl("net/ipv4/conf/br2/route_localnet")
			}
			first.add(k.config, ports("8080:80"))
			second.add(k.config, ports("8080:80"))
			Expect(localnet()).To(Equal("10"))
			second.check(k.config, ports("8080:80"))
			Expect(ask(w.Host, "tcp", "127.0.0.1:8080", patience())).To(Equal("10.1.0.1"))
			first.del()
			Expect(localnet()).To(Equal("00"))
			second.check(k.config, ports("8080:80"))
			second.del()
			second.add(k.config, ports("[2001:db8::1]:8080:80"))
			Expect(localnet()).To(Equal("00"))
			second.check(k.config, ports("[2001:db8::1]:8080:80"))
			second.del()
			Expect(w.rules()).To(Equal(before))
		})
	})
})

var _ = Describe("a host port whose rules somebody flushed", Label("kernel"), func() {
	for _, k := range kinds[1:] {
		It("stays its live owner's on "+k.name, func() {
			useVariant(k.variant)
			w := newWorld()
			a, b := w.container(1, 2), w.container(1, 3)
			a.add(k.config, ports("8080:80"))
			for _, program := range []string{"iptables", "ip6tables"} {
				w.Cmd(program, "-t", "nat", "-F")
				w.Cmd(program, "-t", "nat", "-X")
			}
			Expect(b.call("ADD", k.config, ports("8080:80")).Code).To(Equal(cni.CodePortTaken))
			a.del()
			b.add(k.config, ports("8080:80"))
		})
	}
})
