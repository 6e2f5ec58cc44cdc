package rtnl_test

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// addrInfo is ip(8)'s view of an address.
type addrInfo struct {
	Family, Local, Address, Broadcast, Scope string
	Prefixlen                                int
	NoDAD                                    bool
}

func addrs(h *nstest.Host, name string) []addrInfo {
	GinkgoHelper()
	var links []struct {
		Info []addrInfo `json:"addr_info"`
	}
	h.JSON(&links, "ip", "-j", "addr", "show", "dev", name)
	return links[0].Info
}

var _ = Describe("an address", func() {
	var h *nstest.Host
	var c *rtnl.Conn
	var a int
	BeforeEach(func() {
		h = nstest.NewHost()
		c = dial(h)
		veth(h, "one", "two")
		a = index(c, "one")
	})
	prefix := netip.MustParsePrefix

	DescribeTable("is added as ip(8) shows it", func(add rtnl.Addr, want addrInfo) {
		Expect(c.AddAddr(a, add)).To(Succeed())
		Expect(addrs(h, "one")).To(Equal([]addrInfo{want}))
	},
		Entry("IPv4, broadcast computed", rtnl.Addr{Prefix: prefix("10.1.2.3/23")},
			addrInfo{Family: "inet", Local: "10.1.2.3", Prefixlen: 23, Broadcast: "10.1.3.255", Scope: "global"}),
		Entry("IPv4, broadcast given", rtnl.Addr{Prefix: prefix("10.1.2.3/24"), Broadcast: netip.MustParseAddr("10.1.2.0")},
			addrInfo{Family: "inet", Local: "10.1.2.3", Prefixlen: 24, Broadcast: "10.1.2.0", Scope: "global"}),
		Entry("IPv4 /30", rtnl.Addr{Prefix: prefix("10.1.2.1/30")},
			addrInfo{Family: "inet", Local: "10.1.2.1", Prefixlen: 30, Broadcast: "10.1.2.3", Scope: "global"}),
		Entry("IPv4 /31 has no broadcast", rtnl.Addr{Prefix: prefix("10.1.2.3/31")},
			addrInfo{Family: "inet", Local: "10.1.2.3", Prefixlen: 31, Scope: "global"}),
		Entry("IPv4 /32 has no broadcast", rtnl.Addr{Prefix: prefix("10.1.2.3/32")},
			addrInfo{Family: "inet", Local: "10.1.2.3", Prefixlen: 32, Scope: "global"}),
		Entry("a scope", rtnl.Addr{Prefix: prefix("10.1.2.3/32"), Scope: unix.RT_SCOPE_LINK},
			addrInfo{Family: "inet", Local: "10.1.2.3", Prefixlen: 32, Scope: "link"}),
		Entry("a peer", rtnl.Addr{Prefix: prefix("10.1.2.3/32"), Peer: netip.MustParseAddr("10.9.9.9")},
			addrInfo{Family: "inet", Local: "10.1.2.3", Address: "10.9.9.9", Prefixlen: 32, Scope: "global"}),
		Entry("127/8 has scope host", rtnl.Addr{Prefix: prefix("127.1.2.3/32")},
			addrInfo{Family: "inet", Local: "127.1.2.3", Prefixlen: 32, Scope: "host"}),
		Entry("IPv6", rtnl.Addr{Prefix: prefix("2001:db8::3/64")},
			addrInfo{Family: "inet6", Local: "2001:db8::3", Prefixlen: 64, Scope: "global"}),
		Entry("IPv6 without duplicate address detection", rtnl.Addr{Prefix: prefix("2001:db8::3/64"), NoDAD: true},
			addrInfo{Family: "inet6", Local: "2001:db8::3", Prefixlen: 64, Scope: "global", NoDAD: true}),
	)

	It("that the link has already is EEXIST, with link and address named", func() {
		for _, p := range []string{"10.1.2.3/24", "2001:db8::3/64"} {
			Expect(c.AddAddr(a, rtnl.Addr{Prefix: prefix(p)})).To(Succeed())
			err := c.AddAddr(a, rtnl.Addr{Prefix: prefix(p)})
			Expect(err).To(MatchError(unix.EEXIST))
			Expect(err).To(MatchError(HavePrefix(`link "one": add address ` + p + `: file exists`)))
		}
	})

	It("is read as it is, without those of other links", func() {
		ip(h, "addr add 10.9.9.9/24 dev two")
		ip(h, "addr add 10.1.2.3/24 broadcast + dev one")
		ip(h, "addr add 10.1.2.4 peer 10.8.8.8/31 dev one")
		ip(h, "addr add 2001:db8::3/64 nodad dev one")
		ip(h, "addr add 2001:db8::4/64 valid_lft 1000 preferred_lft 1000 dev one")
		ip(h, "link set one up")
		ip(h, "link set two up")
		got, err := c.Addrs(a)
		Expect(err).NotTo(HaveOccurred())
		Expect(got).To(ContainElements(
			rtnl.Addr{Prefix: prefix("10.1.2.3/24"), Broadcast: netip.MustParseAddr("10.1.2.255"), Permanent: true},
			rtnl.Addr{Prefix: prefix("10.1.2.4/31"), Peer: netip.MustParseAddr("10.8.8.8"), Permanent: true},
			rtnl.Addr{Prefix: prefix("2001:db8::3/64"), NoDAD: true, Permanent: true},
			And(HaveField("Prefix", prefix("2001:db8::4/64")), HaveField("Permanent", false)),
		))
		Expect(got).To(HaveLen(len(addrs(h, "one"))))
	})

	It("is deleted once, and again without an error", func() {
		for _, p := range []string{"10.1.2.3/24", "2001:db8::3/64"} {
			ip(h, "addr add "+p+" dev one")
			Expect(c.DelAddr(a, prefix(p))).To(Succeed())
			Expect(addrs(h, "one")).To(BeEmpty())
			Expect(c.DelAddr(a, prefix(p))).To(Succeed())
		}
		ip(h, "link del one")
		Expect(c.DelAddr(a, prefix("10.1.2.3/24"))).To(Succeed())
	})
})
