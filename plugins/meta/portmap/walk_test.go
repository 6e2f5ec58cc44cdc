package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// walk is calls at random for a few containers on two networks, and a model of who has which host port.
type walk struct {
	*rand.Rand
	w    *world
	all  []*container
	live map[*container][]Object // what ADD was told
	held map[*container][]held
}

// held is a host port of one family.
type held struct {
	v6                  bool
	addr, proto, number string // no address: all
}

// collides says what bind(2) would say.
func (h held) collides(others []held) bool {
	return slices.ContainsFunc(others, func(o held) bool {
		isSame := h.v6 == o.v6 && h.proto == o.proto && h.number == o.number
		return isSame && (h.addr == o.addr || h.addr == "" || o.addr == "")
	})
}

// pick is one of a list.
func pick[T any](r *walk, list ...T) T { return list[r.IntN(len(list))] }

func newWalk(seed uint64, variant string) *walk {
	GinkgoHelper()
	useVariant(variant)
	r := &walk{Rand: rand.New(rand.NewPCG(seed, 0)), w: newWorld(), live: map[*container][]Object{},
		held: map[*container][]held{}}
	for i := range 3 {
		r.all = append(r.all, r.container(i)...)
	}
	return r
}

// container is the three attachments of one: to network 1, to network 2 and to network 1 again.
func (r *walk) container(i int) []*container {
	GinkgoHelper()
	c := r.w.container(1, 2+i)
	return []*container{c, c.second("eth1", 2, 2+i), c.second("eth2", 1, 20+i)}
}

// config is a few ports, which often collide, with some options.
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

// gc forgets some attachments of a network.
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

// die ends a container without DEL, and makes another one of its name.
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

// add expects what the model says: a port of another container is refused; one of the same container's other network
// is left to that. Where a port is both, either may come of it.
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

// step makes one call and says which.
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
	DescribeTable("in any order of calls are whose they were first, as CHECK wants them, and gone", func(n int, variant string) {
		r := newWalk(uint64(GinkgoRandomSeed())+uint64(n), variant)
		r.w.container(1, 98).add(ports("7000:80")) // what all share is there
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
		Entry("b", 1, "nft"),
		Entry("c", 2, "nft"),
		Entry("a, by iptables-legacy", 0, "legacy"),
		Entry("b, by iptables-legacy", 1, "legacy"),
	)
})
