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

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// soliciting is the state of a client that asks routers: before all else, and before each renewal.
const soliciting state = "SOLICITING"

// releasing is the state of a client that gives its lease back.
const releasing state = "RELEASING"

// The ways to an IPv6 address, as the key ipv6 has them.
const (
	byDHCP  = "dhcp"
	bySLAAC = "slaac"
)

// lease6 is a lease of IPv6: what a router advertised, and the addresses. Times are since boot.
type lease6 struct {
	heard
	Addrs  []addr6       `json:"addrs"`
	Server []byte        `json:"server,omitempty"` // DUID of who lent the address; none: it is of the router's prefix
	Renew  time.Duration `json:"renew,omitempty"`
	Rebind time.Duration `json:"rebind,omitempty"`
	DNS    cni.DNS       `json:"dns"`
}

// heard is what the last advertisement said, and who heard it.
type heard struct {
	Own       netip.Addr     `json:"own"` // the link-local address, whose lower half all addresses have
	Router    netip.Addr     `json:"router"`
	IsDefault bool           `json:"default"`
	OnLink    []netip.Prefix `json:"onLink,omitempty"`
	Refresh   time.Duration  `json:"refresh"` // when the router is asked again
}

type addr6 struct {
	Prefix netip.Prefix  `json:"prefix"`
	Until  time.Duration `json:"until"`
}

// newLease6 makes a lease, whose addresses decide when it ends. nil: it has none.
func newLease6(l lease6, since time.Duration) *lease {
	if len(l.Addrs) == 0 || !l.Router.IsValid() || !l.Own.IsLinkLocalUnicast() {
		return nil
	}
	out := &lease{six: &l, since: since, renew: l.Refresh}
	for _, a := range l.Addrs {
		if !isHost6(a.Prefix.Addr()) {
			return nil
		}
		out.expiry = max(out.expiry, a.Until)
		out.renew = min(out.renew, a.Until)
	}
	out.rebind = out.expiry
	if l.Server != nil {
		out.renew, out.rebind = min(out.renew, l.Renew), l.Rebind
	}
	return out
}

// result returns the lease as the plugin gets it.
func (l *lease6) result(o options) *cni.Result {
	res := &cni.Result{}
	subnets := []netip.Prefix{}
	for _, a := range l.Addrs {
		ip := cni.IP{Address: a.Prefix}
		if l.IsDefault {
			ip.Gateway = l.Router
		}
		res.IPs, subnets = append(res.IPs, ip), append(subnets, a.Prefix.Masked())
	}
	for _, p := range l.OnLink {
		if !slices.Contains(subnets, p) { // to which the kernel makes a route
			res.Routes = append(res.Routes, cni.Route{Dst: p, Scope: new(unix.RT_SCOPE_LINK), Priority: o.Priority})
		}
	}
	if l.IsDefault {
		all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		res.Routes = append(res.Routes, cni.Route{Dst: all, GW: l.Router, Priority: o.Priority})
	}
	if o.DNS {
		res.DNS = l.DNS
	}
	return res
}

// machine6 is the state machine of a lease of IPv6 (RFC 8415, section 18.2, and RFC 4862), without clock and socket, as
// machine is that of IPv4's. A router is asked first; with "slaac" nobody else is.
type machine6 struct {
	*identity
	*course
	heard
	iaid   [4]byte
	ifName string
	dns    cni.DNS // of the last advertisement

	xid   [3]byte
	offer *message6 // of REQUESTING: whom to ask, for which address
	asked map[state]int
}

// enter begins a state. Answers to earlier messages are ignored from now on.
func (m *machine6) enter(s state, now time.Duration) {
	binary.BigEndian.PutUint16(m.xid[:], uint16(rand.Uint32()))
	m.xid[2] = byte(rand.Uint32())
	m.state, m.tries, m.wake, m.began = s, 0, now, now
}

// tick lets time pass, and reports whether something is to be sent.
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
	if now < m.wake {
		return false
	}
	switch {
	case m.state == soliciting && m.lease != nil && m.tries == lastTry: // what it said is true until its end
		m.Refresh = now + half(now, m.lease.expiry)
		m.proceed(now)
		return m.tick(now)
	case m.state == requesting && m.tries == lastTry:
		m.enter(selecting, now)
	}
	m.wake = now + m.pause(now)
	m.tries++
	if m.asked == nil {
		m.asked = map[state]int{}
	}
	m.asked[m.state]++
	return true
}

// expire drops the addresses whose time is over.
func (m *machine6) expire(now time.Duration) {
	if m.lease == nil {
		return
	}
	l := *m.lease.six
	l.Addrs = slices.DeleteFunc(slices.Clone(l.Addrs), func(a addr6) bool { return now >= a.Until })
	if len(l.Addrs) == len(m.lease.six.Addrs) {
		return
	}
	m.lease = newLease6(l, m.lease.since)
	switch {
	case m.lease == nil:
		m.fault = errors.New("its time is over")
		m.enter(soliciting, now)
	case m.state == bound:
		m.enterBound() // it was to wake for the address
	}
}

// proceed goes on when the router has been asked.
func (m *machine6) proceed(now time.Duration) {
	if m.lease == nil { // with DHCPv6
		m.enter(selecting, now)
		return
	}
	l := *m.lease.six
	l.heard = m.heard
	m.lease = newLease6(l, m.lease.since)
	switch {
	case l.Server == nil || now < l.Renew:
		m.enterBound()
	default:
		m.enter(renewing, now) // or rebinding, as tick sees
	}
}

// message makes the DHCPv6 message of the state.
func (m *machine6) message(now time.Duration) *message6 {
	out := &message6{kind: solicit, xid: m.xid, client: m.ID, iaid: m.iaid, elapsed: now - m.began, dns: m.DNS}
	switch m.state {
	case requesting:
		out.kind, out.server, out.addr = request6, m.offer.server, m.offer.addr
	case renewing:
		out.kind, out.server, out.addr = renew6, m.lease.six.Server, m.lease.six.Addrs[0].Prefix.Addr()
	case releasing:
		out.kind, out.server, out.addr = release6, m.lease.six.Server, m.lease.six.Addrs[0].Prefix.Addr()
		out.dns = false
	case rebinding:
		out.kind, out.addr = rebind6, m.lease.six.Addrs[0].Prefix.Addr()
	}
	return out
}

// advertised takes an advertisement. One of another router than the last time, or of one that is no default router,
// counts when the right one has not answered for a while.
func (m *machine6) advertised(now time.Duration, a *advert) {
	const patience = 3
	isRight := a.isDefault && (m.lease == nil || a.router == m.Router)
	if m.state != soliciting || !isRight && m.tries < patience {
		return
	}
	net := heard{Own: m.Own, Router: a.router, IsDefault: a.isDefault, Refresh: now + max(a.shortest/2, time.Second)}
	for _, p := range a.prefixes {
		if p.onLink && p.valid > 0 && !slices.Contains(net.OnLink, p.Prefix) {
			net.OnLink = append(net.OnLink, p.Prefix)
		}
	}
	dns := cni.DNS{Search: a.search}
	for _, ip := range a.nameservers {
		if ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(m.ifName)
		}
		dns.Nameservers = append(dns.Nameservers, ip.String())
	}
	if m.IPv6 == byDHCP {
		m.heard, m.dns, m.fault = net, dns, nil
		m.proceed(now)
		return
	}
	l := lease6{heard: net, Addrs: m.formed(now, a), DNS: dns}
	lent := newLease6(l, now)
	if lent == nil {
		m.fault = fmt.Errorf("router %s advertises no prefix of 64 bits to form addresses of", a.router)
		return
	}
	m.heard, m.lease, m.fault = net, lent, nil
	m.enterBound()
}

// formed are the addresses of the autonomous prefixes (RFC 4862, section 5.5.3). Those of prefixes that are not
// advertised any more last until their end, and nobody shortens what is left to less than two hours.
func (m *machine6) formed(now time.Duration, a *advert) (addrs []addr6) {
	const most = 16 // as the kernel (max_addresses): whoever is on the link can advertise prefixes without end
	if m.lease != nil {
		addrs = slices.Clone(m.lease.six.Addrs)
	}
	id := m.Own.As16()
	for _, p := range a.prefixes {
		if !p.autonomous || p.Bits() != 64 {
			continue
		}
		whole := p.Addr().As16()
		copy(whole[8:], id[8:])
		addr := netip.AddrFrom16(whole)
		bits := 128
		if p.onLink {
			bits = 64
		}
		at := slices.IndexFunc(addrs, func(a addr6) bool { return a.Prefix.Addr() == addr })
		switch {
		case at >= 0:
			addrs[at].Until = max(now+p.valid, min(addrs[at].Until, now+advertMax))
		case p.preferred > 0 && len(addrs) < most:
			addrs = append(addrs, addr6{netip.PrefixFrom(addr, bits), now + p.valid})
		}
	}
	return addrs
}

// receive takes an answer. What is not for us, or not from the server that was asked, or no answer changes nothing.
func (m *machine6) receive(now time.Duration, p *message6) {
	if p.xid != m.xid || !bytes.Equal(p.client, m.ID) || len(p.server) == 0 {
		return
	}
	if m.state == selecting && p.kind == advertise {
		if m.fault = p.refusal(); m.fault == nil {
			m.enter(requesting, now)
			m.offer = p
		}
		return
	}
	isAsked := m.state == rebinding || m.state == requesting && bytes.Equal(p.server, m.offer.server) ||
		(m.state == renewing || m.state == releasing) && bytes.Equal(p.server, m.lease.six.Server)
	if p.kind != reply6 || !isAsked {
		return
	}
	if m.state == releasing { // whatever the server says
		m.state = ""
		return
	}
	m.fault = p.refusal()
	switch {
	case m.fault == nil:
		m.lent(now, p)
	case m.state == requesting:
		m.enter(selecting, now)
		m.refused(now)
	case p.code == noBinding: // the server has lost it, and may lend it again
		m.enter(requesting, now)
		m.offer = &message6{server: p.server, addr: m.lease.six.Addrs[0].Prefix.Addr()}
	}
}

// refusal is why an answer is of no use.
func (m *message6) refusal() error {
	switch {
	case m.status != nil:
		return m.status
	case !m.addr.IsValid():
		return errors.New("the DHCPv6 server answers without an address that can be used")
	case m.t2 > 0 && m.t1 > m.t2:
		return fmt.Errorf("the DHCPv6 server's T1, %s, is after its T2, %s", m.t1, m.t2)
	}
	return nil
}

// lent takes the address of a Reply.
func (m *machine6) lent(now time.Duration, p *message6) {
	t1, t2 := p.t1, p.t2
	if t2 <= 0 || t2 > p.valid {
		t2 = cmp.Or(p.preferred, p.valid) / 5 * 4
	}
	if t1 <= 0 || t1 > t2 {
		t1 = cmp.Or(min(p.preferred/2, t2), t2/2)
	}
	l := lease6{heard: m.heard, Server: p.server, Renew: now + t1, Rebind: now + t2,
		Addrs: []addr6{{netip.PrefixFrom(p.addr, 128), now + p.valid}}, DNS: cni.DNS{Search: p.search}}
	for _, ip := range p.nameservers {
		l.DNS.Nameservers = append(l.DNS.Nameservers, ip.String())
	}
	l.DNS = joinDNS(l.DNS, m.dns)
	l.Refresh = max(l.Refresh, now) // servers may have been silent for longer
	m.lease = newLease6(l, now)
	m.enterBound()
}

// joinDNS adds to resolver settings those that they do not have yet.
func joinDNS(a, b cni.DNS) cni.DNS {
	add := func(to, from []string) []string {
		for _, s := range from {
			if !slices.Contains(to, s) {
				to = append(to, s)
			}
		}
		return to
	}
	a.Nameservers, a.Search = add(a.Nameservers, b.Nameservers), add(a.Search, b.Search)
	a.Domain = cmp.Or(a.Domain, b.Domain)
	return a
}

// duid is the DHCP unique identifier of a container (RFC 6355), whatever becomes of its MAC addresses.
func duid(a cni.Attachment) []byte {
	return append([]byte{0, 4}, octets(cni.Digest(a.ContainerID, 32))...)
}

// iaidOf tells the interfaces of a container apart.
func iaidOf(a cni.Attachment) [4]byte { return [4]byte(octets(a.Hash()[:8])) }

// octets are those of a hash.
func octets(hash string) []byte {
	b, err := hex.DecodeString(hash)
	if err != nil {
		panic(err) // it is hexadecimal
	}
	return b
}
