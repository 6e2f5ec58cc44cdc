package dhcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// state is a state of RFC 2131, figure 5. INIT and SELECTING are one state, and so are INIT-REBOOT and REBOOTING.
type state string

const (
	selecting  state = "SELECTING"
	requesting state = "REQUESTING"
	bound      state = "BOUND"
	renewing   state = "RENEWING"
	rebinding  state = "REBINDING"
	rebooting  state = "INIT-REBOOT"
)

// identity identifies a client to servers and has the options of its messages. Records contain it.
type identity struct {
	MAC       net.HardwareAddr // interface's address in the last exchange; nil: there was no exchange
	ID        []byte           // client identifier, or the DUID for IPv6
	Broadcast bool             // ask servers to broadcast answers, because unicast would not reach the interface
	options
}

// isFirst reports whether there was no exchange yet, which means that an ADD has just begun.
func (i *identity) isFirst() bool { return i.MAC == nil }

// progress is the common part of both families' state machines, which the client also reads. Times are since boot.
type progress struct {
	flags    flags
	state    state
	lease    *lease        // nil: none
	nextTick time.Duration // when tick must be called next
	fault    error         // why the last answer was refused, no server could be contacted, or the lease was lost

	started time.Duration // beginning of the current attempt to get or renew a lease
	tries   int           // transmissions of the current message
	naks    int           // refusals since the last lease
}

// machine is the state machine of an IPv4 lease (RFC 2131, section 4.4). It has no clock and no socket: tick returns
// the packet that must be sent now, nextTick is the latest time for the next tick, and receive processes a message.
type machine struct {
	id *identity
	*progress

	xid   dhcpv4.TransactionID
	secs  uint16         // seconds since started; a REQUEST repeats the value of its DISCOVER
	offer *dhcpv4.DHCPv4 // selected offer, in state REQUESTING
}

const (
	minPause  = 250 * time.Millisecond
	maxTries  = 4  // transmissions in REQUESTING, in INIT-REBOOT and, with a lease, in SOLICITING
	fastTries = 16 // transmissions of a message with short pauses; later pauses are flags.maxPause
)

// enter changes the state. Answers to earlier messages are ignored from now on, except in REQUESTING, which continues
// the transaction of the OFFER.
func (m *machine) enter(s state, now time.Duration) {
	if s != requesting {
		if m.state != requesting && m.state != renewing { // otherwise the attempt continues
			m.started = now
		}
		m.offer = nil
		binary.BigEndian.PutUint32(m.xid[:], rand.Uint32())
	}
	m.state, m.tries, m.nextTick = s, 0, now
}

// tick advances the machine to now. It returns the packet that must be sent, or nil.
func (m *machine) tick(now time.Duration) *packet {
	if m.state == "" {
		m.enter(selecting, now)
	}
	if l := m.lease; l != nil {
		switch {
		case now >= l.expiry:
			m.lease, m.fault = nil, errExpired
			m.enter(selecting, now)
		case now >= l.rebind && (m.state == bound || m.state == renewing):
			m.enter(rebinding, now)
		case now >= l.renew && m.state == bound:
			m.enter(renewing, now)
		}
	}
	if m.state == bound || now < m.nextTick {
		return nil
	}
	switch {
	case m.state == requesting && m.tries == maxTries:
		m.enter(selecting, now)
	case m.state == rebooting && m.tries == maxTries: // no server objects, so the lease stays valid
		m.enterBound()
		return m.tick(now)
	}
	m.nextTick = now + m.pause(now)
	m.tries++
	if m.state != requesting {
		m.secs = uint16(min((now-m.started)/time.Second, 1<<16-1))
	}
	return m.packet()
}

var errExpired = errors.New("the lease has expired") // fault of a client whose lease was not renewed in time

// enterBound changes the state to BOUND until the lease must be renewed.
func (p *progress) enterBound() { p.state, p.nextTick, p.naks = bound, p.lease.renew, 0 }

// halfRemaining returns half the time until end, but at least a second unless end is earlier.
func halfRemaining(now, end time.Duration) time.Duration {
	return min(max((end-now)/2, time.Second), end-now)
}

// pause returns how long to wait for an answer: half the remaining time for renewals, otherwise a time that grows
// with each transmission and is random within 10 %.
func (p *progress) pause(now time.Duration) time.Duration {
	switch p.state {
	case renewing:
		return halfRemaining(now, p.lease.rebind)
	case rebinding:
		return halfRemaining(now, p.lease.expiry)
	}
	pause := min(minPause<<min(p.tries, fastTries), p.flags.timeout)
	if p.tries > fastTries {
		pause = p.flags.maxPause
	}
	pause = max(pause, minPause)
	return pause*9/10 + rand.N(pause/5)
}

// packet returns the message of the current state (RFC 2131, table 5).
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
		p.dst, p.nextHop = m.lease.server()
		fallthrough
	case rebinding:
		p.src = m.lease.prefix().Addr()
		more = []dhcpv4.Modifier{dhcpv4.WithClientIP(m.lease.ack.YourIPAddr)}
	}
	// A server sends unicast answers to the client's MAC address, which the interface may no longer have.
	more = append(more, dhcpv4.WithBroadcast(m.id.Broadcast || !bytes.Equal(m.clientMAC(), m.id.MAC)),
		dhcpv4.WithGeneric(dhcpv4.OptionParameterRequestList, m.id.Request),
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1500)))
	p.message = m.message(kind, more...)
	p.message.NumSeconds = m.secs
	for code, value := range m.id.Provide {
		p.message.Options[code] = value
	}
	return p
}

func (m *machine) releasePacket() *packet {
	l := m.lease
	id := m.id.ID
	if provided := m.id.Provide[dhcpv4.OptionClientIdentifier.Code()]; provided != nil {
		id = provided // a record of an older daemon can have another ID
	}
	message := m.message(dhcpv4.MessageTypeRelease, dhcpv4.WithClientIP(l.ack.YourIPAddr),
		dhcpv4.WithOptionCopied(l.ack, dhcpv4.OptionServerIdentifier),
		dhcpv4.WithGeneric(dhcpv4.OptionClientIdentifier, id))
	server, hop := l.server()
	return &packet{message: message, src: l.prefix().Addr(), dst: server, nextHop: hop}
}

// clientMAC returns the MAC address by which servers know the client. While there is a lease, it returns the lease's
// MAC address, by which some servers search. The interface's address may have changed since.
func (m *machine) clientMAC() net.HardwareAddr {
	if m.lease != nil {
		return m.lease.ack.ClientHWAddr
	}
	return m.id.MAC
}

// message returns a message with the options that every message has.
func (m *machine) message(kind dhcpv4.MessageType, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	p, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(m.clientMAC()), dhcpv4.WithTransactionID(m.xid),
		dhcpv4.WithMessageType(kind), dhcpv4.WithGeneric(dhcpv4.OptionClientIdentifier, m.id.ID)}, more...)...)
	if err != nil {
		panic(err) // only if there is no random number for the transaction ID, which is replaced
	}
	return p
}

// receive processes a message. It ignores messages for other clients, answers from a server to which no request was
// sent, and answers that do not fit the state.
func (m *machine) receive(now time.Duration, p *dhcpv4.DHCPv4) {
	if p.OpCode != dhcpv4.OpcodeBootReply || p.TransactionID != m.xid || !bytes.Equal(p.ClientHWAddr, m.clientMAC()) {
		return
	}
	switch kind := p.MessageType(); {
	case kind == dhcpv4.MessageTypeOffer && m.state == selecting:
		if _, m.fault = newLease(p, now); m.fault == nil {
			m.offer = p
			m.enter(requesting, now)
		}
	case !m.isExpected(p):
	case kind == dhcpv4.MessageTypeAck:
		l, err := newLease(p, now)
		if m.fault = err; err == nil {
			m.lease = l
			m.enterBound()
		}
	case kind == dhcpv4.MessageTypeNak:
		m.fault, m.lease = fmt.Errorf("the server refused the address: %q", p.Message()), nil
		m.enter(selecting, now)
		m.backOff(now)
	}
}

// backOff delays the next message after a refusal, so that a server that always refuses does not keep the client busy.
func (p *progress) backOff(now time.Duration) {
	p.nextTick = now + max(min(minPause<<min(p.naks, fastTries), p.flags.maxPause), minPause)
	p.naks++
}

// isExpected reports whether p comes from a server to which the current REQUEST was sent.
func (m *machine) isExpected(p *dhcpv4.DHCPv4) bool {
	server := addrOf(p.ServerIdentifier())
	switch m.state {
	case requesting:
		return server == addrOf(m.offer.ServerIdentifier()) &&
			(p.MessageType() != dhcpv4.MessageTypeAck || p.YourIPAddr.Equal(m.offer.YourIPAddr))
	case renewing:
		return server == addrOf(m.lease.ack.ServerIdentifier())
	case rebinding, rebooting:
		return true
	}
	return false
}

// clientID returns the reference plugin's client identifier, so that servers know the container with either plugin.
func clientID(a cni.Attachment) []byte {
	id := a.ContainerID + "/" + a.Network + "/" + a.IfName
	return append([]byte{0}, id[:min(len(id), 254)]...)
}
