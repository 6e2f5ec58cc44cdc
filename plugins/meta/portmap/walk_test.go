package main

import (
	"fmt"
	"math/rand/v2"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// walk is calls at random for a few containers on two networks.
type walk struct {
	*rand.Rand
	w    *world
	all  []*container
	live map[*container][]object // what ADD was told
}

// pick is one of a list.
func pick[T any](r *walk, list ...T) T { return list[r.IntN(len(list))] }

func newWalk(seed uint64) *walk {
	GinkgoHelper()
	useVariant("nft")
	r := &walk{Rand: rand.New(rand.NewPCG(seed, 0)), w: newWorld(), live: map[*container][]object{}}
	r.w.bridge(1)
	r.w.bridge(2)
	for i := range 3 {
		c := r.w.container(1, 2+i)
		r.all = append(r.all, c, c.second("eth1", 2, 2+i), c.second("eth2", 1, 20+i))
	}
	return r
}

// config is a few ports, which often collide, with some options.
func (r *walk) config() []object {
	var list []string
	for range 1 + r.IntN(3) {
		host := pick(r, "", "192.0.2.1:", "127.0.0.1:", "[2001:db8::1]:", "0.0.0.0:", "[::]:")
		list = append(list, fmt.Sprintf("%s%d:80/%s", host, 8080+r.IntN(3), pick(r, "tcp", "udp")))
	}
	only := object{"conditionsV4": []string{"ip", "saddr", "!=", "198.51.100.1"},
		"conditionsV6": []string{"ip6", "saddr", "!=", "fd99::1"}}
	return []object{ports(list...), pick(r, object{}, object{}, object{"snat": false}, object{"masqAll": true},
		object{"backend": "iptables"}, only)}
}

// ended expects that a DEL or GC succeeded.
func (r *walk) ended(o outcome) {
	GinkgoHelper()
	Expect(o.text()).To(Equal("exit 0  "))
}

// step makes one call and says which.
func (r *walk) step() string {
	GinkgoHelper()
	c := pick(r, r.all...)
	config, lives := r.live[c]
	switch op := r.IntN(10); {
	case op == 0:
		valid := []string{"c1-98/eth0", "c1-99/eth0"}
		for _, other := range r.all {
			if r.live[other] == nil || other.network != c.network {
				continue
			}
			if r.IntN(4) > 0 {
				valid = append(valid, other.id+"/"+other.ifName)
			} else {
				delete(r.live, other)
			}
		}
		r.ended(r.w.tryGC(c.network, valid...))
		return fmt.Sprint("GC ", c.network, valid)
	case op < 4:
		r.ended(c.call("DEL", config...))
		delete(r.live, c)
		return fmt.Sprint("DEL ", c.network, c.id, c.ifName)
	case lives:
		return "nothing"
	}
	config = r.config()
	o := c.call("ADD", config...)
	if o.exit == 0 {
		r.live[c] = config
	} else {
		Expect(o.Code).To(Equal(cni.CodePortTaken), o.text())
	}
	return fmt.Sprint("ADD ", c.network, c.id, c.ifName, config, o.Msg)
}

var _ = Describe("host ports", Label("kernel"), func() {
	DescribeTable("in any order of calls stay as CHECK wants them, and leave nothing", func(n int) {
		r := newWalk(uint64(GinkgoRandomSeed()) + uint64(n))
		r.w.container(1, 98).add(ports("7000:80")) // what all share is there
		r.w.container(1, 99).add(object{"backend": "iptables"}, ports("7001:80"))
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
			r.ended(c.call("DEL"))
		}
		Expect(r.w.rules()).To(Equal(before))
	},
		Entry("a", 0),
		Entry("b", 1),
	)
})
