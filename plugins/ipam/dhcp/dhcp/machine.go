package dhcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// state is one of RFC 2131, figure 5. INIT and SELECTING are one state here, and so are
// INIT-REBOOT and REBOOTING.
type state string

const (
	selecting  state = "SELECTING"
	requesting state = "REQUESTING"
	bound      state = "BOUND"
	renewing   state = "RENEWING"
	rebinding  state = "REBINDING"
	rebooting  state = "INIT-REBOOT"
)

// identity is what a server knows a client by, and what that asks for.
type identity struct {
	MAC       net.HardwareAddr
	ID        []byte
	Broadcast bool // answers must be sent to all: we do not get others before we have the address
	options
}

// isFirst says whether there was no exchange yet: an ADD has just begun.
func (i *identity) isFirst() bool { return i.MAC == nil }

// course is where a client is on its way to a lease. Times are since boot.
type course struct {
	flags flags // the daemon's
	state state
	lease *lease // nil: there is none
	wake  time.Duration
	fault error // why the last answer was of no use, or nobody could be asked

	began time.Duration // when it began to ask for a lease, or for its renewal
	tries int           // of sending the same message
	naks  int           // since the last lease
}

// machine is the state machine of a lease (RFC 2131, section 4.4), without clock and socket. tick returns the packet to
// send now, wake is when to call it again at the latest, receive takes a message that has come.
type machine struct {
	*identity
	*course

	xid   dhcpv4.TransactionID
	secs  uint16         // that have passed since began; a REQUEST has those of its DISCOVER
	offer *dhcpv4.DHCPv4 // of REQUESTING
}

// packet is a message, and where it goes.
type packet struct {
	message  *dhcpv4.DHCPv4
	src, dst netip.Addr
	hop      netip.Addr // whose MAC address it goes to; zero: to all on the link
}

const (
	firstPause = 250 * time.Millisecond
	lastTry    = 4  // of a REQUEST that should have been answered at once
	eager      = 16 // tries of a DISCOVER with short pauses
)

// enter begins a state. Answers to earlier messages are ignored from now on; a REQUEST has its OFFER's transaction.
func (m *machine) enter(s state, now time.Duration) {
	if s != requesting {
		if m.state != requesting && m.state != renewing { // else it goes on asking
			m.began = now
		}
		m.offer = nil
		binary.BigEndian.PutUint32(m.xid[:], rand.Uint32())
	}
	m.state, m.tries, m.wake = s, 0, now
}

// tick lets time pass and returns what is to be sent, if anything.
func (m *machine) tick(now time.Duration) *packet {
	if m.state == "" {
		m.enter(selecting, now)
	}
	if l := m.lease; l != nil {
		switch {
		case now >= l.expiry:
			m.lease = nil
			m.enter(selecting, now)
		case now >= l.rebind && (m.state == bound || m.state == renewing):
			m.enter(rebinding, now)
		case now >= l.renew && m.state == bound:
			m.enter(renewing, now)
		}
	}
	if m.state == bound || now < m.wake {
		return nil
	}
	switch {
	case m.state == requesting && m.tries == lastTry:
		m.enter(selecting, now)
	case m.state == rebooting && m.tries == lastTry: // the lease is good while nobody objects
		m.enterBound()
		return m.tick(now)
	}
	m.wake = now + m.pause(now)
	m.tries++
	if m.state != requesting {
		m.secs = uint16(min((now-m.began)/time.Second, 1<<16-1))
	}
	return m.packet()
}

// enterBound waits for the time of the renewal.
func (c *course) enterBound() { c.state, c.wake, c.naks = bound, c.lease.renew, 0 }

// half is a pause of half the time that is left.
func half(now, end time.Duration) time.Duration { return min(max((end-now)/2, time.Second), end-now) }

// pause is how long to wait for an answer: a little longer each time, or half the time
// that is left.
func (c *course) pause(now time.Duration) time.Duration {
	switch c.state {
	case renewing:
		return half(now, c.lease.rebind)
	case rebinding:
		return half(now, c.lease.expiry)
	}
	pause := min(firstPause<<min(c.tries, eager), c.flags.timeout)
	if c.tries > eager {
		pause = c.flags.pauseMax
	}
	pause = max(pause, firstPause)
	return pause*9/10 + rand.N(pause/5)
}

// packet makes the message of the state (RFC 2131, table 5).
func (m *machine) packet() *packet {
	p := &packet{src: netip.IPv4Unspecified(), dst: netip.AddrFrom4([4]byte{255, 255, 255, 255})}
	kind := dhcpv4.MessageTypeRequest
	var more []dhcpv4.Modifier
	switch m.state {
	case selecting:
		kind = dhcpv4.MessageTypeDiscover
	case requesting:
		more = []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(m.offer.YourIPAddr)),
			dhcpv4.WithOptionCopied(m.offer, dhcpv4.OptionServerIdentifier)}
	case rebooting:
		more = []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(m.lease.ack.YourIPAddr))}
	case renewing:
		p.dst, p.hop = m.lease.server()
		fallthrough
	case rebinding:
		p.src = m.lease.prefix().Addr()
		more = []dhcpv4.Modifier{dhcpv4.WithClientIP(m.lease.ack.YourIPAddr)}
	}
	more = append(more, dhcpv4.WithBroadcast(m.Broadcast || !bytes.Equal(m.mac(), m.MAC)),
		dhcpv4.WithGeneric(dhcpv4.OptionParameterRequestList, m.Request),
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1500)))
	p.message = m.message(kind, more...)
	p.message.NumSeconds = m.secs
	for code, value := range m.Provide {
		p.message.Options[code] = value
	}
	return p
}

// releasePacket is the packet that gives the lease back.
func (m *machine) releasePacket() *packet {
	l := m.lease
	id := m.ID
	if own := m.Provide[dhcpv4.OptionClientIdentifier.Code()]; own != nil { // a record may have another ID
		id = own
	}
	message := m.message(dhcpv4.MessageTypeRelease, dhcpv4.WithClientIP(l.ack.YourIPAddr),
		dhcpv4.WithOptionCopied(l.ack, dhcpv4.OptionServerIdentifier),
		dhcpv4.WithGeneric(dhcpv4.OptionClientIdentifier, id))
	server, hop := l.server()
	return &packet{message: message, src: l.prefix().Addr(), dst: server, hop: hop}
}

// mac is the MAC address under which a server knows us. It is the lease's while there is
// one, since some servers find a lease by it; the interface may have another one by then.
func (m *machine) mac() net.HardwareAddr {
	if m.lease != nil {
		return m.lease.ack.ClientHWAddr
	}
	return m.MAC
}

func (m *machine) message(kind dhcpv4.MessageType, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	p, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(m.mac()), dhcpv4.WithTransactionID(m.xid),
		dhcpv4.WithMessageType(kind), dhcpv4.WithGeneric(dhcpv4.OptionClientIdentifier, m.ID)}, more...)...)
	if err != nil {
		panic(err) // no random number for an ID that is replaced
	}
	return p
}

// receive takes a message. What is not for us, or not from the server that was asked, or no answer changes nothing.
func (m *machine) receive(now time.Duration, p *dhcpv4.DHCPv4) {
	if p.OpCode != dhcpv4.OpcodeBootReply || p.TransactionID != m.xid || !bytes.Equal(p.ClientHWAddr, m.mac()) {
		return
	}
	switch kind := p.MessageType(); {
	case kind == dhcpv4.MessageTypeOffer && m.state == selecting:
		if _, m.fault = newLease(p, now); m.fault == nil {
			m.offer = p
			m.enter(requesting, now)
		}
	case !m.asked(p):
	case kind == dhcpv4.MessageTypeAck:
		l, err := newLease(p, now)
		if m.fault = err; err == nil {
			m.lease = l
			m.enterBound()
		}
	case kind == dhcpv4.MessageTypeNak:
		m.fault, m.lease = fmt.Errorf("the server refuses the address: %q", p.Message()), nil
		m.enter(selecting, now)
		m.refused(now)
	}
}

// refused waits before it asks again: a server that refuses all there is would keep us busy.
func (c *course) refused(now time.Duration) {
	c.wake = now + min(firstPause<<min(c.naks, eager), c.flags.pauseMax)
	c.naks++
}

// asked reports whether the sender was sent our REQUEST: one server, or any.
func (m *machine) asked(p *dhcpv4.DHCPv4) bool {
	server := address(p.ServerIdentifier())
	switch m.state {
	case requesting:
		return server == address(m.offer.ServerIdentifier()) &&
			(p.MessageType() != dhcpv4.MessageTypeAck || p.YourIPAddr.Equal(m.offer.YourIPAddr))
	case renewing:
		return server == address(m.lease.ack.ServerIdentifier())
	case rebinding, rebooting:
		return true
	}
	return false
}
