package portmap

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
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

// eachBackend runs specs that do not depend on the variant of iptables on each backend.
func eachBackend(specs func(k kind)) { onEach(kinds[:2], specs) }

func onEach(list []kind, specs func(k kind)) {
	for _, k := range list {
		Context("on "+k.name, nstest.Variant(k.variant), func() {
			BeforeEach(func() { nstest.UseVariant(k.variant) })
			specs(k)
		})
	}
}

// patience is the time for an answer that must come.
func patience() time.Duration { return nstest.Patience(nstest.Hang) }

// reach connects to a TCP host port from outside, and returns the source that the server sees.
func (w *world) reach(port int) string {
	GinkgoHelper()
	return ask(w.out, "tcp", fmt.Sprintf("192.0.2.1:%d", port), patience())
}

// serve answers on a TCP port of the container with the source of the request.
func (c *container) serve(port int) {
	GinkgoHelper()
	c.Serve("tcp4", fmt.Sprintf("%s:%d", c.addr(false), port))
}

var _ = Describe("a host port", Label("kernel"), func() {
	eachBackend(func(k kind) {
		var w *world
		var a, b *container

		BeforeEach(func() {
			w, a, b = newContainers()
			a.serve(80)
			b.serve(80)
		})

		It("of a live owner is refused before anything changes, and keeps working", Label("port-owner"), func() {
			a.add(k.config, ports("8080:80"))
			before := w.rules()
			files := w.Files("/run/hawser")
			Expect(b.fails("ADD", cni.CodePortTaken, k.config, ports("9000:80", "8080:80"))).
				To(Equal(`host port 0.0.0.0:8080/tcp: held on 0.0.0.0 by ` +
					`network "net1", container "c1-2", interface "eth0"`))
			Expect(w.rules()).To(Equal(before))
			Expect(w.Files("/run/hawser")).To(Equal(files))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			a.check(k.config, ports("8080:80"))
		})

		It("of the container's other network stays there, with a warning, and is free after its DEL", func() {
			first, second := a, a.second("eth1", 2, 2)
			second.serve(80)
			first.add(k.config, ports("8080:80"))
			Expect(w.Warns(second.as("ADD", k.config, ports("8080:80", "9000:80")))).To(ContainSubstring(
				`host port 0.0.0.0:8080/tcp: left to network "net1", container "c1-2", interface "eth0"`))
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

		It("of an owner without a namespace and a link passes to the next container", Label("port-owner"), func() {
			a.add(k.config, ports("8080:80", "9000:80"))
			a.vanish()
			b.add(k.config, ports("8080:80"))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			b.check(k.config, ports("8080:80"))
			a.del(ports("8080:80", "9000:80")) // late; the port has another owner now
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			b.check(k.config, ports("8080:80"))
			b.del()
			Expect(w.ruleset()).NotTo(Or(ContainSubstring("8080"), ContainSubstring("9000")))
		})

		It("of an owner whose namespace the kernel still removes passes to the next container", func() {
			gone := w.container(1, 4)
			gone.add(k.config, ports("8080:80"))
			kept := nstest.Must(os.Open(gone.Path))
			gone.Unpin()
			answer := make(chan outcome, 1)
			go func() {
				defer GinkgoRecover()
				answer <- b.call("ADD", k.config, ports("8080:80"))
			}()
			w.AwaitSubscription(Links)
			Expect(kept.Close()).To(Succeed())
			// The kernel may have other namespaces to remove, and be too slow for one ADD.
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

		It("is refused to a second ADD of its attachment, and keeps working", func() {
			a.add(k.config, ports("8080:80"))
			b.add(k.config, ports("8081:80"))
			before := w.rules() + w.Files("/run/hawser")
			for _, second := range []struct {
				keys Object
				code uint
			}{
				{ports("8080:80", "9000:80"), cni.CodeExists},
				{ports("8080:80", "8081:80"), cni.CodeExists}, // one belongs to another container
				{Object{"backend": "iptables"}, cni.CodeExists},
				{Object{"backend": "nftables"}, cni.CodeExists},
				{Object{"backend": nil, "conditionsV4": []string{"ip", "saddr", "none"}}, cni.CodeExists},
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

var _ = Describe("host ports", Label("kernel"), func() {
	It("of owners whose links remain are refused after one wait for all of them", func() {
		w, b := newContainer()
		var held []string
		for i := range 6 {
			stale := w.container(1, 10+i)
			held = append(held, fmt.Sprintf("%d:80", 8000+i))
			stale.add(ports(held[i]))
			kept := nstest.Must(os.Open(stale.Path))
			DeferCleanup(kept.Close)
			stale.Unpin()
		}
		Eventually(func() time.Duration { // separate waits always exceed the limit, a busy machine only sometimes
			begin := time.Now()
			Expect(b.call("ADD", ports(held...)).Code).To(Equal(cni.CodePortTaken))
			return time.Since(begin)
		}).Should(BeNumerically("<", nstest.Patience(3*leaveTimeout)))
	})
})

var _ = Describe("host ports of several", Label("kernel"), func() {
	eachKind(func(k kind) {
		var w *world
		var a, b *container

		BeforeEach(func() {
			w, a, b = newContainers()
			a.serve(80)
			b.serve(80)
		})

		It("containers work that start in parallel on a new host, with one set of shared rules", func() {
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
		It("need route_localnet only on the link of the network that serves them", func() {
			w := newWorld()
			w.settle(k)
			before := w.rules()
			first := w.container(1, 2)
			second := first.second("eth1", 2, 2)
			first.serve(80)
			second.serve(80)
			first.add(k.config, ports("8080:80"))
			second.add(k.config, ports("8080:80"))
			Expect(w.localnet()).To(Equal("10"))
			second.check(k.config, ports("8080:80"))
			Expect(ask(w.Host, "tcp", "127.0.0.1:8080", patience())).To(Equal("10.1.0.1"))
			first.del()
			Expect(w.localnet()).To(Equal("00"))
			second.check(k.config, ports("8080:80"))
			second.del()
			second.add(k.config, ports("[2001:db8::1]:8080:80"))
			Expect(w.localnet()).To(Equal("00"))
			second.check(k.config, ports("[2001:db8::1]:8080:80"))
			second.del()
			Expect(w.rules()).To(Equal(before))
		})
	})
})

var _ = Describe("a host port whose rules were flushed", Label("kernel"), func() {
	for _, k := range kinds[1:] {
		It("still belongs to its live owner on "+k.name, nstest.Variant(k.variant), func() {
			nstest.UseVariant(k.variant)
			w, a, b := newContainers()
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

var _ = Describe("the lock", Label("kernel", "lock-deadline"), func() {
	It("of legacy iptables delays ADD until its deadline, and the error names the holder", func() {
		nstest.UseVariant("legacy")
		w := newWorld()
		a := w.container(1, 2)
		w.settle(kinds[2])
		before := w.rules()
		holding := w.HoldLock("/run/xtables.lock")
		call := a.as("ADD", kinds[2].config, ports("8080:80"))
		call.Ctx = nstest.DeadlineWhen(func() bool { return strings.Contains(w.Cmd("cat", "/proc/locks"), "-> FLOCK") })
		o := w.run(call)
		Expect(o.Code).To(Equal(cni.CodeTryAgain), o.text())
		Expect(o.Msg).To(ContainSubstring("held by process %d (flock)", holding.Pid))
		nstest.ReleaseLock(holding)
		a.del(kinds[2].config)
		Expect(w.rules()).To(Equal(before))
	})
})

var _ = Describe("an ADD that is killed", Label("kernel"), func() {
	It("keeps no port of a stale record of its attachment from another container", func() {
		w, a, b := newContainers()
		b.serve(80)
		a.add(ports("192.0.2.1:8080:80"))
		a.vanish()
		again := w.container(1, 2)
		holding := w.HoldLock("/run/hawser/nft.lock")
		locks := func() string { return w.Cmd("cat", "/proc/locks") }
		adding := w.Start(again.as("ADD", ports("9000:80")).Program(w.World, nstest.Build("portmap")))
		Eventually(locks).Should(MatchRegexp(fmt.Sprintf(`-> FLOCK +ADVISORY +WRITE %d `, adding.Process.Pid)))
		Expect(adding.Process.Kill()).To(Succeed())
		Expect(adding.Wait()).NotTo(Succeed())
		nstest.ReleaseLock(holding)
		b.add(ports("8080:80"))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		again.del()
		b.del()
		Expect(w.Snapshot("nftables")).NotTo(MatchRegexp("8080|9000"))
	})
})

// walk makes random calls for a few containers on two networks, and models which attachment owns which host port.
type walk struct {
	*rand.Rand
	w    *world
	all  []*container
	live map[*container][]Object // configurations of live attachments
	held map[*container][]held
}

// held is a host port of one family.
type held struct {
	v6                  bool
	addr, proto, number string // no address: all
}

// collides reports a conflict by the rules of bind(2).
func (h held) collides(others []held) bool {
	return slices.ContainsFunc(others, func(o held) bool {
		isSame := h.v6 == o.v6 && h.proto == o.proto && h.number == o.number
		return isSame && (h.addr == o.addr || h.addr == "" || o.addr == "")
	})
}

// pick returns a random element of a list.
func pick[T any](r *walk, list ...T) T { return list[r.IntN(len(list))] }

func newWalk(seed uint64, variant string) *walk {
	GinkgoHelper()
	nstest.UseVariant(variant)
	r := &walk{Rand: rand.New(rand.NewPCG(seed, 0)), w: newWorld(), live: map[*container][]Object{},
		held: map[*container][]held{}}
	for i := range 3 {
		r.all = append(r.all, r.container(i)...)
	}
	return r
}

// container returns three attachments of a new container: to network 1, to network 2 and to network 1 again.
func (r *walk) container(i int) []*container {
	GinkgoHelper()
	c := r.w.container(1, 2+i)
	return []*container{c, c.second("eth1", 2, 2+i), c.second("eth2", 1, 20+i)}
}

// config returns a few ports, which often collide, with some options, and the host ports that they claim.
func (r *walk) config() (config []Object, wanted []held) {
	var list []string
	for range 1 + r.IntN(3) {
		host := pick(r, "", "192.0.2.1:", "127.0.0.1:", "[2001:db8::1]:", "0.0.0.0:", "[::]:")
		number, proto := fmt.Sprint(8080+r.IntN(3)), pick(r, "tcp", "udp")
		list = append(list, host+number+":80/"+proto)
		for _, v6 := range []bool{false, true} {
			if host == "" || strings.Contains(host, "[") == v6 {
				addr := map[bool]string{true: host}[!strings.Contains("0.0.0.0: [::]:", host)]
				wanted = append(wanted, held{v6, addr, proto, number})
			}
		}
	}
	only := Object{"conditionsV4": []string{"ip", "saddr", "!=", "198.51.100.1"},
		"conditionsV6": []string{"ip6", "saddr", "!=", "fd99::1"}}
	return []Object{ports(list...), pick(r, Object{}, Object{}, Object{"snat": false}, Object{"masqAll": true},
		Object{"backend": "iptables"}, only)}, wanted
}

// gc runs a GC of a network, in which some attachments are not valid.
func (r *walk) gc(network string) string {
	GinkgoHelper()
	valid := []string{"c1-98/eth0", "c1-99/eth0"}
	for _, c := range r.all {
		if r.live[c] == nil || c.network != network {
			continue
		}
		if r.IntN(4) > 0 {
			valid = append(valid, c.id+"/"+c.ifName)
		} else {
			r.end(c)
		}
	}
	r.w.gc(network, valid...)
	return fmt.Sprint("GC ", network, valid)
}

func (r *walk) end(c *container) {
	delete(r.live, c)
	delete(r.held, c)
}

// die ends a container without DEL, and creates another one with its name.
func (r *walk) die(i int) string {
	GinkgoHelper()
	for n, c := range r.all[3*i : 3*i+3] {
		r.end(c)
		if n == 0 {
			c.vanish()
		}
		r.w.Run(nstest.Program{Path: "ip", Args: []string{"link", "del", c.hostEnd}})
	}
	copy(r.all[3*i:], r.container(i))
	return fmt.Sprint("end of container ", i)
}

// add runs an ADD and compares it with the model. A port of another container is refused. A port of the container's
// other network is left to that network. If both apply, both results are accepted.
func (r *walk) add(c *container) string {
	GinkgoHelper()
	config, wanted := r.config()
	var own, others []held
	for _, o := range r.all {
		if o.id == c.id && o.network != c.network {
			own = append(own, r.held[o]...)
		} else if o != c {
			others = append(others, r.held[o]...)
		}
	}
	yields := func(h held) bool { return h.collides(own) }
	free := slices.DeleteFunc(slices.Clone(wanted), yields)
	o := c.call("ADD", config...)
	what := fmt.Sprint("ADD ", c.network, c.id, c.ifName, config, o.Msg)
	isTaken := slices.ContainsFunc(free, func(h held) bool { return h.collides(others) })
	mayBeTaken := slices.ContainsFunc(wanted, func(h held) bool { return h.collides(others) })
	if isTaken || mayBeTaken && o.exit != 0 {
		Expect(o.Code).To(Equal(cni.CodePortTaken), what)
		return what
	}
	Expect(o.exit).To(BeZero(), what)
	Expect(strings.Contains(o.stderr, "left to")).To(Equal(len(free) < len(wanted)), what)
	r.live[c], r.held[c] = config, free
	return what
}

// step runs one call and returns its name.
func (r *walk) step() string {
	GinkgoHelper()
	c := pick(r, r.all...)
	config, lives := r.live[c]
	switch op := r.IntN(20); {
	case op < 2:
		return r.gc(c.network)
	case op == 2:
		return r.die(r.IntN(3))
	case op < 9:
		c.del(config...)
		r.end(c)
		return fmt.Sprint("DEL ", c.network, c.id, c.ifName)
	case lives:
		Expect(c.call("ADD", config...).Code).To(Equal(cni.CodeExists))
		return "second ADD"
	}
	return r.add(c)
}

var _ = Describe("host ports", Label("kernel"), func() {
	DescribeTable("in any order of calls belong to the first owner, pass CHECK, and are removed", func(
		n int, variant string,
	) {
		r := newWalk(uint64(GinkgoRandomSeed())+uint64(n), variant)
		r.w.container(1, 98).add(ports("7000:80")) // creates the shared rules
		r.w.container(1, 99).add(Object{"backend": "iptables"}, ports("7001:80"))
		before := r.w.rules()
		for range 16 {
			for range 5 {
				GinkgoWriter.Println(r.step())
			}
			for c, config := range r.live {
				c.check(config...)
			}
		}
		for _, c := range r.all {
			c.del()
		}
		Expect(r.w.rules()).To(Equal(before))
	},
		Entry("a", 0, "nft"),
		Entry("b", Label("slow"), 1, "nft"),
		Entry("c", Label("slow"), 2, "nft"),
		Entry("a, by iptables-legacy", Label("slow"), 0, "legacy"),
		Entry("b, by iptables-legacy", Label("slow"), 1, "legacy"),
	)
})

var _ = DescribeTable("a host port of a stale owner with another mark bit leaves no chain behind",
	func(conditions Object) {
		w, a, b := newContainers()
		a.add(conditions, Object{"markMasqBit": 5}, ports("8080:80"))
		a.vanish()
		b.add(conditions, Object{"markMasqBit": 6}, ports("8080:80"))
		Expect(w.ruleset()).NotTo(ContainSubstring("masq_v1_5_"))
		b.del()
		Expect(w.ruleset()).NotTo(ContainSubstring("masq_v1_"))
	},
	Entry("with conditions for one family", Object{"conditionsV6": []string{"ip6", "saddr", "fd00::/8"}}),
	Entry("without conditions", Object{}),
)
