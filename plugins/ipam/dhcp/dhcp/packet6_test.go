package dhcp

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("a message of IPv6", Label("ipv6-messages"), func() {
	DescribeTable("has the format of RFC 8415", func(m message6, want string) {
		m.xid, m.client, m.iaid = [3]byte{1, 2, 3}, []byte("id"), [4]byte{4, 5, 6, 7}
		Expect(hex.EncodeToString(m.encode())).To(Equal(strings.ReplaceAll(want, " ", "")))
	},
		Entry("a Solicit", message6{kind: solicit, dns: true},
			"01 010203  0001 0002 6964  0003 000c 04050607 00000000 00000000  0008 0002 0000  0006 0004 0017 0018"),
		Entry("a Request", message6{kind: request6, server: []byte("me"), addr: lent6.Addr(), elapsed: time.Second},
			"03 010203  0001 0002 6964  0002 0002 6d65  0003 0028 04050607 00000000 00000000 "+
				"0005 0018 20010db8000000000000000000000050 00000000 00000000  0008 0002 0064"),
		Entry("after a long time", message6{kind: rebind6, elapsed: time.Hour},
			"06 010203  0001 0002 6964  0003 000c 04050607 00000000 00000000  0008 0002 ffff"),
	)

	It("solicits routers with the interface's MAC address", func() {
		Expect(routerSolicit(ownMAC)).To(Equal(append([]byte{133, 0, 0, 0, 0, 0, 0, 0, 1, 1}, ownMAC...)))
		Expect(routerSolicit(nil)).To(HaveLen(8))
	})

	It("is decoded: the first usable address, Success, and only valid domain names", func() {
		l := newLife6(modeDHCP)
		address := func(a string) []byte {
			return slices.Concat(netip.MustParseAddr(a).AsSlice(), []byte{0, 0, 0, 9, 0, 0, 0, 9})
		}
		ia := append(l.iaid[:], make([]byte, 8)...)
		for _, a := range []string{"fe80::5", "2001:db8::5", "2001:db8::6"} {
			ia = option6(ia, optAddress, address(a)...)
		}
		b := option6([]byte{byte(reply6), 1, 2, 3}, optIANA, ia...)
		b = option6(option6(b, optStatus, 0, 0), optSearch, []byte("\x01a\x00\x03b c\x00")...)
		m := nstest.Must(decode6(b, l.iaid))
		Expect(m.rejection()).To(Succeed())
		Expect(m.addr).To(Equal(netip.MustParseAddr("2001:db8::5")))
		Expect(m.search).To(Equal([]string{"a"}))
	})

	It("has no resolver for the rest of a truncated address", func() {
		l := newLife6(modeDHCP)
		server := netip.MustParseAddr("2001:db8::53")
		b := option6([]byte{byte(reply6), 1, 2, 3}, optDNS, append(server.AsSlice(), 10, 0, 0, 1)...)
		Expect(nstest.Must(decode6(b, l.iaid)).nameservers).To(Equal([]netip.Addr{server}))
	})

	It("has a checksum other than 0", func() {
		Expect(checksum([]byte{0xff, 0xff})).To(Equal(uint16(0xffff)))
		Expect(checksum([]byte{0xff, 0xfe})).To(Equal(uint16(1)))
	})

	It("has each resolver once", func() {
		a := cni.DNS{Nameservers: []string{"a"}, Search: []string{"x"}}
		Expect(mergeDNS(a, cni.DNS{Nameservers: []string{"a", "b"}, Search: []string{"x"}, Domain: "d"})).To(Equal(
			cni.DNS{Nameservers: []string{"a", "b"}, Search: []string{"x"}, Domain: "d"}))
	})

	DescribeTable("passes the filter of the socket if a client needs it", func(
		passes bool, protocol int, payload []byte,
	) {
		b := slices.Concat(make([]byte, 40), payload, make([]byte, 8))
		b[6] = byte(protocol)
		n := nstest.Must(nstest.Must(bpf.NewVM(filter6)).Run(b))
		Expect(n > 0).To(Equal(passes))
	},
		Entry("to port 546", true, unix.IPPROTO_UDP, []byte{2, 35, 2, 34}),
		Entry("to port 547", false, unix.IPPROTO_UDP, []byte{2, 34, 2, 35}),
		Entry("to port 546, by TCP", false, unix.IPPROTO_TCP, []byte{2, 35, 2, 34}),
		Entry("a router advertisement", true, unix.IPPROTO_ICMPV6, []byte{routerAdvertisement}),
		Entry("a router solicitation", false, unix.IPPROTO_ICMPV6, []byte{routerSolicitation}),
		Entry("a neighbour solicitation", true, unix.IPPROTO_ICMPV6, []byte{neighborSolicitation}),
		Entry("a neighbour advertisement", false, unix.IPPROTO_ICMPV6, []byte{neighborAdvertisement}),
		Entry("TCP that begins as an advertisement", false, unix.IPPROTO_TCP, []byte{routerAdvertisement}),
	)
})
