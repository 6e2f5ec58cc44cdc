package iface_test

import (
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// ipv6Route is a route with every field, in a table of its own.
var ipv6Route = cni.Route{
	Dst: netip.MustParsePrefix("2001:db8:5::/48"), MTU: 1400, AdvMSS: 1300, Priority: 77, Table: ptr[uint32](1000),
}

var _ = Describe("Verify", func() {
	var c container
	var res *cni.Result
	BeforeEach(func() {
		c = newContainer()
		// Link-local addresses come some time after the link is up, other routes
		// with the carrier, and that of an own IPv6 address when a worker of the
		// kernel gets round to it.
		c.SetSysctl("net/ipv6/conf/eth0/addr_gen_mode", "1")
		res = withRoutes(result("10.1.2.3/24", "10.1.2.1", "2001:db8::3/64", "2001:db8::1"), to("0.0.0.0/0"),
			to("::/0"),
			cni.Route{Dst: netip.MustParsePrefix("10.5.0.0/16"), MTU: 1400, AdvMSS: 1300, Priority: 77, Scope: ptr(0)},
			ipv6Route,
			cni.Route{Dst: netip.MustParsePrefix("2001:db8:6::/48"), Scope: ptr(253)})
		res.Interfaces[1].MAC = strings.Fields(c.ip("-br link show eth0"))[2]
		res.Interfaces[1].MTU = 1500
		Expect(c.configure(res)).To(Succeed())
		Eventually(func() string { return strings.Fields(c.ip("-br link show eth0"))[1] }).Should(Equal("UP"))
		Eventually(func() string { return c.ip("-6 route show table local") }).
			Should(ContainSubstring("local 2001:db8::3 "))
	})

	It("has nothing to say of what Configure made, and changes nothing", func() {
		before := c.Snapshot()
		Expect(iface.Verify(c.target, res)).To(Succeed())
		Expect(c.Snapshot()).To(Equal(before))
	})

	DescribeTable("names what changed", func(want string, changes ...string) {
		for _, change := range changes {
			c.ip(change)
		}
		Expect(iface.Verify(c.target, res)).To(MatchError(want))
	},
		Entry("no link", `link "eth0": Link not found`, "link del eth0"),
		Entry("another MTU", `link "eth0": MTU is 1400 instead of 1500`, "link set eth0 mtu 1400"),
		Entry("no IPv4 address", `link "eth0": address 10.1.2.3/24: missing`,
			"addr del 10.1.2.3/24 dev eth0", "addr add 10.1.2.4/24 dev eth0",
			"route replace default via 10.1.2.1 dev eth0",
			"route replace 10.5.0.0/16 via 10.1.2.1 dev eth0 metric 77 mtu 1400 advmss 1300"),
		Entry("another prefix", `link "eth0": address 2001:db8::3/64: missing`,
			"addr del 2001:db8::3/64 dev eth0", "addr add 2001:db8::3/60 nodad dev eth0"),
		Entry("no default route", `link "eth0": route 0.0.0.0/0 via 10.1.2.1: missing`, "route del default"),
		Entry("no IPv6 default route", `link "eth0": route ::/0 via 2001:db8::1: missing`, "-6 route del default"),
		Entry("another default "+
			"gateway", `link "eth0": route 0.0.0.0/0 via 10.1.2.1: gateway is 10.1.2.9 instead of 10.1.2.1`,
			"route replace default via 10.1.2.9"),
		Entry("another IPv6 default gateway",
			`link "eth0": route ::/0 via 2001:db8::1: gateway is 2001:db8::9 instead of 2001:db8::1`,
			"-6 route replace default via 2001:db8::9 dev eth0"),
		Entry("a default route that answers that there is none", `link "eth0": route 0.0.0.0/0 via 10.1.2.1: missing`,
			"route replace unreachable default"),
		Entry("another MTU of a route", `link "eth0": route 10.5.0.0/16 via 10.1.2.1: mtu is 1401 instead of 1400`,
			"route add 10.5.0.0/16 via 10.1.2.9 metric 5", "route add 10.5.0.0/16 via 10.1.2.9 metric 99",
			"route change 10.5.0.0/16 via 10.1.2.1 metric 77 mtu 1401 advmss 1300"),
		Entry("another MSS and gateway of a route",
			`link "eth0": route 10.5.0.0/16 via 10.1.2.1: gateway is 10.1.2.9 instead of 10.1.2.1, `+
				"advmss is 0 instead of 1300",
			"route change 10.5.0.0/16 via 10.1.2.9 metric 77 mtu 1400"),
		Entry("another priority", `link "eth0": route 10.5.0.0/16 via 10.1.2.1: priority is 78 instead of 77`,
			"route del 10.5.0.0/16 metric 77", "route add 10.5.0.0/16 via 10.1.2.1 metric 78 mtu 1400 advmss 1300"),
		Entry("another scope",
			`link "eth0": route 10.5.0.0/16 via 10.1.2.1: gateway is none instead of 10.1.2.1, `+
				"scope is 253 instead of 0",
			"route del 10.5.0.0/16 metric 77", "route add 10.5.0.0/16 scope link dev eth0 metric 77 mtu 1400 "+
				"advmss 1300"),
		Entry("another table than asked for",
			`link "eth0": route 2001:db8:5::/48 via 2001:db8::1: missing in table 1000`,
			"-6 route flush table 1000", "-6 route add 2001:db8:5::/48 via 2001:db8::1 dev eth0 metric 77 mtu 1400 "+
				"advmss 1300"),
	)

	It("does not take the kernel's broadcast route for one that was asked for", func() {
		Expect(iface.Verify(c.target, withRoutes(res, cni.Route{Dst: netip.MustParsePrefix("10.1.2.255/32"),
			Scope: ptr(253)}))).
			To(MatchError(`link "eth0": route 10.1.2.255/32: missing`))
	})

	It("names another MAC address", func() {
		c.ip("link set eth0 address 02:00:00:00:00:01")
		Expect(iface.Verify(c.target, res)).To(MatchError(
			`link "eth0": MAC is 02:00:00:00:00:01 instead of ` + res.Interfaces[1].MAC))
	})

	It("names all that is wrong with a link that is down", func() {
		c.ip("link set eth0 down")
		err := iface.Verify(c.target, res)
		Expect(strings.Split(err.Error(), "\n")).To(ContainElements(
			`link "eth0": is down`, `link "eth0": route 0.0.0.0/0 via 10.1.2.1: missing`,
			`link "eth0": route ::/0 via 2001:db8::1: missing`))
	})

	It("names an address that is in use elsewhere", func() {
		c.host.Cmd("ip", "addr", "add", "2001:db8::4/64", "nodad", "dev", "veth0")
		c.SetSysctl("net/ipv6/conf/eth0/accept_dad", "1")
		res.IPs = append(res.IPs, result("2001:db8::4/64", "").IPs...)
		c.ip("addr add 2001:db8::4/64 dev eth0")
		Eventually(func() error { return iface.Verify(c.target, res) }, nstest.Hang).Should(And(
			MatchError(rtnl.ErrDuplicate), MatchError(HavePrefix(`link "eth0": address 2001:db8::4/64: `))))
	})

	It("does not mind one that is tentative", func() {
		c.SetSysctl("net/ipv6/conf/eth0/accept_dad", "1")
		c.SetSysctl("net/ipv6/neigh/eth0/retrans_time_ms", "60000")
		res.IPs = append(res.IPs, result("2001:db8::4/64", "").IPs...)
		c.ip("addr add 2001:db8::4/64 dev eth0")
		Expect(c.addrs()).To(ContainElement(ContainSubstring("tentative")))
		Expect(iface.Verify(c.target, res)).To(Succeed())
	})

	DescribeTable("says nothing of", func(change func()) {
		change()
		Expect(iface.Verify(c.target, res)).To(Succeed())
	},
		Entry("more addresses and routes", func() {
			c.ip("addr add 10.7.0.1/24 dev eth0")
			c.ip("route add 10.8.0.0/16 via 10.1.2.9")
			c.ip("route add default via 10.1.2.9 metric 5")
		}),
		Entry("routes that another plugin moved to its table", func() {
			for _, move := range []string{
				"route del default", "route add default via 10.1.2.1 dev eth0 table 100",
				"-6 route del default", "-6 route add default via 2001:db8::1 dev eth0 table 100",
			} {
				c.ip(move)
			}
		}),
		Entry("what another plugin changed and told", func() {
			c.ip("link set eth0 mtu 1400 address 02:00:00:00:00:0A")
			res.Interfaces[1].MAC, res.Interfaces[1].MTU = "02:00:00:00:00:0A", 1400
		}),
		Entry("MAC and MTU that the result does not tell", func() {
			c.ip("link set eth0 mtu 1400 address 02:00:00:00:00:01")
			res.Interfaces[1].MAC, res.Interfaces[1].MTU = "", 0
		}),
		Entry("another interface of the chain and its address", func() {
			res.Interfaces = append(res.Interfaces, cni.Interface{Name: "net1", Sandbox: "/run/netns/x",
				MAC: "02:00:00:00:00:01"})
			res.IPs = append(res.IPs, cni.IP{Address: netip.MustParsePrefix("10.200.0.1/24"), Interface: ptr(2)})
		}),
		Entry("a host interface of the same name", func() {
			res.Interfaces[0].Name, res.Interfaces[0].MAC = "eth0", "02:00:00:00:00:01"
		}),
		Entry("promiscuous mode", func() { c.ip("link set eth0 promisc on") }),
	)

	It("compares the plugin's own routes with their source", func() {
		c.target.Routes = []rtnl.Route{{
			Dst: netip.MustParsePrefix("10.1.2.1/32"), Src: netip.MustParseAddr("10.1.2.3"), Scope: 253,
		}}
		Expect(iface.Verify(c.target, res)).To(MatchError(`link "eth0": route 10.1.2.1/32: missing`))
		c.ip("route add 10.1.2.1/32 dev eth0 scope link src 10.1.2.3")
		Expect(iface.Verify(c.target, res)).To(Succeed())
		c.ip("addr add 10.1.2.4/24 dev eth0")
		c.ip("route change 10.1.2.1/32 dev eth0 scope link src 10.1.2.4")
		Expect(iface.Verify(c.target,
			res)).To(MatchError(`link "eth0": route 10.1.2.1/32: source is 10.1.2.4 instead of 10.1.2.3`))
	})
})
