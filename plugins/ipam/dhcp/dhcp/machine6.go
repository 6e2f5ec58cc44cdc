package dhcp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// The states that only IPv6 has.
const (
	soliciting state = "SOLICITING" // sends router solicitations: at the beginning, and before each renewal
	releasing  state = "RELEASING"  // waits for the answer to a Release
)

// machine6 is the state machine of an IPv6 lease (RFC 8415, section 18.2, and RFC 4862). Like machine, it has no
// clock and no socket. It first solicits a router advertisement. With "slaac", the advertisement provides the
// addresses; otherwise the machine then asks DHCPv6 servers.
type machine6 struct {
	id *identity
	*progress
	ra     raState
	iaid   [4]byte
	ifName string
	dns    cni.DNS // from the last advertisement

	xid           [3]byte
	offer         *message6     // in state REQUESTING: the selected server and address
	transmissions map[state]int // in each state
}

// enter changes the state. Answers to earlier messages are ignored from now on.
func (m *machine6) enter(s state, now time.Duration) {
	binary.BigEndian.PutUint16(m.xid[:], uint16(rand.Uint32()))
	m.xid[2] = byte(rand.Uint32())
	m.state, m.tries, m.nextTick, m.started = s, 0, now, now
}

// tick advances the machine to now. It reports whether the message of the current state must be sent.
func (m *machine6) tick(now time.Duration) bool {
	if m.state == "" {
		m.enter(soliciting, now)
	}
	m.expire(now)
	if l := m.lease; l != nil {
		switch {
		case m.state == bound && now >= l.renew:
			m.enter(soliciting, now)
		case m.state == renewing && now >= l.rebind:
			m.enter(rebinding, now)
		}
	}
	if now < m.nextTick {
		return false
	}
	switch {
	case m.state == soliciting && m.lease != nil && m.tries == maxTries: // the last advertisement stays valid
		m.ra.Refresh = now + halfRemaining(now, m.lease.expiry)
		m.finishSoliciting(now)
		return m.tick(now)
	case m.state == requesting && m.tries == maxTries:
		m.enter(selecting, now)
	}
	m.nextTick = now + m.pause(now)
	m.tries++
	if m.transmissions == nil {
		m.transmissions = map[state]int{}
	}
	m.transmissions[m.state]++
	return true
}

// expire removes the addresses whose valid lifetime has ended.
func (m *machine6) expire(now time.Duration) {
	if m.lease == nil {
		return
	}
	l := *m.lease.v6
	l.Addrs = slices.DeleteFunc(slices.Clone(l.Addrs), func(a addr6) bool { return now >= a.Until })
	if len(l.Addrs) == len(m.lease.v6.Addrs) {
		return
	}
	m.lease = newLease6(l, m.lease.since)
	switch {
	case m.lease == nil:
		m.fault = errExpired
		m.enter(soliciting, now)
	case m.state == bound:
		m.enterBound() // nextTick was the end of the removed address
	}
}

// finishSoliciting ends SOLICITING. It continues with DHCPv6, or with the lease and the router's new configuration.
func (m *machine6) finishSoliciting(now time.Duration) {
	if m.lease == nil { // only with DHCPv6
		m.enter(selecting, now)
		return
	}
	l := *m.lease.v6
	l.raState = m.ra
	m.lease = newLease6(l, m.lease.since)
	if l.Server != nil && now >= l.Renew {
		m.enter(renewing, now) // tick changes it to rebinding if necessary
		return
	}
	m.enterBound()
}

// message returns the DHCPv6 message of the current state.
func (m *machine6) message(now time.Duration) *message6 {
	m6 := &message6{kind: solicit, xid: m.xid, client: m.id.ID, iaid: m.iaid, elapsed: now - m.started, dns: m.id.DNS}
	switch m.state {
	case requesting:
		m6.kind, m6.server, m6.addr = request6, m.offer.server, m.offer.addr
	case renewing:
		m6.kind, m6.server, m6.addr = renew6, m.lease.v6.Server, m.lease.v6.Addrs[0].Prefix.Addr()
	case releasing:
		m6.kind, m6.server, m6.addr = release6, m.lease.v6.Server, m.lease.v6.Addrs[0].Prefix.Addr()
		m6.dns = false
	case rebinding:
		m6.kind, m6.addr = rebind6, m.lease.v6.Addrs[0].Prefix.Addr()
	}
	return m6
}

// receiveAdvert processes a router advertisement. It prefers a default router, which must be the lease's router if
// there is a lease. It accepts other routers only after three solicitations.
func (m *machine6) receiveAdvert(now time.Duration, a *advert) {
	const patience = 3
	isPreferred := a.isDefault && (m.lease == nil || a.router == m.ra.Router)
	if m.state != soliciting || !isPreferred && m.tries < patience {
		return
	}
	ra := raState{LinkLocal: m.ra.LinkLocal, Router: a.router, IsDefault: a.isDefault,
		Refresh: now + max(a.minLifetime/2, time.Second)}
	for _, p := range a.prefixes {
		if p.onLink && p.valid > 0 && !slices.Contains(ra.OnLink, p.Prefix) {
			ra.OnLink = append(ra.OnLink, p.Prefix)
		}
	}
	dns := cni.DNS{Search: a.search}
	for _, ip := range a.nameservers {
		if ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(m.ifName)
		}
		dns.Nameservers = append(dns.Nameservers, ip.String())
	}
	if m.id.IPv6 == modeDHCP {
		m.ra, m.dns, m.fault = ra, dns, nil
		m.finishSoliciting(now)
		return
	}
	l := lease6{raState: ra, Addrs: m.slaacAddrs(now, a), DNS: dns}
	next := newLease6(l, now)
	if next == nil {
		m.fault = fmt.Errorf("router %s advertises no autonomous prefix of 64 bits", a.router)
		return
	}
	m.ra, m.lease, m.fault = ra, next, nil
	m.enterBound()
}

// slaacAddrs returns the lease's addresses, updated with the autonomous prefixes of an advertisement (RFC 4862,
// section 5.5.3). Addresses of prefixes that are no longer advertised stay until their lifetime ends. An
// advertisement cannot reduce a remaining lifetime below two hours.
func (m *machine6) slaacAddrs(now time.Duration, a *advert) (addrs []addr6) {
	const maxAddrs = 16 // default of the sysctl max_addresses; any host on the link can advertise prefixes
	if m.lease != nil {
		addrs = slices.Clone(m.lease.v6.Addrs)
	}
	id := m.ra.LinkLocal.As16()
	for _, p := range a.prefixes {
		if !p.autonomous || p.Bits() != 64 {
			continue
		}
		bytes16 := p.Addr().As16()
		copy(bytes16[8:], id[8:])
		addr := netip.AddrFrom16(bytes16)
		bits := 128
		if p.onLink {
			bits = 64
		}
		i := slices.IndexFunc(addrs, func(a addr6) bool { return a.Prefix.Addr() == addr })
		switch {
		case i >= 0:
			addrs[i].Until = max(now+p.valid, min(addrs[i].Until, now+maxAdvertTime))
		case p.preferred > 0 && len(addrs) < maxAddrs:
			addrs = append(addrs, addr6{netip.PrefixFrom(addr, bits), now + p.valid})
		}
	}
	return addrs
}

// receive processes a DHCPv6 message. It ignores messages for other clients, answers from a server to which no request
// was sent, and answers that do not fit the state.
func (m *machine6) receive(now time.Duration, p *message6) {
	if p.xid != m.xid || !bytes.Equal(p.client, m.id.ID) || len(p.server) == 0 {
		return
	}
	if m.state == selecting && p.kind == advertise {
		if m.fault = p.rejection(); m.fault == nil {
			m.enter(requesting, now)
			m.offer = p
		}
		return
	}
	isExpected := m.state == rebinding || m.state == requesting && bytes.Equal(p.server, m.offer.server) ||
		(m.state == renewing || m.state == releasing) && bytes.Equal(p.server, m.lease.v6.Server)
	if p.kind != reply6 || !isExpected {
		return
	}
	if m.state == releasing { // the lease ends with any status
		m.state = ""
		return
	}
	m.fault = p.rejection()
	switch {
	case m.fault == nil:
		m.acceptReply(now, p)
	case m.state == requesting:
		m.enter(selecting, now)
		m.backOff(now)
	case p.code == noBinding: // the server has lost the lease; request the same address again
		m.enter(requesting, now)
		m.offer = &message6{server: p.server, addr: m.lease.v6.Addrs[0].Prefix.Addr()}
	}
}

// rejection returns why an answer cannot be used, or nil if it can.
func (m *message6) rejection() error {
	switch {
	case m.status != nil:
		return m.status
	case !m.addr.IsValid():
		return errors.New("the DHCPv6 server's answer has no usable address")
	case m.t2 > 0 && m.t1 > m.t2:
		return fmt.Errorf("the DHCPv6 server's T1, %s, is after its T2, %s", m.t1, m.t2)
	}
	return nil
}

// acceptReply sets the lease to the address of a Reply.
func (m *machine6) acceptReply(now time.Duration, p *message6) {
	t1, t2 := p.t1, p.t2
	if t2 <= 0 || t2 > p.valid {
		t2 = cmp.Or(p.preferred, p.valid) / 5 * 4
	}
	if t1 <= 0 || t1 > t2 {
		t1 = cmp.Or(min(p.preferred/2, t2), t2/2)
	}
	l := lease6{raState: m.ra, Server: p.server, Renew: now + t1, Rebind: now + t2,
		Addrs: []addr6{{netip.PrefixFrom(p.addr, 128), now + p.valid}}, DNS: cni.DNS{Search: p.search}}
	for _, ip := range p.nameservers {
		l.DNS.Nameservers = append(l.DNS.Nameservers, ip.String())
	}
	l.DNS = mergeDNS(l.DNS, m.dns)
	l.Refresh = max(l.Refresh, now) // it may have become due before the servers answered
	m.lease = newLease6(l, now)
	m.enterBound()
}

// duidOf returns the DHCP unique identifier of a container (RFC 6355). It does not depend on MAC addresses.
func duidOf(a cni.Attachment) []byte {
	return append([]byte{0, 4}, hexBytes(cni.Digest(a.ContainerID, 32))...)
}

// iaidOf returns the IAID of an attachment, which differs for each interface of a container.
func iaidOf(a cni.Attachment) [4]byte { return [4]byte(hexBytes(a.Hash()[:8])) }

func hexBytes(hash string) []byte {
	b, err := hex.DecodeString(hash)
	if err != nil {
		panic(err) // it is hexadecimal
	}
	return b
}
