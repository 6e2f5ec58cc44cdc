package main

import (
	"fmt"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// rng makes a range of "subnet[ start-end][ gw gateway]".
func rng(text string) ipRange {
	f := strings.Fields(text)
	r := newRange("", netip.MustParsePrefix(f[0]))
	for i := 1; i < len(f); i++ {
		if f[i] == "gw" {
			r.gateway = netip.MustParseAddr(f[i+1])
			break
		}
		start, end, _ := strings.Cut(f[i], "-")
		r.start, r.end = netip.MustParseAddr(start), netip.MustParseAddr(end)
	}
	return r
}

func set(texts ...string) rangeSet {
	var s rangeSet
	for _, t := range texts {
		s = append(s, rng(t))
	}
	return s
}

var _ = DescribeTable("the range of a subnet", func(subnet, want string) {
	r, err := wireRange{Subnet: &subnet}.parse("ipam")
	if err != nil {
		Expect(err).To(MatchError("ipam.subnet: " + subnet + " " + want))
		return
	}
	Expect(fmt.Sprintf("%s gw %s", r, r.gateway)).To(Equal(want))
},
	Entry("IPv4 leaves out network and broadcast", "10.1.2.0/24", "10.1.2.1-10.1.2.254 gw 10.1.2.1"),
	Entry("the smallest IPv4 subnet", "10.1.2.4/30", "10.1.2.5-10.1.2.6 gw 10.1.2.5"),
	Entry("a point-to-point subnet",
		"10.1.2.4/31", "is too small: the network, its gateway and one address need a /30"),
	Entry("a host", "10.1.2.4/32", "is too small: the network, its gateway and one address need a /30"),
	Entry("host bits", "10.1.2.4/24", "has host bits set, the network is 10.1.2.0/24"),
	Entry("the last IPv4 subnet", "255.255.255.252/30", "255.255.255.253-255.255.255.254 gw 255.255.255.253"),
	Entry("all of IPv4", "0.0.0.0/0", "0.0.0.1-255.255.255.254 gw 0.0.0.1"),
	Entry("IPv6 ends with the last address",
		"2001:db8::/64", "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff gw 2001:db8::1"),
	Entry("the smallest IPv6 subnet", "2001:db8::4/126", "2001:db8::5-2001:db8::7 gw 2001:db8::5"),
	Entry("too small IPv6", "2001:db8::/127", "is too small: the network, its gateway and one address need a /126"),
	Entry("IPv6 whose numbers fit in four bytes", "::100:0/112", "::100:1-::100:ffff gw ::100:1"),
	Entry("the end of IPv6", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"+
			" gw ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1"))

var _ = DescribeTable("the order of a set", func(s rangeSet, last, want string) {
	addr, _ := netip.ParseAddr(last)
	var runs []string
	var begin, end netip.Addr
	for a := range s.after(addr) {
		if begin.IsValid() && a == end.Next() {
			runs = runs[:len(runs)-1]
		} else {
			begin = a
		}
		runs, end = append(runs, begin.String()+"-"+a.String()), a
	}
	Expect(strings.Join(runs, " ")).To(Equal(want))
},
	Entry("from the start", set("10.0.0.0/29"), "", "10.0.0.2-10.0.0.6"),
	Entry("after the last, round to it", set("10.0.0.0/29"), "10.0.0.4", "10.0.0.5-10.0.0.6 10.0.0.2-10.0.0.4"),
	Entry("after the end", set("10.0.0.0/29"), "10.0.0.6", "10.0.0.2-10.0.0.6"),
	Entry("after the start", set("10.0.0.0/29 gw 10.0.0.6"), "10.0.0.1", "10.0.0.2-10.0.0.5 10.0.0.1-10.0.0.1"),
	Entry("after one that is in no range now", set("10.0.0.0/29"), "10.0.9.4", "10.0.0.2-10.0.0.6"),
	Entry("after one of the other family", set("10.0.0.0/29"), "2001:db8::4", "10.0.0.2-10.0.0.6"),
	Entry("after what is the gateway now", set("10.0.0.0/29 gw 10.0.0.4"), "10.0.0.4",
		"10.0.0.5-10.0.0.6 10.0.0.1-10.0.0.3"),
	Entry("a gateway in the middle", set("10.0.0.0/29 gw 10.0.0.4"), "", "10.0.0.1-10.0.0.3 10.0.0.5-10.0.0.6"),
	Entry("a gateway at the end", set("10.0.0.0/29 gw 10.0.0.6"), "", "10.0.0.1-10.0.0.5"),
	Entry("a gateway outside", set("10.0.0.0/29 gw 192.0.2.1"), "", "10.0.0.1-10.0.0.6"),
	Entry("a gateway in another range of the set",
		set("10.0.0.0/29", "10.0.1.0/29 gw 10.0.0.4", "10.0.2.0/29 10.0.2.6-10.0.2.6 gw 10.0.0.3"), "10.0.0.4",
		"10.0.0.5-10.0.0.6 10.0.1.1-10.0.1.6 10.0.2.6-10.0.2.6 10.0.0.2-10.0.0.2"),
	Entry("only the gateway", set("10.0.0.0/29 10.0.0.1-10.0.0.1"), "", ""),
	Entry("only one address, given away before",
		set("10.0.0.0/29 10.0.0.3-10.0.0.3"), "10.0.0.3", "10.0.0.3-10.0.0.3"),
	Entry("through other ranges",
		set("10.0.0.0/29 10.0.0.2-10.0.0.4", "10.0.1.0/29", "10.0.2.0/29 10.0.2.3-10.0.2.3"), "10.0.1.3",
		"10.0.1.4-10.0.1.6 10.0.2.3-10.0.2.3 10.0.0.2-10.0.0.4 10.0.1.2-10.0.1.3"),
	Entry("at the top of IPv4", set("255.255.255.252/30 255.255.255.252-255.255.255.255"), "255.255.255.255",
		"255.255.255.252-255.255.255.252 255.255.255.254-255.255.255.255"),
	Entry("at the top of IPv6", set("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126"),
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))

var _ = It("tries every address of a set once, and no gateway", func() {
	random, seed := dice()
	for range 500 {
		s := set(fmt.Sprintf("10.0.0.0/28 10.0.0.%d-10.0.0.%d gw 10.0.0.%d",
			random.IntN(6), 6+random.IntN(10), random.IntN(16)),
			fmt.Sprintf("10.0.1.0/29 gw 10.0.%d.%d", random.IntN(2), random.IntN(8)))
		want := map[netip.Addr]bool{}
		for i := range 512 {
			a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			if _, ok := s.find(a); ok && !s.isGateway(a) {
				want[a] = true
			}
		}
		last := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(2)), byte(random.IntN(16))})
		seen := map[netip.Addr]bool{}
		for a := range s.after(last) {
			Expect(seen).NotTo(HaveKey(a))
			seen[a] = true
		}
		Expect(seen).To(Equal(want), "seed %d: %s after %s", seed, s, last)
	}
})
