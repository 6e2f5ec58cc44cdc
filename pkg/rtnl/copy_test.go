package rtnl_test

import (
	"encoding/json"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// linesOf are the routes of a table that the kernel did not make, as ip(8) writes them.
func linesOf(h *nstest.Host, table string) (out []string) {
	GinkgoHelper()
	for _, family := range []string{"-4", "-6"} {
		done := h.Run(nstest.Program{Path: "ip", Args: []string{family, "route", "show", "table", table}})
		for route := range strings.SplitSeq(strings.ReplaceAll(done.Stdout, "\n\t", " "), "\n") {
			if route != "" && !strings.Contains(route, "proto kernel") && !strings.HasPrefix(route, "multicast") {
				out = append(out, strings.Join(strings.Fields(route), " "))
			}
		}
	}
	return out
}

var _ = Describe("the copy of a route", func() {
	var h *nstest.Host
	var c *rtnl.Conn
	BeforeEach(func() {
		h = nstest.NewHost()
		c = dial(h)
		for n, name := range []string{"one", "two"} {
			veth(h, name, "peer-"+name)
			h.SetSysctl("net/ipv6/conf/"+name+"/accept_dad", "0")
			h.SetSysctl("net/ipv6/conf/"+name+"/addr_gen_mode", "1")
			ip(h, "link set "+name+" up")
			ip(h, "link set peer-"+name+" up")
			ip(h, "addr add 10.1."+string(rune('1'+n))+".3/24 dev "+name)
			ip(h, "addr add 2001:db8:"+string(rune('1'+n))+"::3/64 nodad dev "+name)
		}
		Eventually(func() []string { return routes(h, "-6", "local") }, nstest.Hang).
			Should(ContainElements(HavePrefix("2001:db8:1::3 "), HavePrefix("2001:db8:2::3 ")))
	})

	copies := func(table uint32) (out []rtnl.RouteCopy) {
		GinkgoHelper()
		all, err := c.RouteCopies()
		Expect(err).NotTo(HaveOccurred())
		for _, r := range all {
			if r.Table() == table && r.Header.Protocol != unix.RTPROT_KERNEL && r.Header.Type == unix.RTN_UNICAST {
				out = append(out, r)
			}
		}
		data, err := json.Marshal(out)
		Expect(err).NotTo(HaveOccurred())
		out = nil
		Expect(json.Unmarshal(data, &out)).To(Succeed())
		return out
	}

	It("is the same in another table, and comes back, with every attribute and next hop", func() {
		for _, route := range []string{
			"default via 10.1.1.1 dev one", "10.8.0.0/16 dev one scope link src 10.1.1.3",
			"10.9.0.0/16 via 172.30.0.1 dev one onlink metric 7 proto static",
			"10.10.0.0/16 via 10.1.1.1 tos 10 mtu 1400 advmss 1300 window 9000 initcwnd 20 rto_min 300ms quickack 1",
			"10.11.0.0/16 nexthop via 10.1.1.8 weight 3 nexthop via 10.1.2.9",
			"10.12.0.0/16 via inet6 2001:db8:1::9 dev one",
			"default via 2001:db8:1::1 pref high", "2001:db8:8::/48 dev one metric 5 mtu lock 1300 hoplimit 9",
			"2001:db8:9::/48 via 2001:db8:2::1 src 2001:db8:2::3",
			"2001:db8:10::/48 nexthop via 2001:db8:1::8 dev one weight 2 nexthop via 2001:db8:2::9 dev two",
		} {
			ip(h, "route add "+route)
		}
		before := linesOf(h, "main")
		Expect(before).To(HaveLen(10))
		all := copies(unix.RT_TABLE_MAIN)
		Expect(all).To(HaveLen(10))
		for _, far := range []bool{false, true} {
			for _, r := range all {
				if r.HasGateway() == far {
					Expect(c.AddCopy(r.InTable(7000))).To(Succeed(), r.String())
				}
			}
		}
		Expect(linesOf(h, "7000")).To(ConsistOf(before))
		for _, r := range all {
			Expect(c.DelCopy(r)).To(Succeed(), r.String())
			Expect(c.DelCopy(r)).To(Succeed(), r.String())
		}
		Expect(linesOf(h, "main")).To(BeEmpty())
		for _, r := range copies(7000) {
			Expect(c.AddCopy(r.InTable(unix.RT_TABLE_MAIN))).To(Succeed(), r.String())
		}
		Expect(linesOf(h, "main")).To(ConsistOf(before))
	})

	DescribeTable("has the next hops that are wanted", func(route, through, others string) {
		ip(h, "route add "+route)
		all := copies(unix.RT_TABLE_MAIN)
		Expect(all).To(HaveLen(1))
		one := index(c, "one")
		for table, hops := range map[string]func(int) (rtnl.RouteCopy, bool){
			"71": all[0].HopsOf, "72": all[0].OtherHops,
		} {
			r, ok := hops(one)
			want := map[string]string{"71": through, "72": others}[table]
			Expect(ok).To(Equal(want != ""))
			if ok {
				Expect(c.AddCopy(r.InTable(map[string]uint32{"71": 71, "72": 72}[table]))).To(Succeed())
				Expect(linesOf(h, table)).To(ConsistOf(HavePrefix(want)))
				made := copies(map[string]uint32{"71": 71, "72": 72}[table])[0]
				Expect(made.Equal(r)).To(BeFalse(), "it is in another table")
				Expect(made.InTable(unix.RT_TABLE_MAIN).Equal(r)).To(BeTrue())
			}
		}
	},
		Entry("of one", "10.8.0.0/16 via 10.1.1.9", "10.8.0.0/16 via 10.1.1.9 dev one", ""),
		Entry("of another link", "10.8.0.0/16 via 10.1.2.9", "", "10.8.0.0/16 via 10.1.2.9 dev two"),
		Entry("of two links", "10.8.0.0/16 nexthop via 10.1.1.8 nexthop via 10.1.2.9 nexthop via 10.1.2.8",
			"10.8.0.0/16 via 10.1.1.8 dev one",
			"10.8.0.0/16 nexthop via 10.1.2.9 dev two weight 1 nexthop via 10.1.2.8 dev two weight 1"),
		Entry("of two links, with IPv6", "2001:db8:8::/48 nexthop via 2001:db8:1::8 nexthop via 2001:db8:2::9",
			"2001:db8:8::/48 via 2001:db8:1::8 dev one metric 1024",
			"2001:db8:8::/48 via 2001:db8:2::9 dev two metric 1024"),
	)

	It("says what is read of the route elsewhere", func() {
		for _, route := range []string{"default via 10.1.1.1 dev one", "10.8.0.0/16 dev one scope link src 10.1.1.3",
			"10.9.0.0/16 via 172.30.0.1 dev one onlink metric 7 proto static table 70000", "10.12.0.0/16 via inet6 " +
				"2001:db8:1::9 dev one", "2001:db8:8::/48 dev one metric 5 table 7",
			"10.11.0.0/16 nexthop via 10.1.1.8 weight 3 nexthop via 10.1.2.9"} {
			ip(h, "route add "+route)
		}
		all, err := c.RouteCopies()
		Expect(err).NotTo(HaveOccurred())
		said := []rtnl.Route{}
		for _, r := range all {
			if route := r.Route(); route.OutIndex == index(c, "one") {
				said = append(said, route)
			}
		}
		Expect(c.Routes(index(c, "one"), unix.AF_UNSPEC)).To(ConsistOf(said))
	})

	It("is another one through another gateway", func() {
		ip(h, "route add 10.8.0.0/16 metric 5 mtu 1400 nexthop via 10.1.1.9 nexthop via 10.1.1.8")
		r := copies(unix.RT_TABLE_MAIN)[0].InTable(7)
		through := func(gw string, onLink bool) string {
			addr, _ := netip.ParseAddr(gw)
			r = r.ViaGateway(addr, onLink)
			Expect(c.AddCopy(r)).To(Succeed())
			DeferCleanup(c.DelCopy, r)
			return linesOf(h, "7")[0]
		}
		Expect(through("10.1.1.7", false)).To(Equal("10.8.0.0/16 via 10.1.1.7 dev one metric 5 mtu 1400"))
		Expect(through("10.9.9.9", true)).To(Equal("10.8.0.0/16 via 10.9.9.9 dev one metric 5 onlink mtu 1400"))
		Expect(through("", false)).To(Equal("10.8.0.0/16 dev one metric 5 mtu 1400"))
	})

	It("is another one from another source", func() {
		ip(h, "addr add 10.1.1.4/24 dev one")
		ip(h, "route add 10.8.0.0/16 dev one src 10.1.1.3")
		r := copies(unix.RT_TABLE_MAIN)[0].InTable(7)
		Expect(c.AddCopy(r.WithSource(netip.MustParseAddr("10.1.1.4")))).To(Succeed())
		Expect(linesOf(h, "7")).To(ConsistOf("10.8.0.0/16 dev one scope link src 10.1.1.4"))
	})

	It("names itself in errors", func() {
		ip(h, "route add 10.8.0.0/16 via 10.1.1.9")
		r := copies(unix.RT_TABLE_MAIN)[0]
		ip(h, "addr flush dev one")
		Expect(c.AddCopy(r.InTable(7))).To(MatchError(And(HavePrefix("route 10.8.0.0/16: "),
			ContainSubstring("unreachable"))))
	})
})
