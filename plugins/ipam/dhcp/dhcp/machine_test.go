package dhcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var (
	ownMAC    = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	serverMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	serverIP  = net.IPv4(10, 9, 0, 1)
)

// life is a machine with a clock that the spec advances.
type life struct {
	machine
	now time.Duration
}

func newLife() *life {
	who := identity{MAC: ownMAC, ID: []byte("id"), options: options{Request: []byte{1, 3}}}
	return &life{machine: machine{id: &who,
		progress: &progress{flags: flags{timeout: 4 * time.Second, maxPause: 62 * time.Second}}}}
}

// answer returns the server's answer to the machine's last message: a lease of 10.9.0.50 for an hour, modified by more.
func (l *life) answer(kind dhcpv4.MessageType, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	GinkgoHelper()
	p := nstest.Must(dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithTransactionID(l.xid), dhcpv4.WithHwAddr(ownMAC),
		dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 50)), dhcpv4.WithLeaseTime(3600),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(serverIP))}, more...)...))
	p.OpCode = dhcpv4.OpcodeBootReply
	return p
}

func (l *life) receiveAnswer(kind dhcpv4.MessageType, more ...dhcpv4.Modifier) {
	GinkgoHelper()
	l.receive(l.now, l.answer(kind, more...))
}

// next advances the clock to the machine's next wake-up, and returns the packet that it sends.
func (l *life) next() *packet {
	GinkgoHelper()
	l.now = max(l.now, l.nextTick)
	return l.tick(l.now)
}

// bind carries out an exchange until there is a lease.
func (l *life) bind(more ...dhcpv4.Modifier) {
	GinkgoHelper()
	Expect(l.next().message.MessageType()).To(Equal(dhcpv4.MessageTypeDiscover))
	l.receiveAnswer(dhcpv4.MessageTypeOffer, more...)
	Expect(l.state).To(Equal(requesting))
	Expect(l.next().message.MessageType()).To(Equal(dhcpv4.MessageTypeRequest))
	l.receiveAnswer(dhcpv4.MessageTypeAck, more...)
	Expect(l.state).To(Equal(bound))
}

// boundLife returns a life with a lease.
func boundLife(more ...dhcpv4.Modifier) *life {
	GinkgoHelper()
	l := newLife()
	l.bind(more...)
	return l
}

// route returns the source, destination and next hop of a packet.
func route(p *packet) string { return fmt.Sprint(p.src, " to ", p.dst, " by ", p.nextHop) }

var (
	unconfigured = "0.0.0.0 to 255.255.255.255 by invalid IP"
	toServer     = "10.9.0.50 to 10.9.0.1 by 10.9.0.1"
	another      = dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 9, 0, 2)))
)

var _ = Describe("the machine", func() {
	It("repeats a DISCOVER after a quarter of a second, then at growing intervals", func() {
		l := newLife()
		var pauses []time.Duration
		for range 22 {
			Expect(l.next().message.MessageType()).To(Equal(dhcpv4.MessageTypeDiscover))
			pauses = append(pauses, l.nextTick-l.now)
		}
		for i, want := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second,
			2 * time.Second, 4 * time.Second, 4 * time.Second} {
			Expect(pauses[i]).To(BeNumerically("~", want, want/10+1))
		}
		Expect(pauses[21]).To(BeNumerically("~", 62*time.Second, 6200*time.Millisecond+1))
	})

	It("accepts an offer, and sends a REQUEST to the server that made it", func() {
		l := newLife()
		discover := l.next()
		Expect(route(discover)).To(Equal(unconfigured))
		Expect(discover.message.Options).To(HaveKeyWithValue(uint8(61), []byte("id")))
		Expect(discover.message.Options).To(HaveKeyWithValue(uint8(55), []byte{1, 3}))
		l.receiveAnswer(dhcpv4.MessageTypeOffer)
		request := l.next().message
		Expect(request.RequestedIPAddress().String()).To(Equal("10.9.0.50"))
		Expect(request.ServerIdentifier().String()).To(Equal("10.9.0.1"))
		Expect(request.TransactionID).To(Equal(discover.message.TransactionID))
		l.receiveAnswer(dhcpv4.MessageTypeAck)
		Expect(l.lease.prefix().String()).To(Equal("10.9.0.50/24"))
		Expect(l.tick(l.now)).To(BeNil())
		Expect(l.nextTick - l.now).To(Equal(30 * time.Minute))
	})

	It("starts again when the server that made an offer does not answer", func() {
		l := newLife()
		l.next()
		l.receiveAnswer(dhcpv4.MessageTypeOffer)
		for range maxTries {
			Expect(l.next().message.MessageType()).To(Equal(dhcpv4.MessageTypeRequest))
		}
		Expect(l.next().message.MessageType()).To(Equal(dhcpv4.MessageTypeDiscover))
	})

	It("renews by unicast at T1, at shrinking intervals, and rebinds by broadcast at T2", Label("lease-times"), func() {
		l := boundLife()
		began := l.now
		renew := l.next()
		Expect(l.now - began).To(Equal(30 * time.Minute))
		Expect(l.state).To(Equal(renewing))
		Expect(route(renew)).To(Equal(toServer))
		Expect(renew.message.ClientIPAddr.String()).To(Equal("10.9.0.50"))
		Expect(renew.message.Options).NotTo(HaveKey(uint8(50)))
		Expect(renew.message.Options).NotTo(HaveKey(uint8(54)))
		count := 0
		for ; l.state == renewing; l.next() {
			count++
		}
		Expect(count).To(BeNumerically("<", 15))
		Expect(l.state).To(Equal(rebinding))
		Expect(l.now - began).To(Equal(3150 * time.Second))
		Expect(route(l.packet())).To(Equal("10.9.0.50 to 255.255.255.255 by invalid IP"))
		Expect(l.packet().message.ClientIPAddr.String()).To(Equal("10.9.0.50"))
		By("any server may answer")
		l.receiveAnswer(dhcpv4.MessageTypeAck, another)
		Expect(l.state).To(Equal(bound))
		Expect(l.lease.expiry).To(Equal(l.now + time.Hour))
	})

	It("sends the seconds since the beginning of the attempt", func() {
		l := newLife()
		Expect(l.next().message.NumSeconds).To(BeZero())
		for l.now < 10*time.Second {
			began := l.now
			Expect(l.next().message.NumSeconds).To(BeEquivalentTo(l.now/time.Second), began.String())
		}
		By("a REQUEST repeats the seconds of the answered DISCOVER")
		discover := l.next().message
		l.now += 3 * time.Second
		l.receiveAnswer(dhcpv4.MessageTypeOffer)
		Expect(l.next().message.NumSeconds).To(Equal(discover.NumSeconds))
		By("a server that no longer answers does not restart the count")
		for l.state == requesting {
			l.next()
		}
		Expect(l.next().message.NumSeconds).To(BeNumerically(">", discover.NumSeconds))
		l.receiveAnswer(dhcpv4.MessageTypeOffer)
		l.next()
		l.receiveAnswer(dhcpv4.MessageTypeAck)
		By("a renewal begins at zero, and rebinding continues its count")
		Expect(l.next().message.NumSeconds).To(BeZero())
		for l.state == renewing {
			l.next()
		}
		Expect(l.packet().message.NumSeconds).To(BeEquivalentTo(1350))
		Expect(l.releasePacket().message.NumSeconds).To(BeZero())
	})

	It("sends the lease's MAC address while there is a lease, and the interface's otherwise", func() {
		l := boundLife()
		other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
		l.id.MAC = other
		Expect(l.next().message.ClientHWAddr).To(Equal(ownMAC))
		Expect(l.releasePacket().message.ClientHWAddr).To(Equal(ownMAC))
		By("the server must answer by broadcast, because the interface has another MAC address")
		Expect(l.packet().message.IsBroadcast()).To(BeTrue())
		l.receiveAnswer(dhcpv4.MessageTypeNak)
		Expect(l.lease).To(BeNil())
		Expect(l.next().message.ClientHWAddr).To(Equal(other))
		Expect(l.packet().message.IsBroadcast()).To(BeFalse())
		l.receive(l.now, l.answer(dhcpv4.MessageTypeOffer, dhcpv4.WithHwAddr(other)))
		Expect(l.state).To(Equal(requesting))
	})

	It("loses the lease exactly at its end, and requests a new one", Label("lease-times"), func() {
		l := boundLife()
		end := l.lease.expiry
		for l.lease != nil {
			l.next()
		}
		Expect(l.now).To(Equal(end))
		Expect(l.state).To(Equal(selecting))
		l.bind()
	})

	It("uses the times of the server if they are plausible", func() {
		seconds := func(s int) time.Duration { return time.Duration(s) * time.Second }
		times := func(whole uint32, t1, t2 int) []time.Duration {
			l := boundLife(dhcpv4.WithLeaseTime(whole), dhcpv4.WithOption(dhcpv4.OptRenewTimeValue(seconds(t1))),
				dhcpv4.WithOption(dhcpv4.OptRebindingTimeValue(seconds(t2))))
			return []time.Duration{l.lease.renew - l.now, l.lease.rebind - l.now, l.lease.expiry - l.now}
		}
		Expect(times(12, 3, 9)).To(Equal([]time.Duration{seconds(3), seconds(9), seconds(12)}))
		Expect(times(80, 90, 100)).To(Equal([]time.Duration{seconds(40), seconds(70), seconds(80)}))
		Expect(times(80, 0, 20)).To(Equal([]time.Duration{seconds(20), seconds(20), seconds(80)}))
		By("an infinite lease lasts 136 years")
		Expect(times(1<<32-1, 0, 0)[2]).To(Equal(seconds(1<<32 - 1)))
	})

	It("requests its former address after a restart, and keeps it while no server objects", func() {
		l := boundLife()
		l.now = l.lease.renew + time.Second
		l.enter(rebooting, l.now)
		for range maxTries {
			p := l.next()
			Expect(route(p)).To(Equal(unconfigured))
			Expect(p.message.RequestedIPAddress().String()).To(Equal("10.9.0.50"))
			Expect(p.message.Options).NotTo(HaveKey(uint8(54)))
			Expect(p.message.ClientIPAddr.IsUnspecified()).To(BeTrue())
		}
		l.next()
		Expect(l.state).To(Equal(renewing))
		Expect(l.lease).NotTo(BeNil())
	})

	It("gives up the lease on a NAK", func() {
		for _, s := range []state{renewing, rebinding, rebooting} {
			l := boundLife()
			l.now = l.lease.renew
			l.enter(s, l.now)
			l.next()
			l.receiveAnswer(dhcpv4.MessageTypeNak)
			Expect(l.lease).To(BeNil(), string(s))
			l.bind()
		}
	})

	It("does not answer a storm of NAKs with a storm of requests", Label("hostile-server"), func() {
		l := newLife()
		sent := 0
		for l.now < time.Hour && sent < 1000 {
			l.next()
			l.receiveAnswer(dhcpv4.MessageTypeOffer)
			l.next()
			for range 100 {
				l.receiveAnswer(dhcpv4.MessageTypeNak)
			}
			sent += 2
		}
		Expect(sent).To(BeNumerically("<", 150))
	})

	It("waits after a NAK also with -resendmax 0", Label("hostile-server"), func() {
		l := newLife()
		l.flags.maxPause = 0
		l.next()
		l.receiveAnswer(dhcpv4.MessageTypeOffer)
		l.next()
		l.receiveAnswer(dhcpv4.MessageTypeNak)
		Expect(l.nextTick - l.now).To(Equal(minPause))
	})

	DescribeTable("ignores an OFFER with", Label("hostile-server"), func(spoil func(*dhcpv4.DHCPv4)) {
		l := newLife()
		l.next()
		p := l.answer(dhcpv4.MessageTypeOffer)
		spoil(p)
		l.receive(l.now, p)
		Expect(l.state).To(Equal(selecting))
		Expect(l.lease).To(BeNil())
		By("and then accepts the valid one")
		l.receiveAnswer(dhcpv4.MessageTypeOffer)
		Expect(l.state).To(Equal(requesting))
	},
		Entry("another transaction", func(p *dhcpv4.DHCPv4) { p.TransactionID[0]++ }),
		Entry("another client", func(p *dhcpv4.DHCPv4) { p.ClientHWAddr = serverMAC }),
		Entry("the opcode of a client", func(p *dhcpv4.DHCPv4) { p.OpCode = dhcpv4.OpcodeBootRequest }),
		Entry("type ACK", func(p *dhcpv4.DHCPv4) { p.Options[53] = []byte{5} }),
		Entry("type NAK", func(p *dhcpv4.DHCPv4) { p.Options[53] = []byte{6} }),
		Entry("no type", func(p *dhcpv4.DHCPv4) { delete(p.Options, 53) }),
		Entry("no server", func(p *dhcpv4.DHCPv4) { delete(p.Options, 54) }),
		Entry("a server of three bytes", func(p *dhcpv4.DHCPv4) { p.Options[54] = []byte{10, 9, 0} }),
		Entry("no address", func(p *dhcpv4.DHCPv4) { p.YourIPAddr = net.IPv4zero }),
		Entry("a multicast address", func(p *dhcpv4.DHCPv4) { p.YourIPAddr = net.IPv4(224, 0, 0, 1) }),
		Entry("no mask", func(p *dhcpv4.DHCPv4) { delete(p.Options, 1) }),
		Entry("a mask with a hole", func(p *dhcpv4.DHCPv4) { p.Options[1] = []byte{255, 0, 255, 0} }),
		Entry("a mask of everything", func(p *dhcpv4.DHCPv4) { p.Options[1] = []byte{0, 0, 0, 0} }),
		Entry("a lease without time", func(p *dhcpv4.DHCPv4) { p.Options[51] = []byte{0, 0, 0, 0} }),
	)

	It("accepts only an answer to its request from the server to which it sent the request", func() {
		l := newLife()
		l.next()
		l.receiveAnswer(dhcpv4.MessageTypeOffer)
		l.next()
		l.receiveAnswer(dhcpv4.MessageTypeAck, another)
		l.receiveAnswer(dhcpv4.MessageTypeNak, another)
		l.receiveAnswer(dhcpv4.MessageTypeAck, dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 66)))
		Expect(l.state).To(Equal(requesting))
		l.receiveAnswer(dhcpv4.MessageTypeAck)
		Expect(l.state).To(Equal(bound))
		l.now = l.lease.renew
		l.next()
		l.receiveAnswer(dhcpv4.MessageTypeNak, another)
		Expect(l.state).To(Equal(renewing))
	})

	DescribeTable("sends messages for the server to", func(want string, more ...dhcpv4.Modifier) {
		l := boundLife(append(more, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 9))))...)
		Expect(route(l.releasePacket())).To(Equal("10.9.0.50 to 192.0.2.9 by " + want))
	},
		Entry("the router, if the server is on another link", "10.9.0.8", dhcpv4.WithRouter(net.IPv4(10, 9, 0, 8))),
		Entry("the gateway of the most specific route", "10.9.0.7", dhcpv4.WithRouter(net.IPv4(10, 9, 0, 8)),
			dhcpv4.WithGeneric(dhcpv4.OptionStaticRoutingTable, []byte{192, 0, 2, 0, 10, 9, 0, 7})),
		Entry("the server, if a route is on the link", "192.0.2.9",
			dhcpv4.WithGeneric(dhcpv4.OptionClasslessStaticRoute, []byte{24, 192, 0, 2, 0, 0, 0, 0})),
		Entry("the broadcast address, if there is no route", "invalid IP"),
	)

	It("releases from the leased address", func() {
		l := boundLife()
		p := l.releasePacket()
		Expect(p.message.MessageType()).To(Equal(dhcpv4.MessageTypeRelease))
		Expect(route(p)).To(Equal(toServer))
		Expect(p.message.ClientIPAddr.String()).To(Equal("10.9.0.50"))
		Expect(p.message.Options).To(HaveKeyWithValue(uint8(61), []byte("id")))
		By("the record of an older daemon has the configured ID only in its options")
		l.id.Provide = map[uint8][]byte{61: []byte("own")}
		Expect(l.releasePacket().message.Options).To(HaveKeyWithValue(uint8(61), []byte("own")))
	})
})

var _ = Describe("the result", func() {
	result := func(o options, more ...dhcpv4.Modifier) string {
		l := boundLife(more...)
		return string(nstest.Must(l.lease.result(o).Encode("1.0.0")))
	}
	generic := func(code uint8, value ...byte) dhcpv4.Modifier {
		return dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(code), value)
	}
	router := dhcpv4.WithRouter(net.IPv4(10, 9, 0, 9), net.IPv4(10, 9, 0, 8))

	DescribeTable("has", func(want string, o options, more ...dhcpv4.Modifier) {
		Expect(result(o, more...)).To(MatchJSON(
			`{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.50/24"` + want + `}`))
	},
		Entry("no gateway without routers", `}]`, options{}),
		Entry("no gateway of three bytes", `}]`, options{}, generic(3, 10, 9, 0)),
		Entry("the first valid router", `, "gateway": "10.9.0.9"}],
			"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.9", "priority": 7}]`, options{Priority: 7},
			dhcpv4.WithRouter(net.IPv4zero, net.IPv4(10, 9, 0, 9))),
		Entry("the routes of option 33 without its default route", `, "gateway": "10.9.0.9"}],
			"routes": [{"dst": "192.0.2.0/24", "gw": "10.9.0.7"}, {"dst": "0.0.0.0/0", "gw": "10.9.0.9"}]`,
			options{}, router,
			generic(33, 192, 0, 2, 0, 10, 9, 0, 7, 0, 0, 0, 0, 10, 9, 0, 7, 1)),
		Entry("only the routes of option 121", `, "gateway": "10.9.0.9"}], "routes": [{"dst": "192.0.2.0/25",
			"gw": "10.9.0.7", "priority": 3}, {"dst": "10.8.0.0/16", "scope": 253, "priority": 3}]`,
			options{Priority: 3}, router,
			generic(33, 192, 0, 2, 0, 10, 9, 0, 7), generic(121, 25, 192, 0, 2, 0, 10, 9, 0, 7, 16, 10, 8, 0, 0, 0, 0)),
		Entry("no route of a truncated option 121", `}]`, options{}, generic(121, 25, 192, 0, 2, 0, 10, 9)),
		Entry("the valid resolver settings", `}],
			"dns": {"nameservers": ["10.9.0.3"], "domain": "a.example", "search": ["b.example"]}`, options{DNS: true},
			dhcpv4.WithDNS(net.IPv4(10, 9, 0, 3)), generic(15, []byte("a.example\x00")...),
			dhcpv4.WithDomainSearchList("b.example", "c d.example")),
		Entry("no invalid domain name", `}]`, options{DNS: true}, generic(15, []byte("a\nnameserver 192.0.2.9")...)),
		Entry("no resolver settings that were not requested", `}]`, options{}, dhcpv4.WithDNS(net.IPv4(10, 9, 0, 3))),
	)
})

// FuzzAnswer answers every message with fuzzed data that has the right transaction ID and MAC address. The result
// must be a lease that an interface can have, or none.
func FuzzAnswer(f *testing.F) {
	for _, options := range []string{"", "\x35\x01\x02\xff", "\x35\x01\x05\x36\x04\x0a\x09\x00\x01\x01\x04\xff" +
		"\xff\xff\x00" +
		"\x79\x05\x18\x0a\x08\x00\x0a\x21\x08\xc0\x00\x02\x00\x0a\x09\x00\x07\x77\x04\x01a\x00\xc0\x0f\x02a\n\xff"} {
		l := newLife()
		offer := l.message(dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 50)))
		message := offer.ToBytes()
		f.Add(append(message[:240:240], options...), uint8(2))
	}
	f.Fuzz(func(t *testing.T, message []byte, rounds uint8) {
		l := newLife()
		for range rounds % 16 {
			l.now = max(l.now, l.nextTick)
			if l.tick(l.now) == nil {
				t.Fatal("nothing is sent when it is time")
			}
			p, err := dhcpv4.FromBytes(message)
			if err != nil {
				return
			}
			p.OpCode, p.TransactionID, p.ClientHWAddr = dhcpv4.OpcodeBootReply, l.xid, ownMAC
			l.receive(l.now, p)
			if l.nextTick < l.now {
				t.Fatal("the machine wants to go back in time")
			}
			checkLease(t, l.lease)
		}
	})
}

func checkLease(t *testing.T, l *lease) {
	if l == nil {
		return
	}
	if l.renew > l.rebind || l.rebind >= l.expiry {
		t.Fatal("times out of order", l.renew, l.rebind, l.expiry)
	}
	res := l.result(options{DNS: true})
	for _, version := range cni.Versions() {
		out, err := res.Encode(version)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cni.DecodeResult(out, version); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r := record{}
	r.setLease(l)
	if again := r.decodeLease(r.ACK); again == nil || again.prefix() != l.prefix() {
		t.Fatal("the record has another lease")
	}
}

// FuzzRecord decodes fuzzed records and continues with their leases, like a restarted daemon.
func FuzzRecord(f *testing.F) {
	l := newLife()
	ack := l.message(dhcpv4.MessageTypeAck, dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 50)), dhcpv4.WithLeaseTime(3600),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 9, 0, 1))))
	r := record{Attachment: cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"},
		NetnsPath: "/x", Index: 2,
		Client: *l.id}
	for _, lease := range []*lease{nil, {ack: ack, since: time.Hour}, {ack: ack, since: 1<<63 - 1}} {
		r.setLease(lease)
		data, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	six := newLease6(lease6{raState: raState{LinkLocal: own6, Router: router6}, Server: server6,
		Addrs: []addr6{{lent6, 2 * time.Hour}}}, time.Minute)
	for _, client := range []identity{*newLife6(modeDHCP).id, *l.id} { // the second is of a damaged record
		r.Client = client
		r.setLease(six)
		if data, err := json.Marshal(r); err == nil {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r record
		if json.Unmarshal(data, &r) != nil || !r.Plausible() {
			return
		}
		now := time.Hour
		if r.Client.isV6() {
			liveOn6(t, r, now)
			return
		}
		m := machine{id: &r.Client, progress: &progress{lease: r.decodeLease(r.ACK), flags: newLife().flags}}
		if m.lease != nil {
			m.lease.result(options{DNS: true})
			m.releasePacket().message.ToBytes()
			m.enter(rebooting, now)
		}
		for range 16 {
			now = max(now, m.nextTick)
			if p := m.tick(now); p != nil {
				p.message.ToBytes()
			}
		}
	})
}

// FuzzCall sends fuzzed calls to the daemon's socket.
func FuzzCall(f *testing.F) {
	var whole bytes.Buffer
	whole.WriteString(connectRequest)
	if err := writeGob(&whole, rpcHead{ServiceMethod: methodAllocate}, rpcCall{ContainerID: "c"}); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add([]byte("CONNECT /_goRPC_ HTTP/1.0\r\nHost: x\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.0\n\n"))
	f.Fuzz(func(t *testing.T, call []byte) {
		began := time.Now()
		conn := &duplex{in: bytes.NewReader(call)}
		head, c, err := readCall(conn)
		if err == nil && head.ServiceMethod == methodAllocate {
			_, _ = parseConfig(c.StdinData, c.Args)
		}
		if time.Since(began) > time.Minute {
			t.Fatal("it takes too long")
		}
	})
}

type duplex struct {
	in *bytes.Reader
	bytes.Buffer
}

func (d *duplex) Read(p []byte) (int, error) { return d.in.Read(p) }
