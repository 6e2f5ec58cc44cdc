package portmap

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("the target address of a host port", Label("kernel", "port-target"), func() {
	eachBackend(func(k kind) {
		Context("that is not one of the container's", Ordered, func() {
			var w *world
			var first, second *container // on networks 1 and 2
			var before string

			BeforeAll(func() {
				w = newWorld()
				w.container(1, 2)
				first, second = w.container(1, 9), w.container(2, 9)
				w.IP("route add default via 192.0.2.2")
				before = w.rules()
			})

			DescribeTable("is refused without a record if it is", func(
				network int, ip, inside, reason string,
			) {
				c := *map[int]*container{1: first, 2: second}[network]
				if inside != "" {
					c.IP("addr add " + inside + " dev eth0")
					DeferCleanup(c.IP, "addr del "+inside+" dev eth0")
				}
				c.ips = []string{ip}
				Expect(c.fails("ADD", cni.CodeConfig, k.config, ports("8080:80"))).
					To(Equal(`prevResult.ips: "` + Addr(ip) + `" ` + reason))
				Expect(w.rules()).To(Equal(before))
				Expect(w.Records(recordDir)).To(BeEmpty())
			},
				Entry("the host's loopback", 1, "127.0.0.1/8", "", "is not an address that a container can have"),
				Entry("the host's loopback of IPv6", 1, "::1/128", "", "is not an address that a container can have"),
				Entry("multicast", 1, "224.0.0.5/24", "", "is not an address that a container can have"),
				Entry("all addresses", 1, "0.0.0.0/24", "", "is not an address that a container can have"),
				Entry("the host's", 1, "192.0.2.1/24", "192.0.2.1/24", "is an address of the host"),
				Entry("the bridge's", 1, "10.1.0.1/24", "", "is an address of the host"),
				Entry("an unknown address", 1, "8.8.8.8/32", "",
					`is not an address of interface "eth0" in the container`),
				Entry("an unknown address without a route", 1, "fd00:99::9/64", "",
					`is not an address of interface "eth0" in the container`),
				Entry("another container's", 1, "10.1.0.2/24", "",
					`is not an address of interface "eth0" in the container`),
				Entry("the address of a container of another network", 2, "10.1.0.2/32", "10.1.0.2/32",
					`belongs to another network: the host reaches it through "br1"`),
			)
		})

		It("does not set route_localnet on an uplink of the node", func() {
			w, c := newContainer()
			w.IP("route add default via 192.0.2.2")
			c.IP("addr add 8.8.8.8/32 dev eth0")
			c.ips = []string{"8.8.8.8/32"}
			o := c.call("ADD", k.config, ports("8080:80"))
			Expect(o.exit).To(BeZero(), o.text())
			Expect(o.stderr).To(ContainSubstring(`host ports of 127.0.0.1 do not work: the host reaches 8.8.8.8`))
			Expect(w.Cmd("sh", "-c", "grep -l 1 /proc/sys/net/ipv4/conf/*/route_localnet || true")).To(BeEmpty())
			c.check(k.config, ports("8080:80"))
			c.del()
		})
	})
})

var _ = Describe("a hostIP that the host does not have", Label("kernel", "foreign-host-ip"), func() {
	eachBackend(func(k kind) {
		It("keeps no other container from the port, until the host has the address", func() {
			w, a, b := newContainers()
			a.serve(80)
			b.serve(80)
			foreign := ports("203.0.113.7:8080:80")
			o := a.call("ADD", k.config, foreign)
			Expect(o.exit).To(BeZero(), o.text())
			Expect(o.stderr).To(ContainSubstring("host port 203.0.113.7:8080/tcp: the host does not have this address"))
			b.add(k.config, ports("8080:80"))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			b.del()
			w.IP("addr add 203.0.113.7/32 dev lo")
			Expect(b.fails("ADD", cni.CodePortTaken, k.config, ports("8080:80"))).To(ContainSubstring(
				"held on 203.0.113.7 by"))
			a.check(k.config, foreign)
			a.del()
		})
	})
})
