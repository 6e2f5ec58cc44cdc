package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Packet describes the packets of a network or a container in one direction.
type Packet struct {
	Links       []Link       // the host's interfaces to the containers; nil = unknown
	Uplink      Link         // the host's interface on the other side; its name is empty if it is unknown
	Inner       []Link       // interfaces that are not on the other side: lo and other networks' bridges
	Range       netip.Prefix // contains the containers' addresses
	ToContainer bool
	IsAnswer    bool   // belongs to a connection that exists
	IsForwarded bool   // the host has translated its destination, a host port
	Mark        uint32 // bits of the fwmark that firewall sets (see IsMarked); the other bits are unknown
	IsAccepted  bool   // the plugin firewall accepts the packets in CNIForward
}

// Link is an interface of the host.
type Link struct {
	Name  string
	Index int // 0 = unknown
}

// match is the share of the packets that a rule applies to.
type match int

const (
	never    match = iota
	onlyICMP       // at most to ICMP, not to connections of TCP and UDP
	unknown        // it depends on facts that are not evaluated
	usually        // to the packets of an ordinary connection through the uplink
	always
)

func (m match) invert() match {
	switch m {
	case never:
		return always
	case always:
		return never
	}
	return unknown
}

func matchIf(ok bool) match {
	if ok {
		return always
	}
	return never
}

// field is a field of a packet.
type field int

const (
	otherField field = iota
	inLink
	outLink
	source
	destination
	family   // as in AF_INET
	protocol // as in IPPROTO_TCP
	fwmark   // of the packet
	ctState  // of its connection; with the bits of ctTranslated for iptables
	ctStatus // of its connection
)

// condition compares a field of a packet with values. It is true if the field has one of them.
type condition struct {
	field      field
	isInverted bool // it is true if the field has none of the values
	values     []value
}

// value is a value of a field; only the members for the field's type are set.
type value struct {
	link         string     // the name of an interface, or the beginning of one and "*"
	number, mask uint32     // the index of an interface, or the masked bits of another field
	first, last  netip.Addr // a range of addresses
}

// Bits of ctState and ctStatus.
const (
	ctEstablished = 1 << 1
	ctNew         = 1 << 3
	ctTranslated  = 3 << 30 // the match conntrack of iptables: source or destination
	ctDNAT        = 1 << 31
	statusDNAT    = 1 << 5 // IPS_DST_NAT
)

// match reports how many of the packets meet the condition. A condition about the state of connections is never always
// met, because a connection has several states.
func (c condition) match(p *Packet) match {
	switch c.field {
	case inLink, outLink:
		return c.matchLink(p, (c.field == inLink) != p.ToContainer)
	case source, destination:
		return c.matchAddr(p, (c.field == source) != p.ToContainer)
	case family:
		if p.Range.Addr().Is4() {
			return c.matchNumber(unix.AF_INET, 0)
		}
		return c.matchNumber(unix.AF_INET6, 0)
	case protocol:
		return c.matchProtocol()
	case fwmark:
		return c.matchNumber(p.Mark, ^p.Mark)
	case ctState:
		state, unsure := uint32(ctNew), uint32(ctTranslated)
		if p.IsAnswer {
			state = ctEstablished
		}
		if p.IsForwarded {
			state, unsure = state|ctDNAT, unsure&^ctDNAT
		}
		return min(c.matchNumber(state, unsure), usually)
	case ctStatus:
		if p.IsForwarded {
			return min(c.matchNumber(statusDNAT, ^uint32(statusDNAT)), usually)
		}
	}
	return unknown
}

// matchNumber compares a field that has the bits of known, and perhaps some of the bits of unsure.
func (c condition) matchNumber(known, unsure uint32) match {
	m := never
	for _, v := range c.values {
		switch {
		case (known^v.number)&v.mask&^unsure != 0:
		case v.mask&unsure == 0:
			m = always
		default:
			m = max(m, unknown)
		}
	}
	if c.isInverted {
		return m.invert()
	}
	return m
}

// matchProtocol matches the packets of TCP and UDP, of which an ordinary connection consists.
func (c condition) matchProtocol() match {
	isOther := func(v value) bool { return v.number != unix.IPPROTO_ICMP && v.number != unix.IPPROTO_ICMPV6 }
	switch {
	case slices.ContainsFunc(c.values, isOther):
		return unknown
	case c.isInverted:
		return usually
	}
	return onlyICMP
}

// matchLink matches the interface to the containers, or the one on the other side.
func (c condition) matchLink(p *Packet, isOwn bool) match {
	if !isOwn {
		isInner := func(v value) bool { return slices.ContainsFunc(slices.Concat(p.Inner, p.Links), v.names) }
		isOther := func(v value) bool { return !isInner(v) }
		switch {
		case slices.ContainsFunc(c.values, func(v value) bool { return v.names(p.Uplink) }) != c.isInverted:
			return usually
		case !c.isInverted && !slices.ContainsFunc(c.values, isOther):
			return never
		}
		return unknown
	}
	named := 0
	for _, l := range p.Links {
		if slices.ContainsFunc(c.values, func(v value) bool { return v.names(l) }) {
			named++
		}
	}
	switch {
	case p.Links == nil || named > 0 && named < len(p.Links):
		return unknown
	case c.isInverted:
		return matchIf(named == 0)
	}
	return matchIf(named > 0)
}

func (v value) names(l Link) bool {
	begin, isMore := strings.CutSuffix(v.link, "*")
	isNamed := v.link != "" && (l.Name == v.link || isMore && strings.HasPrefix(l.Name, begin))
	return l.Name != "" && (isNamed || v.link == "" && l.Index != 0 && v.number == uint32(l.Index))
}

// matchAddr matches the addresses of the containers, or those on the other side.
func (c condition) matchAddr(p *Packet, isOwn bool) match {
	first, last := p.Range.Masked().Addr(), cni.LastOf(p.Range)
	is := func(test func(value) bool) bool { return slices.ContainsFunc(c.values, test) }
	isOtherFamily := func(v value) bool { return v.first.Is4() != first.Is4() }
	isAll := func(v value) bool { return v.first.IsUnspecified() && v.last == lastOf(first, 0) }
	contains := func(v value) bool { return v.first.Compare(first) <= 0 && last.Compare(v.last) <= 0 }
	overlaps := func(v value) bool { return v.first.Compare(last) <= 0 && first.Compare(v.last) <= 0 }
	m := unknown
	switch {
	case is(isOtherFamily):
		return never
	case is(isAll), isOwn && is(contains):
		m = always
	case isOwn && !is(overlaps), len(c.values) == 0:
		m = never
	case !isOwn && c.isInverted: // the networks of such rules are local
		return usually
	}
	if c.isInverted {
		return m.invert()
	}
	return m
}

// match reports how many of the packets the rule applies to.
func (r *RuleSummary) match(p *Packet) match {
	m := always
	for _, c := range r.conditions {
		m = min(m, c.match(p))
	}
	return m
}

// IsUnconditional reports whether the rule applies to every packet.
func (r *RuleSummary) IsUnconditional() bool { return len(r.conditions) == 0 }

// DropsTo reports whether the rule drops packets to a network.
func (r *RuleSummary) DropsTo(network netip.Prefix) bool {
	return r.Drops && slices.ContainsFunc(r.conditions, func(c condition) bool {
		return c.field == destination && !c.isInverted &&
			slices.Contains(c.values, value{first: network.Addr(), last: cni.LastOf(network)})
	})
}

// Decision is what a base chain does with packets.
type Decision struct {
	Drops     bool         // it drops them
	Rule      *RuleSummary // the rule that drops them; nil = the policy
	IsCertain bool         // no earlier rule may accept packets of TCP or UDP
	PassICMP  bool         // an earlier rule may accept ICMP
}

// Decide evaluates the rules of the chain, and of the chains to which they jump, for packets. Packets of ordinary
// connections must be accepted, and all packets must be dropped, for a decision.
func (b *BaseChain) Decide(p *Packet) Decision {
	seen := *p
	if !b.IsMarked() {
		seen.Mark = 0
	}
	accepted, rule := b.decide(b.Name, &seen)
	isDropped := accepted < usually && (rule != nil || b.Drops)
	return Decision{isDropped, rule, accepted <= onlyICMP, accepted == onlyICMP}
}

// IsMarked reports whether firewall, whose chain has priority -1, has marked the packets that it accepts before they
// pass this chain.
func (b *BaseChain) IsMarked() bool { return b.Hook == "forward" && b.Priority >= 0 }

// decide evaluates the rules of one chain. It returns the share of packets that they accept, and the rule that drops
// the others, or nil. If some packets may leave the chain before that rule, the share is at least unknown.
func (b *BaseChain) decide(chain string, p *Packet) (accepted match, dropping *RuleSummary) {
	if b.isPartial && chain != b.Name {
		return unknown, nil
	}
	left := never
	for i := range b.Rules {
		r := &b.Rules[i]
		m := r.match(p)
		if r.Chain != chain || m == never {
			continue
		}
		switch {
		case r.Accepts, r.Target == CNIForward && p.IsAccepted:
			accepted = max(accepted, m)
		case r.Drops && m == always:
			return max(accepted, left), r
		case r.Target != "":
			inner, rule := b.decide(r.Target, p)
			accepted = max(accepted, min(inner, m))
			if rule != nil && m == always {
				return max(accepted, left), rule
			}
		}
		if accepted >= usually || r.Returns && m >= usually {
			return accepted, nil
		}
		if r.Returns {
			left = m
		}
	}
	return accepted, nil
}

// Obstacle returns whether and why the chain drops packets. It returns "" if the chain lets all of them pass.
func (b *BaseChain) Obstacle(packets []*Packet) (verdict, why string) {
	for _, p := range packets {
		d := b.Decide(p)
		if !d.Drops || verdict != "" && !d.IsCertain {
			continue
		}
		why = b.Explain(d)
		if verdict = MayStopIt; d.IsCertain {
			return StopsIt, why
		}
	}
	return verdict, why
}

// Explain returns the reason of a decision to drop packets.
func (b *BaseChain) Explain(d Decision) string {
	r := d.Rule
	switch {
	case r == nil && b.Count == 0:
		return "its policy is drop, and it has no rules"
	case r == nil && d.PassICMP:
		return "its policy is drop, and its rules accept only ICMP"
	case r == nil && d.IsCertain:
		return "its policy is drop, and none of its rules accepts the packet"
	case r == nil:
		return "its policy is drop, unless one of its rules accepts the packet"
	case r.Chain != b.Name:
		return fmt.Sprintf("rule %d of its chain %s drops packets of this interface or network", r.Number,
			r.Chain)
	case !r.IsUnconditional():
		return fmt.Sprintf("its rule %d drops packets of this interface or network", r.Number)
	case r.Number == 1:
		return "its first rule drops every packet"
	}
	return fmt.Sprintf("its rule %d drops every packet that no earlier rule accepts", r.Number)
}
