package dhcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

var (
	own6    = netip.MustParseAddr("fe80::2")
	router6 = netip.MustParseAddr("fe80::1")
	lent6   = netip.MustParsePrefix("2001:db8::50/128")
	server6 = []byte("server")
)

// life6 is a machine6 with a clock that the spec advances.
type life6 struct {
	machine6
	now time.Duration
}

func newLife6(way string) *life6 {
	who := identity{MAC: ownMAC, ID: []byte("id"), options: options{IPv6: way, DNS: true}}
	return &life6{machine6: machine6{id: &who, progress: &progress{flags: newLife().flags},
		iaid: [4]byte{1, 2, 3, 4}, ifName: "eth0", ra: raState{LinkLocal: own6}}}
}

// nextMessage advances the clock until something must be sent. It returns the state or the type of the DHCPv6 message.
func (l *life6) nextMessage() (state, *message6) {
	GinkgoHelper()
	for range 100 {
		l.now = max(l.now, l.nextTick)
		if l.tick(l.now) {
			if l.state == soliciting {
				return l.state, nil
			}
			sent := l.message(l.now)
			again := nstest.Must(decode6(sent.encode(), l.iaid))
			Expect(again.client).To(Equal([]byte("id")))
			return l.state, sent
		}
	}
	Fail("nothing is sent")
	return "", nil
}

// pio returns a prefix information option for a prefix of 64 bits.
func pio(prefix string, flags byte, preferred, valid uint32) []byte {
	b := []byte{raPrefix, 4, 64, flags}
	b = binary.BigEndian.AppendUint32(b, valid)
	b = binary.BigEndian.AppendUint32(b, preferred)
	return append(append(b, 0, 0, 0, 0), netip.MustParseAddr(prefix).AsSlice()...)
}

const onLinkOnly, both = 0x80, 0xc0

// ra returns a packet with the advertisement of a default router for an hour.
func ra(from netip.Addr, options ...[]byte) []byte {
	head := []byte{routerAdvertisement, 0, 0, 0, 64, 0, 0x0e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}
	whole := slices.Concat(head, slices.Concat(options...))
	return buildPacket6(unix.IPPROTO_ICMPV6, from, netip.MustParseAddr(allRouters), whole)
}

// answer6 returns a message of the server, with a lease of lent6 for an hour, modified by changes.
func (l *life6) answer6(kind kind6, changes ...func(b *answerOf)) []byte {
	a := &answerOf{xid: l.xid, client: []byte("id"), server: server6, iaid: l.iaid, addr: lent6.Addr(), preferred: 1800,
		valid: 3600}
	for _, change := range changes {
		change(a)
	}
	ia := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(a.iaid[:], a.t1), a.t2)
	if a.addr.IsValid() {
		lent := binary.BigEndian.AppendUint32(a.addr.AsSlice(), a.preferred)
		ia = option6(ia, optAddress, binary.BigEndian.AppendUint32(lent, a.valid)...)
	}
	if a.status != 0 {
		ia = option6(ia, optStatus, append([]byte{0, a.status}, "sorry"...)...)
	}
	b := append([]byte{byte(kind)}, a.xid[:]...)
	b = option6(option6(option6(b, optClientID, a.client...), optServerID, a.server...), optIANA, ia...)
	return toClient(append(b, a.more...))
}

type answerOf struct {
	xid                      [3]byte
	client, server, more     []byte
	iaid                     [4]byte
	addr                     netip.Addr
	t1, t2, preferred, valid uint32
	status                   byte
}

// toClient returns a packet from a server.
func toClient(message []byte) []byte {
	b := buildPacket6(unix.IPPROTO_UDP, router6, own6, message)
	binary.BigEndian.PutUint16(b[40:], serverPort6)
	binary.BigEndian.PutUint16(b[42:], clientPort6)
	return b
}

func (l *life6) hear6(packet []byte) { l.receivePacket(l.now, packet) }

// bind6 carries out an exchange until there is a lease.
func (l *life6) bind6() {
	GinkgoHelper()
	l.nextMessage()
	l.hear6(ra(router6, pio("2001:db8::", both, 1800, 3600)))
	Expect(l.state).To(Equal(selecting))
	l.nextMessage()
	l.hear6(l.answer6(advertise))
	offered := l.now
	_, asks := l.nextMessage()
	Expect(l.now).To(Equal(offered), "at once")
	Expect(asks.kind).To(Equal(request6))
	Expect(asks.server).To(Equal(server6))
	l.hear6(l.answer6(reply6))
	Expect(l.state).To(Equal(bound))
}

var _ = Describe("the machine of IPv6", func() {
	It("solicits a router, then servers; renews at T1, rebinds at T2, and expires", Label("ipv6-times"), func() {
		l := newLife6(modeDHCP)
		for range maxTries + 2 {
			said, _ := l.nextMessage()
			Expect(said).To(Equal(soliciting))
			Expect(l.tick(l.now)).To(BeFalse(), "not before its time")
		}
		l.bind6()
		began := l.now
		Expect(l.lease.String()).To(Equal("2001:db8::50/128"))
		said, _ := l.nextMessage()
		Expect(l.now - began).To(Equal(15 * time.Minute)) // half of the shortest time, T1 and the router's prefix
		Expect(said).To(Equal(soliciting))
		for range maxTries {
			Expect(l.lease).NotTo(BeNil())
			l.nextMessage()
		}
		By("renewal continues although the router does not answer")
		Expect(l.state).To(Equal(renewing))
		_, asks := l.nextMessage()
		Expect([]any{asks.kind, asks.server, asks.addr}).To(Equal([]any{renew6, server6, lent6.Addr()}))
		for l.state == renewing {
			l.nextMessage()
		}
		Expect(l.now - began).To(Equal(24 * time.Minute)) // 0.8 of the preferred time
		Expect(l.message(l.now).kind).To(Equal(rebind6))
		Expect(l.message(l.now).server).To(BeNil())
		Expect(l.message(l.now).elapsed).To(BeZero(), "since it began to rebind")
		for l.lease != nil {
			l.nextMessage()
		}
		Expect(l.now - began).To(Equal(time.Hour))
		Expect(l.fault).To(MatchError(errExpired))
		Expect(l.state).To(Equal(soliciting))
	})

	It("accepts another server's answer to a Rebind", func() {
		l := newLife6(modeDHCP)
		l.bind6()
		for l.state != rebinding {
			l.nextMessage()
		}
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.server = []byte("other") }))
		Expect(l.state).To(Equal(bound))
		Expect(l.lease.v6.Server).To(Equal([]byte("other")))
	})

	It("requests the address again from a server that lost the lease", Label("ipv6-status"), func() {
		l := newLife6(modeDHCP)
		l.bind6()
		for l.state != renewing {
			l.nextMessage()
		}
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.status, a.addr = noBinding, netip.Addr{} }))
		_, asks := l.nextMessage()
		Expect([]any{asks.kind, asks.server, asks.addr}).To(Equal([]any{request6, server6, lent6.Addr()}))
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.status, a.addr = 2, netip.Addr{} }))
		Expect(l.fault).To(MatchError(`the DHCPv6 server refuses: NoAddrsAvail "sorry"`))
		Expect(l.state).To(Equal(selecting))
		Expect(l.lease).NotTo(BeNil(), "until its end")
	})

	DescribeTable("ignores all messages except the answer of its server", Label("hostile-server"), func(
		change func(a *answerOf),
	) {
		l := newLife6(modeDHCP)
		l.nextMessage()
		l.hear6(ra(router6))
		l.nextMessage()
		l.hear6(l.answer6(advertise, change))
		Expect(l.state).To(Equal(selecting))
		l.hear6(l.answer6(advertise))
		l.nextMessage()
		l.hear6(l.answer6(reply6, change))
		Expect(l.lease).To(BeNil())
		good := l.answer6(reply6)
		for n := range len(good) {
			l.hear6(good[:n])
			Expect(l.lease).To(BeNil())
		}
	},
		Entry("another transaction", func(a *answerOf) { a.xid[0]++ }),
		Entry("another client", func(a *answerOf) { a.client = []byte("you") }),
		Entry("no server identifier", func(a *answerOf) { a.server = nil }),
		Entry("another interface", func(a *answerOf) { a.iaid[0]++ }),
		Entry("a multicast address", func(a *answerOf) { a.addr = netip.MustParseAddr("ff0e::1") }),
		Entry("a link-local address", func(a *answerOf) { a.addr = own6 }),
		Entry("an IPv4 address", func(a *answerOf) { a.addr = netip.MustParseAddr("::ffff:10.9.0.1") }),
		Entry("no lifetime", func(a *answerOf) { a.preferred, a.valid = 0, 0 }),
		Entry("a preferred lifetime longer than the valid one", func(a *answerOf) { a.preferred = 9000 }),
		Entry("T1 after T2", func(a *answerOf) { a.t1, a.t2 = 9, 8 }),
		Entry("an option that is longer than the message", func(a *answerOf) { a.more = []byte{0, 99, 0xff, 0xff, 1} }),
		Entry("a truncated IA", func(a *answerOf) { a.more = option6(nil, optIANA, a.iaid[:]...) }),
		Entry("a status of the whole message", func(a *answerOf) { a.more = option6(nil, optStatus, 0, 1) }),
		Entry("an unknown status", func(a *answerOf) { a.status = 6 }),
		Entry("a truncated status", func(a *answerOf) { a.more = option6(nil, optStatus, 0) }),
		Entry("a truncated address", func(a *answerOf) {
			cut := option6(append(a.iaid[:], make([]byte, 8)...), optAddress, make([]byte, 23)...)
			a.addr, a.more = netip.Addr{}, option6(nil, optIANA, cut...)
		}),
		Entry("an address with a status", func(a *answerOf) {
			lent := slices.Concat(a.addr.AsSlice(), []byte{0, 0, 9, 9, 0, 0, 9, 9})
			ia := option6(append(a.iaid[:], make([]byte, 8)...), optAddress, option6(lent, optStatus, 0, 1)...)
			a.addr, a.more = netip.Addr{}, option6(nil, optIANA, ia...)
		}),
	)

	It("ignores a Reply of a server to which it sent no Request", Label("hostile-server"), func() {
		l := newLife6(modeDHCP)
		l.nextMessage()
		l.hear6(ra(router6))
		l.nextMessage()
		l.hear6(l.answer6(reply6))
		Expect(l.state).To(Equal(selecting))
		l.hear6(l.answer6(advertise))
		l.nextMessage()
		asked := l.xid
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.server = []byte("other") }))
		l.hear6(l.answer6(advertise))
		Expect(l.xid).To(Equal(asked))
		long := l.answer6(reply6)
		binary.BigEndian.PutUint16(long[44:], 1000) // in its UDP header
		l.hear6(long)
		Expect(l.lease).To(BeNil())
	})

	DescribeTable("ignores an advertisement", Label("hostile-server"), func(change func(packet []byte) []byte) {
		l := newLife6(modeSLAAC)
		l.nextMessage()
		l.hear6(change(ra(router6, pio("2001:db8::", both, 1800, 3600))))
		Expect(l.lease).To(BeNil())
		l.hear6(ra(router6, pio("2001:db8::", both, 1800, 3600)))
		Expect(l.lease.String()).To(Equal("2001:db8::2/64"))
	},
		Entry("that a router forwarded", func(b []byte) []byte { b[7]--; return b }),
		Entry("from another link", func(b []byte) []byte { b[8] = 0x20; return b }),
		Entry("with a code", func(b []byte) []byte { b[41] = 1; return b }),
		Entry("with an option without length", func(b []byte) []byte { b[57] = 0; return b }),
		Entry("with an option that is longer than the message", func(b []byte) []byte { b[57] = 5; return b }),
		Entry("whose prefix has 63 bits", func(b []byte) []byte { b[58] = 63; return b }),
		Entry("whose prefix is for DHCPv6", func(b []byte) []byte { b[59] = onLinkOnly; return b }),
		Entry("whose prefix option is too short", func(b []byte) []byte {
			return buildPacket6(unix.IPPROTO_ICMPV6, router6, own6, append(b[40:56:56], raPrefix, 1, 64, both, 0,
				0, 0, 0))
		}),
		Entry("that ends in half an option", func(b []byte) []byte {
			return buildPacket6(unix.IPPROTO_ICMPV6, router6, own6, append(b[40:len(b):len(b)], raPrefix))
		}),
		Entry("with a truncated header", func(b []byte) []byte {
			return buildPacket6(unix.IPPROTO_ICMPV6, router6, own6, b[40:55])
		}),
		Entry("whose prefix is multicast", func(b []byte) []byte { b[72] = 0xff; return b }),
		Entry("that is truncated", func(b []byte) []byte { return b[:len(b)-1] }),
	)

	It("has no more addresses than the kernel would have, whatever routers advertise", Label("hostile-server"), func() {
		l := newLife6(modeSLAAC)
		for round := range 3 {
			var options [][]byte
			for n := range 40 {
				options = append(options, pio(fmt.Sprintf("2001:db8:%x:%x::", round, n), both, 1800, math.MaxUint32))
			}
			l.nextMessage()
			l.hear6(ra(router6, options...))
			Expect(l.lease.v6.Addrs).To(HaveLen(16))
			Expect(l.lease.String()).To(HavePrefix("2001:db8::2/64 2001:db8:0:1::2/64 "))
		}
	})

	It("extends the lifetimes of addresses, and removes each at its end", Label("ipv6-slaac-times"), func() {
		l := newLife6(modeSLAAC)
		l.nextMessage()
		l.hear6(ra(router6, pio("2001:db8::", both, 1800, 3600), pio("2001:db8:2::", both, 1800, 7200)))
		Expect(l.lease.String()).To(Equal("2001:db8::2/64 2001:db8:2::2/64"))
		By("another router is ignored while the first one may answer")
		other := netip.MustParseAddr("fe80::9")
		l.nextMessage()
		l.hear6(ra(other, pio("2001:db8:9::", both, 1800, 3600)))
		Expect(l.ra.Router).To(Equal(router6))
		l.hear6(ra(router6, pio("2001:db8:2::", both, 1800, 7200)))
		Expect(l.state).To(Equal(bound))
		Expect(l.lease.String()).To(Equal("2001:db8::2/64 2001:db8:2::2/64"))
		var had *lease
		for strings.Contains(l.lease.String(), "2001:db8::2") {
			had = l.lease
			if said, _ := l.nextMessage(); said == soliciting && l.tries == 1 {
				l.hear6(ra(router6, pio("2001:db8:2::", both, 1800, 7200)))
			}
		}
		Expect(l.lease.String()).To(Equal("2001:db8:2::2/64"))
		Expect(had.String()).To(Equal("2001:db8::2/64 2001:db8:2::2/64"), "the interface's lease is not modified")
		By("a router that does not answer is replaced")
		for range 3 {
			l.nextMessage()
		}
		l.hear6(ra(other, pio("2001:db8:9::", both, 1800, 3600)))
		Expect(l.ra.Router).To(Equal(other))
		Expect(l.lease.String()).To(Equal("2001:db8:2::2/64 2001:db8:9::2/64"))
	})

	It("sends nothing when one of its addresses expires", Label("ipv6-slaac-times"), func() {
		l := newLife6(modeSLAAC)
		l.nextMessage()
		l.hear6(ra(router6, pio("2001:db8::", both, 500, 1000), pio("2001:db8:2::", both, 1800, 7200)))
		Expect(l.nextMessage()).To(Equal(soliciting))
		l.hear6(ra(router6, pio("2001:db8:2::", both, 1800, 7200)))
		Expect(l.tick(1000 * time.Second)).To(BeFalse())
		Expect(l.lease.String()).To(Equal("2001:db8:2::2/64"))
		Expect(l.nextMessage()).To(Equal(soliciting))
		Expect(l.now).To(BeNumerically("~", 30*time.Minute+500*time.Second, 10*time.Second), "at the router's time")
	})

	It("ignores answers to earlier messages, and waits after a refusal", Label("ipv6-status"), func() {
		l := newLife6(modeDHCP)
		l.nextMessage()
		l.hear6(ra(router6))
		l.nextMessage()
		_, again := l.nextMessage()
		Expect(again.elapsed).To(BeNumerically(">", 0))
		l.hear6(l.answer6(advertise))
		early := l.answer6(reply6, func(a *answerOf) { a.xid = again.xid })
		l.hear6(early)
		Expect(l.lease).To(BeNil(), "an answer to the Solicit")
		for range maxTries {
			said, _ := l.nextMessage()
			Expect(said).To(Equal(requesting))
		}
		said, _ := l.nextMessage()
		Expect(said).To(Equal(selecting))
		l.hear6(l.answer6(advertise))
		l.nextMessage()
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.status, a.addr = 1, netip.Addr{} }))
		Expect(l.nextTick).To(BeNumerically(">", l.now))
	})

	It("renews with its server, and stays bound while only a router answers", Label("ipv6-times"), func() {
		l := newLife6(modeDHCP)
		l.bind6()
		lent := l.lease
		l.tick(l.now + 1)
		Expect(l.lease).To(BeIdenticalTo(lent), "nothing is written while nothing changes")
		l.lease.v6.Renew = 3 * time.Hour
		l.nextMessage()
		l.hear6(ra(router6, pio("2001:db8:5::", onLinkOnly, 1800, 3600)))
		Expect(l.state).To(Equal(bound), "before T1")
		Expect(l.lease.v6.OnLink).To(Equal([]netip.Prefix{netip.MustParsePrefix("2001:db8:5::/64")}))
		l.hear6(ra(router6))
		Expect(l.lease.v6.OnLink).NotTo(BeEmpty(), "an unsolicited advertisement")
		l.lease.v6.Renew, l.lease.v6.Rebind = l.now, l.now+time.Hour
		for range maxTries + 1 {
			l.nextMessage()
		}
		Expect(l.state).To(Equal(renewing))
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.server = []byte("other") }))
		Expect(l.state).To(Equal(renewing))
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.status, a.addr = 1, netip.Addr{} }))
		Expect(l.state).To(Equal(renewing), "a server that has not lost the lease")
	})

	DescribeTable("has the server's times, or times derived from the address's lifetimes", Label("ipv6-times"), func(
		t1, t2, preferred, valid uint32, renew, rebind int,
	) {
		l := newLife6(modeDHCP)
		l.nextMessage()
		l.hear6(ra(router6))
		l.nextMessage()
		l.hear6(l.answer6(advertise))
		l.nextMessage()
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.t1, a.t2, a.preferred, a.valid = t1, t2, preferred, valid }))
		held := l.lease.v6
		times := []int{}
		for _, at := range []time.Duration{held.Renew, held.Rebind, l.lease.expiry} {
			times = append(times, int((at-l.now)/time.Second))
		}
		Expect(times).To(Equal([]int{renew, rebind, int(valid)}))
	},
		Entry("both", uint32(10), uint32(20), uint32(30), uint32(40), 10, 20),
		Entry("neither", uint32(0), uint32(0), uint32(1000), uint32(2000), 500, 800),
		Entry("nor a preferred time", uint32(0), uint32(0), uint32(0), uint32(1000), 400, 800),
		Entry("beyond its end", uint32(0), uint32(9000), uint32(1000), uint32(2000), 500, 800),
		Entry("only T1", uint32(10), uint32(0), uint32(1000), uint32(2000), 10, 800),
		Entry("only a late T1", uint32(900), uint32(0), uint32(1000), uint32(2000), 500, 800),
		Entry("only an early T2", uint32(0), uint32(100), uint32(1000), uint32(2000), 100, 100),
	)

	DescribeTable("returns the data of router and server as the result", Label("ipv6-result"), func(
		change func(l *lease6, o *options), want string,
	) {
		l := lease6{raState: raState{LinkLocal: own6, Router: router6, IsDefault: true,
			OnLink: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}},
			Addrs: []addr6{{lent6, time.Hour}}, DNS: cni.DNS{Domain: "x"}}
		o := options{DNS: true, Priority: 7}
		change(&l, &o)
		Expect(nstest.Must(l.result(o).Encode("1.1.0"))).To(MatchJSON(`{"cniVersion": "1.1.0", ` + want + `}`))
	},
		Entry("all", func(*lease6, *options) {}, `"ips": [{"address": "2001:db8::50/128", "gateway": "fe80::1"}],
			"routes": [{"dst": "2001:db8::/64", "scope": 253, "priority": 7}, {"dst": "::/0", "gw": "fe80::1",
				"priority": 7}], "dns": {"domain": "x"}`),
		Entry("of a router that is not a default router", func(l *lease6, _ *options) { l.IsDefault = false },
			`"ips": [{"address": "2001:db8::50/128"}],
			"routes": [{"dst": "2001:db8::/64", "scope": 253, "priority": 7}], "dns": {"domain": "x"}`),
		Entry("with an address of the prefix, without resolvers", func(l *lease6, o *options) {
			l.Addrs[0].Prefix, o.DNS = netip.MustParsePrefix("2001:db8::50/64"), false
		}, `"ips": [{"address": "2001:db8::50/64", "gateway": "fe80::1"}],
			"routes": [{"dst": "::/0", "gw": "fe80::1", "priority": 7}]`),
	)

	It("is renewed before its first address ends, and expires with the last one", Label("ipv6-times"), func() {
		of := lease6{raState: raState{LinkLocal: own6, Router: router6, Refresh: 300}, Addrs: []addr6{{lent6, 200},
			{lent6, 100}}}
		l := newLease6(of, 0)
		Expect([]time.Duration{l.renew, l.rebind, l.expiry}).To(Equal([]time.Duration{100, 200, 200}))
	})

	DescribeTable("reads no lease from a record", func(change func(l *lease6)) {
		l := lease6{raState: raState{LinkLocal: own6, Router: router6}, Addrs: []addr6{{lent6, time.Hour}}}
		kept, r := lease{v6: &l}, record{Client: *newLife6(modeDHCP).id}
		Expect(r.decodeLease(kept.encode())).NotTo(BeNil())
		change(&l)
		Expect(r.decodeLease(kept.encode())).To(BeNil())
	},
		Entry("without address", func(l *lease6) { l.Addrs = nil }),
		Entry("with an address that no interface can have", func(l *lease6) {
			l.Addrs = []addr6{{netip.MustParsePrefix("ff02::1/128"), time.Hour}}
		}),
		Entry("with an empty address", func(l *lease6) { l.Addrs = []addr6{{Until: time.Hour}} }),
		Entry("without router", func(l *lease6) { l.Router = netip.Addr{} }),
		Entry("without its link-local address", func(l *lease6) { l.LinkLocal = lent6.Addr() }),
	)

	It("accepts a router that is not a default router if no other one answers", Label("ipv6-slaac"), func() {
		l := newLife6(modeSLAAC)
		silent := ra(router6, pio("2001:db8::", both, 1800, 3600))
		silent[46], silent[47] = 0, 0 // its lifetime
		for range 3 {
			l.nextMessage()
			Expect(l.lease).To(BeNil())
			l.hear6(silent)
		}
		Expect(l.ra.IsDefault).To(BeFalse())
		Expect(l.lease.String()).To(Equal("2001:db8::2/64"))
		Expect(l.sendRelease(nil)).To(Equal("no server"))
	})

	It("forms an address in each autonomous prefix, and has routes to on-link prefixes", Label("ipv6-slaac"),
		func() {
			l := newLife6(modeSLAAC)
			l.nextMessage()
			l.hear6(ra(router6))
			Expect(l.fault).To(MatchError("router fe80::1 advertises no autonomous prefix of 64 bits"))
			l.hear6(ra(router6, pio("2001:db8:1::7", both, 1800, 3600), pio("2001:db8:2::", 0x40, 1800, 3600),
				pio("2001:db8:3::", both, 0, 3600), pio("2001:db8:1::", both, 1800, 3600),
				pio("2001:db8:4::", both, 0, 0), pio("2001:db8:5::", both, 3601, 3600)))
			Expect(l.fault).NotTo(HaveOccurred())
			Expect(l.lease.String()).To(Equal("2001:db8:1::2/64 2001:db8:2::2/128"))
			Expect(l.lease.renew-l.now).To(Equal(30*time.Minute), "whatever ends now")
			Expect(l.ra.OnLink).To(Equal([]netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64"),
				netip.MustParsePrefix("2001:db8:3::/64")}))
		})

	DescribeTable("has an address until the advertised time, which cannot be reduced below two hours",
		Label("ipv6-slaac-times"), func(first, then, until uint32) {
			l := newLife6(modeSLAAC)
			l.nextMessage()
			l.hear6(ra(router6, pio("2001:db8::", both, 600, first)))
			had := *l.lease.v6
			end := had.Addrs[0].Until
			l.nextMessage()
			l.hear6(ra(router6, pio("2001:db8::", both, 0, then)))
			began := l.lease.since
			Expect(had.Addrs[0].Until).To(Equal(end), "others read it")
			Expect(l.lease.v6.Addrs[0].Until - began).To(Equal(time.Duration(until) * time.Second))
		},
		Entry("more", uint32(3600), uint32(5000), uint32(5000)),
		Entry("less, of a long time", uint32(30000), uint32(0), uint32(7200)),
		Entry("less, but long enough", uint32(30000), uint32(9000), uint32(9000)),
		Entry("less than is left", uint32(3600), uint32(60), uint32(1800)),
	)

	DescribeTable("solicits the router again after half of its shortest lifetime", Label("ipv6-slaac-times"), func(
		lifetime uint16, preferred, valid uint32, after time.Duration,
	) {
		l := newLife6(modeSLAAC)
		l.nextMessage()
		advert := ra(router6, pio("2001:db8::", both, preferred, valid))
		binary.BigEndian.PutUint16(advert[46:], lifetime)
		l.hear6(advert)
		Expect(l.lease.renew - l.now).To(Equal(after))
		By("the advertisement stays valid if the router does not answer")
		for range maxTries {
			said, _ := l.nextMessage()
			Expect(said).To(Equal(soliciting))
		}
		left := l.lease.expiry
		l.now = l.nextTick
		Expect(l.tick(l.now)).To(BeFalse())
		Expect(l.state).To(Equal(bound))
		Expect(l.nextTick - l.now).To(Equal((left - l.now) / 2))
	},
		Entry("the router's", uint16(1000), uint32(86400), uint32(90000), 500*time.Second),
		Entry("the prefix's", uint16(9000), uint32(300), uint32(600), 300*time.Second),
		Entry("an hour", uint16(9000), uint32(86400), uint32(90000), time.Hour),
		Entry("at least a second", uint16(1), uint32(86400), uint32(90000), time.Second),
	)

	It("has the server's resolvers, then the router's that have not expired", Label("ipv6-result"), func() {
		resolver := func(lifetime byte, addr string) []byte {
			return append([]byte{raDNS, 3, 0, 0, 0, 0, 0, lifetime}, netip.MustParseAddr(addr).AsSlice()...)
		}
		search := func(lifetime byte, name byte) []byte {
			return []byte{raSearch, 2, 0, 0, 0, 0, 0, lifetime, 1, name, 0, 0, 0, 0, 0, 0}
		}
		says := ra(router6, pio("2001:db8::", both, 1800, 3600), resolver(9, "fe80::1"), resolver(0, "fe80::9"),
			resolver(9, "2001:db8::54"), search(9, 'r'), search(0, 'x'))
		router := cni.DNS{Nameservers: []string{"fe80::1%eth0", "2001:db8::54"}, Search: []string{"r"}}
		slaac := newLife6(modeSLAAC)
		slaac.nextMessage()
		slaac.hear6(says)
		Expect(slaac.lease.v6.DNS).To(Equal(router))
		l := newLife6(modeDHCP)
		l.nextMessage()
		l.fault = errors.New("before")
		l.hear6(says)
		Expect(l.fault).NotTo(HaveOccurred())
		_, asks := l.nextMessage()
		Expect(asks.dns).To(BeTrue())
		l.hear6(l.answer6(advertise))
		l.nextMessage()
		l.hear6(l.answer6(reply6, func(a *answerOf) {
			a.more = option6(nil, optDNS, netip.MustParseAddr("2001:db8::53").AsSlice()...)
			a.more = option6(a.more, optSearch, 1, 's', 0)
		}))
		Expect(l.lease.v6.DNS).To(Equal(mergeDNS(cni.DNS{Nameservers: []string{"2001:db8::53"}, Search: []string{"s"}},
			router)))
	})

	It("continues a former daemon's lease until its renewal", func() {
		was, l := newLife6(modeDHCP), newLife6(modeDHCP)
		was.bind6()
		l.lease = was.lease
		l.resume(was.now)
		said, _ := l.nextMessage()
		Expect(said).To(Equal(soliciting))
		Expect(l.now).To(Equal(was.lease.renew))
		Expect(l.ra).To(Equal(was.ra))
	})

	It("accepts an answer to a Release only from the server of the lease", Label("hostile-server"), func() {
		l := newLife6(modeDHCP)
		l.bind6()
		renewal := l.xid
		l.enter(releasing, l.now)
		asks := l.message(l.now)
		Expect([]any{asks.kind, asks.server, asks.addr}).To(Equal([]any{release6, server6, lent6.Addr()}))
		Expect(asks.dns).To(BeFalse())
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.xid = renewal }))
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.server = []byte("other") }))
		l.hear6(l.answer6(advertise))
		l.hear6(ra(router6))
		Expect(l.state).To(Equal(releasing))
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.status, a.addr = noBinding, netip.Addr{} }))
		Expect(l.state).To(BeEmpty())
	})

	DescribeTable("recognizes a solicitation for its address", func(asked bool, change func(b []byte) []byte) {
		question := append([]byte{neighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, own6.AsSlice()...)
		Expect(isSolicitationFor(change(buildPacket6(unix.IPPROTO_ICMPV6, router6, own6, question)),
			own6)).To(Equal(asked))
	},
		Entry("from the server", true, func(b []byte) []byte { return b }),
		Entry("not for another address", false, func(b []byte) []byte { b[63]++; return b }),
		Entry("not an advertisement", false, func(b []byte) []byte { b[40]++; return b }),
		Entry("not of duplicate address detection: a guest may have the address", false, func(b []byte) []byte {
			clear(b[8:24])
			return b
		}),
		Entry("not from another link", false, func(b []byte) []byte { b[7]--; return b }),
		Entry("not a truncated one", false, func(b []byte) []byte {
			return buildPacket6(unix.IPPROTO_ICMPV6, router6, own6, b[40:63])
		}),
	)

	DescribeTable("sends routers the MAC address", func(master int, own, want string) {
		l := link{Link: rtnl.Link{MAC: ownMAC, Master: master}}
		Expect(l.macFor(netip.MustParseAddr(own)).String()).To(Equal(want))
	},
		Entry("of the interface", 0, "fe80::ff:fe00:7", ownMAC.String()),
		Entry("of the guest, on the port of a bridge", 5, "fe80::ff:fe00:7", "02:00:00:00:00:07"),
		Entry("of the interface, if the address contains no MAC address", 5, "fe80::fe:fe00:7", ownMAC.String()),
		Entry("of the interface, if only the first of the two bytes matches", 5, "fe80::ff:ff00:7", ownMAC.String()),
	)

	It("has persistent identifiers", func() {
		a := cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"}
		b := a
		b.IfName = "eth1"
		Expect(duidOf(a)).To(And(HaveLen(18), HavePrefix("\x00\x04"), Equal(duidOf(b))))
		Expect(iaidOf(a)).NotTo(Equal(iaidOf(b)))
		b.ContainerID = "two"
		Expect(duidOf(a)).NotTo(Equal(duidOf(b)))
	})
})

// liveOn6 continues with the lease of a record, like a restarted daemon.
func liveOn6(t *testing.T, r record, now time.Duration) {
	m := machine6{id: &r.Client, progress: &progress{lease: r.decodeLease(r.ACK), flags: newLife().flags}}
	if m.lease == nil {
		return
	}
	_ = m.lease.String()
	m.resume(now)
	for range 16 {
		now = max(now, m.nextTick)
		if m.tick(now) && m.state != soliciting {
			m.message(now).encode()
		}
	}
}

// FuzzAnswer6 answers every message with fuzzed data that has the right transaction ID. The result must be a lease
// that an interface can have, or none.
func FuzzAnswer6(f *testing.F) {
	l := newLife6(modeDHCP)
	f.Add(ra(router6, pio("2001:db8::", both, 1800, 3600)), l.answer6(advertise), l.answer6(reply6), true)
	f.Add(ra(router6, pio("2001:db8::", both, 1800, 3600),
		[]byte{raDNS, 3, 0, 0, 0, 0, 0, 9, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		[]byte{raSearch, 2, 0, 0, 0, 0, 0, 9, 1, 'a', 0, 0, 0, 0, 0, 0}), []byte{}, []byte{}, false)
	f.Fuzz(func(t *testing.T, first, second, third []byte, dhcp bool) {
		l := newLife6(modeSLAAC)
		if dhcp {
			l = newLife6(modeDHCP)
		}
		for i := range 12 {
			l.now = max(l.now, l.nextTick)
			l.tick(l.now)
			b := bytes.Clone([][]byte{first, second, third}[i%3])
			if len(b) > 52 && b[6] == unix.IPPROTO_UDP {
				copy(b[49:], l.xid[:])
			}
			l.receivePacket(l.now, b)
			if l.nextTick < l.now {
				t.Fatal("the machine wants to go back in time")
			}
			checkLease6(t, l.lease)
		}
	})
}

func checkLease6(t *testing.T, l *lease) {
	if l == nil {
		return
	}
	if l.renew > l.expiry || l.rebind > l.expiry {
		t.Fatal("times out of order", l.renew, l.rebind, l.expiry)
	}
	res := l.result(options{DNS: true})
	for _, version := range cni.Versions() {
		if out, err := res.Encode(version); err == nil {
			if _, err := cni.DecodeResult(out, version); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	r := record{Client: *newLife6(modeDHCP).id}
	r.setLease(l)
	if again := r.decodeLease(r.ACK); again == nil || again.String() != l.String() {
		t.Fatal("the record has another lease")
	}
}
