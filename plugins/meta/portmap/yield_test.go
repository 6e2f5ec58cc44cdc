package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

var _ = Describe("a container's ports on its other networks", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("are yielded, however many of them there are and though they need nothing else", func() {
			w := newWorld()
			for n := range 3 {
				w.bridge(1 + n)
			}
			w.settle(k)
			c := w.container(1, 2)
			all := []*container{c, c.second("eth1", 2, 2), c.second("eth2", 3, 2)}
			before := w.rules()
			for _, c := range all {
				c.add(k.config, object{"snat": false}, ports("8080:80"))
			}
			for _, c := range all {
				c.check(k.config, object{"snat": false}, ports("8080:80"))
			}
			for _, c := range all {
				c.del()
			}
			Expect(w.rules()).To(Equal(before))
		})

		DescribeTable("pass to the next container when it is gone", func(config object) {
			w := newWorld()
			w.bridge(1)
			w.bridge(2)
			w.settle(k)
			before := w.rules()
			first := w.container(1, 2)
			second := first.second("eth1", 2, 2)
			first.add(k.config, config, ports("8080:80"))
			second.add(k.config, config, ports("8080:80"))
			first.vanish()
			second.vanish()
			next := w.container(1, 3)
			next.serve(80)
			next.add(k.config, ports("8080:80"))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			next.check(k.config, ports("8080:80"))
			next.del()
			Expect(w.rules()).To(Equal(before))
			second.del()
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		},
			Entry("by default", object{}),
			Entry("where the second needs nothing else", object{"snat": false}),
		)

		It("need route_localnet on the link of the network that serves them, and on no other", func() {
			w := newWorld()
			w.bridge(1)
			w.bridge(2)
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
			w.bridge(1)
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
