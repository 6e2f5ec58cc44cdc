package rtnl_test

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// routes are ip(8)'s lines for the routes of a table, which need not exist.
func routes(h *nstest.Host, family, table string) []string {
	GinkgoHelper()
	var list []map[string]any
	h.JSON(&list, "ip", family, "-j", "-d", "route", "show", "table", "all")
	var out []string
	for _, r := range list {
		of, named := r["table"]
		if !named {
			of = "main"
		}
		if of == table {
			out = append(out, line(r))
		}
	}
	return out
}

func line(r map[string]any) string {
	s := r["dst"].(string)
	for _, key := range []string{"gateway", "via", "dev", "protocol", "scope", "prefsrc", "metric", "metrics", "flags", "nexthops"} {
		if v, ok := r[key]; ok {
			s += " " + key + " " + text(v)
		}
	}
	return s
}

var _ = Describe("a route", func() {
	var h *nstest.Host
	var c *rtnl.Conn
	var one int
	BeforeEach(func() {
		h = nstest.NewHost()
		c = dial(h)
		veth(h, "one", "two")
		one = index(c, "one")
		for _, name := range []string{"one", "two"} {
			h.SetSysctl("net/ipv6/conf/"+name+"/accept_dad", "0")
			ip(h, "link set "+name+" up")
		}
		ip(h, "addr add 10.1.2.3/24 dev one")
		ip(h, "addr add 2001:db8::3/64 nodad dev one")
		// Until then the kernel does not choose the address as a source.
		Eventually(func() string { return show(h, "one").Operstate }, "10s").Should(Equal("UP"))
	})
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr

	DescribeTable("is added with all its fields, found by Routes and deleted",
		func(r rtnl.Route, family, table, want string) {
			r.OutIndex = one
			before := routes(h, family, table)
			Expect(c.AddRoute(r)).To(Succeed())
			after := routes(h, family, table)
			Expect(after).To(ContainElement(want))
			Expect(after).To(HaveLen(len(before) + 1))

			got, err := c.Routes(one, unix.AF_UNSPEC)
			Expect(err).NotTo(HaveOccurred())
			Expect(got).To(ContainElement(And(
				HaveField("Dst", r.Dst.Masked()), HaveField("GW", r.GW), HaveField("MTU", r.MTU), HaveField("AdvMSS", r.AdvMSS),
				HaveField("Scope", r.Scope), HaveField("OnLink", r.OnLink), HaveField("OutIndex", one), HaveField("Type", unix.RTN_UNICAST))))

			Expect(c.DelRoute(r)).To(Succeed())
			Expect(routes(h, family, table)).To(Equal(before))
			Expect(c.DelRoute(r)).To(Succeed())
		},
		Entry("IPv4 default", rtnl.Route{Dst: prefix("0.0.0.0/0"), GW: addr("10.1.2.1")}, "-4", "main",
			"default gateway 10.1.2.1 dev one protocol boot scope global flags []"),
		Entry("IPv4 with everything", rtnl.Route{
			Dst: prefix("10.5.0.0/16"), GW: addr("10.1.2.1"), Src: addr("10.1.2.3"),
			MTU: 1400, AdvMSS: 1300, Priority: 77, Table: 1000, Protocol: unix.RTPROT_STATIC,
		}, "-4", "1000",
			"10.5.0.0/16 gateway 10.1.2.1 dev one protocol static scope global prefsrc 10.1.2.3 metric 77 metrics [{advmss 1300 mtu 1400}] flags []"),
		Entry("IPv4 on the link", rtnl.Route{Dst: prefix("10.5.0.0/16"), Scope: unix.RT_SCOPE_LINK}, "-4", "main",
			"10.5.0.0/16 dev one protocol boot scope link flags []"),
		Entry("IPv4 with host bits", rtnl.Route{Dst: prefix("10.5.6.7/16"), GW: addr("10.1.2.1"), Table: 100}, "-4", "100",
			"10.5.0.0/16 gateway 10.1.2.1 dev one protocol boot scope global flags []"),
		Entry("IPv4 through a gateway outside all subnets", rtnl.Route{
			Dst: prefix("0.0.0.0/0"), GW: addr("169.254.1.1"), OnLink: true,
		}, "-4", "main",
			"default gateway 169.254.1.1 dev one protocol boot scope global flags [onlink]"),
		Entry("IPv4 through an IPv6 gateway", rtnl.Route{Dst: prefix("10.5.0.0/16"), GW: addr("2001:db8::1")}, "-4", "main",
			"10.5.0.0/16 via {family inet6 host 2001:db8::1} dev one protocol boot scope global flags []"),
		Entry("IPv6 default", rtnl.Route{Dst: prefix("::/0"), GW: addr("2001:db8::1")}, "-6", "main",
			"default gateway 2001:db8::1 dev one protocol boot scope global metric 1024 flags []"),
		Entry("IPv6 with everything", rtnl.Route{
			Dst: prefix("2001:db8:5::/48"), GW: addr("2001:db8::1"), Src: addr("2001:db8::3"),
			MTU: 1400, AdvMSS: 1300, Priority: 77, Table: 1000, Protocol: unix.RTPROT_STATIC,
		}, "-6", "1000",
			"2001:db8:5::/48 gateway 2001:db8::1 dev one protocol static scope global prefsrc 2001:db8::3 metric 77 metrics [{advmss 1300 mtu 1400}] flags []"),
		Entry("IPv6 on the link", rtnl.Route{Dst: prefix("2001:db8:5::/48")}, "-6", "main",
			"2001:db8:5::/48 dev one protocol boot scope global metric 1024 flags []"),
	)

	It("that is there already is EEXIST, one that differs in the gateway is not", func() {
		for _, r := range []rtnl.Route{
			{Dst: prefix("0.0.0.0/0"), GW: addr("10.1.2.1"), OutIndex: one},
			{Dst: prefix("::/0"), GW: addr("2001:db8::1"), OutIndex: one},
		} {
			Expect(c.AddRoute(r)).To(Succeed())
			err := c.AddRoute(r)
			Expect(err).To(MatchError(unix.EEXIST))
			Expect(err).To(MatchError(HavePrefix("route " + r.Dst.String() + " via " + r.GW.String() + ": file exists")))
			r.GW = r.GW.Next()
			Expect(c.AddRoute(r)).To(Succeed())
		}
		Expect(routes(h, "-4", "main")).To(ContainElements(ContainSubstring("gateway 10.1.2.1 "), ContainSubstring("gateway 10.1.2.2 ")))
		Expect(routes(h, "-6", "main")).To(ContainElement(And(ContainSubstring("2001:db8::1 "), ContainSubstring("2001:db8::2 "))))

		By("reading both next hops")
		got, err := c.Routes(one, unix.AF_INET6)
		Expect(err).NotTo(HaveOccurred())
		Expect(got).To(ContainElements(
			And(HaveField("Dst", prefix("::/0")), HaveField("GW", addr("2001:db8::1"))),
			And(HaveField("Dst", prefix("::/0")), HaveField("GW", addr("2001:db8::2"))),
		))
	})

	It("to a gateway that nothing leads to is refused in the kernel's words", func() {
		err := c.AddRoute(rtnl.Route{Dst: prefix("0.0.0.0/0"), GW: addr("10.9.9.9"), OutIndex: one})
		Expect(err).To(MatchError(unix.ENETUNREACH))
		Expect(err).To(MatchError("route 0.0.0.0/0 via 10.9.9.9: network is unreachable (Nexthop has invalid gateway)"))
	})

	It("is read from all tables, with its table, but not when it leaves through another link", func() {
		ip(h, "addr add 10.9.9.1/24 dev two")
		ip(h, "route add 10.5.0.0/16 via 10.1.2.1 dev one table 70000")
		ip(h, "route add 10.6.0.0/16 nexthop via 10.1.2.1 dev one nexthop via 10.9.9.2 dev two")
		ip(h, "-6 route add 2001:db8:5::/48 dev one table 70000 metric 3")
		got, err := c.Routes(one, unix.AF_UNSPEC)
		Expect(err).NotTo(HaveOccurred())
		Expect(got).To(ContainElements(
			And(HaveField("Dst", prefix("10.5.0.0/16")), HaveField("Table", 70000)),
			And(HaveField("Dst", prefix("10.6.0.0/16")), HaveField("GW", addr("10.1.2.1")), HaveField("OutIndex", one)),
			And(HaveField("Dst", prefix("2001:db8:5::/48")), HaveField("Table", 70000), HaveField("Priority", 3)),
			And(HaveField("Dst", prefix("10.1.2.0/24")), HaveField("Protocol", unix.RTPROT_KERNEL), HaveField("Src", addr("10.1.2.3"))),
		))
		for _, r := range got {
			Expect(r.OutIndex).To(Equal(one), r.String())
			Expect(r.GW).NotTo(Equal(addr("10.9.9.2")))
		}
	})

	It("is looked up with its link and source", func() {
		out, src, err := c.RouteTo(addr("10.1.2.77"))
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(Equal(one))
		Expect(src).To(Equal(addr("10.1.2.3")))
		out, src, err = c.RouteTo(addr("2001:db8::77"))
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(Equal(one))
		Expect(src).To(Equal(addr("2001:db8::3")))
		_, _, err = c.RouteTo(addr("192.0.2.1"))
		Expect(err).To(MatchError(unix.ENETUNREACH))
	})
})
