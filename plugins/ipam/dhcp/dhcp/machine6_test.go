package dhcp

import (
	"bytes"
	"encoding/binary"
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
)

var (
	own6    = netip.MustParseAddr("fe80::2")
	router6 = netip.MustParseAddr("fe80::1")
	lent6   = netip.MustParsePrefix("2001:db8::50/128")
	server6 = []byte("server")
)

// life6 is a machine of IPv6 with a clock that the spec moves.
type life6 struct {
	machine6
	now time.Duration
}

func newLife6(way string) *life6 {
	who := identity{MAC: ownMAC, ID: []byte("id"), options: options{IPv6: way, DNS: true}}
	return &life6{machine6: machine6{identity: who, course: &course{pauses: newLife().pauses},
		iaid: [4]byte{1, 2, 3, 4}, ifName: "eth0", heard: heard{Own: own6}}}
}

// says lets the clock run until something is to be sent, and returns what: the state, or the DHCPv6 message.
func (l *life6) says() (state, *message6) {
	GinkgoHelper()
	for range 100 {
		l.now = max(l.now, l.wake)
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

// pio is an option with a prefix of 64 bits.
func pio(prefix string, flags byte, preferred, valid uint32) []byte {
	b := []byte{raPrefix, 4, 64, flags}
	b = binary.BigEndian.AppendUint32(b, valid)
	b = binary.BigEndian.AppendUint32(b, preferred)
	return append(append(b, 0, 0, 0, 0), netip.MustParseAddr(prefix).AsSlice()...)
}

const onLinkOnly, both = 0x80, 0xc0

// ra is a packet with an advertisement of a default router for an hour.
func ra(from netip.Addr, options ...[]byte) []byte {
	head := []byte{routerAdvertisement, 0, 0, 0, 64, 0, 0x0e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}
	whole := slices.Concat(head, slices.Concat(options...))
	return packet6(unix.IPPROTO_ICMPV6, from, netip.MustParseAddr(allRouters), whole)
}

// answer6 is the server's message of a kind, which lends lent6 for an hour; what changes does is in it.
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

// toClient is a packet of a server.
func toClient(message []byte) []byte {
	b := packet6(unix.IPPROTO_UDP, router6, own6, message)
	binary.BigEndian.PutUint16(b[40:], serverPort6)
	binary.BigEndian.PutUint16(b[42:], clientPort6)
	return b
}

func (l *life6) hear6(packet []byte) { l.hear(l.now, packet) }

// bind6 goes through an exchange.
func (l *life6) bind6() {
	GinkgoHelper()
	l.says()
	l.hear6(ra(router6, pio("2001:db8::", both, 1800, 3600)))
	Expect(l.state).To(Equal(selecting))
	l.says()
	l.hear6(l.answer6(advertise))
	_, asks := l.says()
	Expect(asks.kind).To(Equal(request6))
	Expect(asks.server).To(Equal(server6))
	l.hear6(l.answer6(reply6))
	Expect(l.state).To(Equal(bound))
}

var _ = Describe("the machine of IPv6", func() {
	It("asks a router, then servers; renews at T1, asks all at T2, and ends", Label("ipv6-times"), func() {
		l := newLife6(byDHCP)
		l.bind6()
		began := l.now
		Expect(l.lease.String()).To(Equal("2001:db8::50/128"))
		said, _ := l.says()
		Expect(l.now - began).To(Equal(15 * time.Minute)) // half of the shortest time, T1 and the router's prefix
		Expect(said).To(Equal(soliciting))
		for range lastTry {
			Expect(l.lease).NotTo(BeNil())
			l.says()
		}
		By("a router that is silent does not hinder")
		Expect(l.state).To(Equal(renewing))
		_, asks := l.says()
		Expect([]any{asks.kind, asks.server, asks.addr}).To(Equal([]any{renew6, server6, lent6.Addr()}))
		for l.state == renewing {
			l.says()
		}
		Expect(l.now - began).To(Equal(24 * time.Minute)) // 0.8 of the preferred time
		Expect(l.message(l.now).kind).To(Equal(rebind6))
		Expect(l.message(l.now).server).To(BeNil())
		for l.lease != nil {
			l.says()
		}
		Expect(l.now - began).To(Equal(time.Hour))
		Expect(l.state).To(Equal(soliciting))
	})

	It("has another server's answer to a Rebind", func() {
		l := newLife6(byDHCP)
		l.bind6()
		for l.state != rebinding {
			l.says()
		}
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.server = []byte("other") }))
		Expect(l.state).To(Equal(bound))
		Expect(l.lease.six.Server).To(Equal([]byte("other")))
	})

	It("asks the server that has lost the lease for it, and says why one refuses", Label("ipv6-status"), func() {
		l := newLife6(byDHCP)
		l.bind6()
		for l.state != renewing {
			l.says()
		}
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.status, a.addr = noBinding, netip.Addr{} }))
		_, asks := l.says()
		Expect([]any{asks.kind, asks.server, asks.addr}).To(Equal([]any{request6, server6, lent6.Addr()}))
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.status, a.addr = 2, netip.Addr{} }))
		Expect(l.fault).To(MatchError(`the DHCPv6 server refuses: NoAddrsAvail "sorry"`))
		Expect(l.state).To(Equal(selecting))
		Expect(l.lease).NotTo(BeNil(), "until its end")
	})

	DescribeTable("is moved by nothing but the answer of the server that it asked", Label("hostile-server"), func(
		change func(a *answerOf),
	) {
		l := newLife6(byDHCP)
		l.says()
		l.hear6(ra(router6))
		l.says()
		l.hear6(l.answer6(advertise, change))
		Expect(l.state).To(Equal(selecting))
		l.hear6(l.answer6(advertise))
		l.says()
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
		Entry("nobody", func(a *answerOf) { a.server = nil }),
		Entry("another interface", func(a *answerOf) { a.iaid[0]++ }),
		Entry("a multicast address", func(a *answerOf) { a.addr = netip.MustParseAddr("ff0e::1") }),
		Entry("a link-local address", func(a *answerOf) { a.addr = own6 }),
		Entry("an address of IPv4", func(a *answerOf) { a.addr = netip.MustParseAddr("::ffff:10.9.0.1") }),
		Entry("no time", func(a *answerOf) { a.preferred, a.valid = 0, 0 }),
		Entry("more time to prefer than to live", func(a *answerOf) { a.preferred = 9000 }),
		Entry("T1 after T2", func(a *answerOf) { a.t1, a.t2 = 9, 8 }),
		Entry("an option that is longer than all", func(a *answerOf) { a.more = []byte{0, 99, 0xff, 0xff, 1} }),
	)

	It("takes no Reply of a server that it did not ask", Label("hostile-server"), func() {
		l := newLife6(byDHCP)
		l.says()
		l.hear6(ra(router6))
		l.says()
		l.hear6(l.answer6(advertise))
		l.says()
		l.hear6(l.answer6(reply6, func(a *answerOf) { a.server = []byte("other") }))
		Expect(l.lease).To(BeNil())
	})

	DescribeTable("takes no advertisement", Label("hostile-server"), func(change func(packet []byte) []byte) {
		l := newLife6(bySLAAC)
		l.says()
		l.hear6(change(ra(router6, pio("2001:db8::", both, 1800, 3600))))
		Expect(l.lease).To(BeNil())
		l.hear6(ra(router6, pio("2001:db8::", both, 1800, 3600)))
		Expect(l.lease.String()).To(Equal("2001:db8::2/64"))
	},
		Entry("that a router passed on", func(b []byte) []byte { b[7]--; return b }),
		Entry("from afar", func(b []byte) []byte { b[8] = 0x20; return b }),
		Entry("with a code", func(b []byte) []byte { b[41] = 1; return b }),
		Entry("with an option without length", func(b []byte) []byte { b[57] = 0; return b }),
		Entry("with an option that is longer than all", func(b []byte) []byte { b[57] = 5; return b }),
		Entry("whose prefix has 63 bits", func(b []byte) []byte { b[58] = 63; return b }),
		Entry("whose prefix is for DHCPv6", func(b []byte) []byte { b[59] = onLinkOnly; return b }),
		Entry("whose prefix is multicast", func(b []byte) []byte { b[72] = 0xff; return b }),
		Entry("that is cut short", func(b []byte) []byte { return b[:len(b)-1] }),
	)

	It("keeps the addresses of prefixes fresh, each until its end", Label("ipv6-slaac-times"), func() {
		l := newLife6(bySLAAC)
		l.says()
		l.hear6(ra(router6, pio("2001:db8::", both, 1800, 3600), pio("2001:db8:2::", both, 1800, 7200)))
		Expect(l.lease.String()).To(Equal("2001:db8::2/64 2001:db8:2::2/64"))
		By("another router is not heard while the first one may answer")
		other := netip.MustParseAddr("fe80::9")
		l.says()
		l.hear6(ra(other, pio("2001:db8:9::", both, 1800, 3600)))
		Expect(l.Router).To(Equal(router6))
		l.hear6(ra(router6, pio("2001:db8:2::", both, 1800, 7200)))
		Expect(l.state).To(Equal(bound))
		Expect(l.lease.String()).To(Equal("2001:db8::2/64 2001:db8:2::2/64"))
		for strings.Contains(l.lease.String(), "2001:db8::2") {
			if said, _ := l.says(); said == soliciting && l.tries == 1 {
				l.hear6(ra(router6, pio("2001:db8:2::", both, 1800, 7200)))
			}
		}
		Expect(l.lease.String()).To(Equal("2001:db8:2::2/64"))
		By("a silent router is replaced")
		for range 3 {
			l.says()
		}
		l.hear6(ra(other, pio("2001:db8:9::", both, 1800, 3600)))
		Expect(l.Router).To(Equal(other))
		Expect(l.lease.String()).To(Equal("2001:db8:2::2/64 2001:db8:9::2/64"))
	})

	DescribeTable("has an address until the time that the router says last, but not less than two hours",
		Label("ipv6-slaac-times"), func(first, then, until uint32) {
			l := newLife6(bySLAAC)
			l.says()
			l.hear6(ra(router6, pio("2001:db8::", both, 600, first)))
			l.says()
			l.hear6(ra(router6, pio("2001:db8::", both, 0, then)))
			began := l.lease.since
			Expect(l.lease.six.Addrs[0].Until - began).To(Equal(time.Duration(until) * time.Second))
		},
		Entry("more", uint32(3600), uint32(5000), uint32(5000)),
		Entry("less, of a long time", uint32(30000), uint32(0), uint32(7200)),
		Entry("less, but long enough", uint32(30000), uint32(9000), uint32(9000)),
		Entry("less than is left", uint32(3600), uint32(60), uint32(1800)),
	)

	It("has identifiers that last", func() {
		a := cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"}
		b := a
		b.IfName = "eth1"
		Expect(duid(a)).To(And(HaveLen(18), HavePrefix("\x00\x04"), Equal(duid(b))))
		Expect(iaidOf(a)).NotTo(Equal(iaidOf(b)))
		b.ContainerID = "two"
		Expect(duid(a)).NotTo(Equal(duid(b)))
	})
})

// liveOn6 lives on with a record's lease as a daemon does that starts.
func liveOn6(t *testing.T, r record, now time.Duration) {
	m := machine6{identity: r.Client, course: &course{lease: leaseOf(r.ACK, r.Since), pauses: newLife().pauses}}
	if m.lease == nil || m.lease.six == nil {
		return
	}
	_ = m.lease.String()
	m.resume(now)
	for range 16 {
		now = max(now, m.wake)
		if m.tick(now) && m.state != soliciting {
			m.message(now).encode()
		}
	}
}

// FuzzAnswer6 has routers and servers answer to every message with what the fuzzer makes up, with the true transaction
// ID. What comes of it is a lease that an interface can have, or none.
func FuzzAnswer6(f *testing.F) {
	l := newLife6(byDHCP)
	f.Add(ra(router6, pio("2001:db8::", both, 1800, 3600)), l.answer6(advertise), l.answer6(reply6), true)
	f.Add(ra(router6, pio("2001:db8::", both, 1800, 3600),
		[]byte{raDNS, 3, 0, 0, 0, 0, 0, 9, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		[]byte{raSearch, 2, 0, 0, 0, 0, 0, 9, 1, 'a', 0, 0, 0, 0, 0, 0}), []byte{}, []byte{}, false)
	f.Fuzz(func(t *testing.T, first, second, third []byte, dhcp bool) {
		l := newLife6(bySLAAC)
		if dhcp {
			l = newLife6(byDHCP)
		}
		for i := range 12 {
			l.now = max(l.now, l.wake)
			l.tick(l.now)
			b := bytes.Clone([][]byte{first, second, third}[i%3])
			if len(b) > 52 && b[6] == unix.IPPROTO_UDP {
				copy(b[49:], l.xid[:])
			}
			l.hear(l.now, b)
			if l.wake < l.now {
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
	res := l.result(options{DNS: true}).decode()
	for _, version := range cni.Versions() {
		if out, err := res.Encode(version); err == nil {
			if _, err := cni.DecodeResult(out, version); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	r := record{}
	r.setLease(l)
	if again := leaseOf(r.ACK, r.Since); again == nil || again.String() != l.String() {
		t.Fatal("the record has another lease")
	}
}
