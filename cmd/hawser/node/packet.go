package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// Packet describes the packets of a network or a container in one direction.
type Packet struct {
	Links       []rtnl.Link  // the host's interfaces to the containers; nil = unknown; Index 0 = not yet created
	Uplink      rtnl.Link    // the host's interface on the other side; its name is empty if it is unknown
	Inner       []rtnl.Link  // interfaces to neither side: lo and other networks' bridges
	Range       netip.Prefix // contains the containers' addresses
	ToContainer bool
	IsAnswer    bool   // belongs to a connection that exists
	IsForwarded bool   // the host has translated its destination, a host port
	Mark        uint32 // bits of the fwmark that firewall sets (see IsMarked); the other bits are unknown
	IsAccepted  bool   // the plugin firewall accepts the packets in CNIForward
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
	ctState  // of its connection; with the bits of ctTranslated in iptables' rules
	ctStatus // of its connection
)

// condition is true if a field of a packet has one of the values.
type condition struct {
	field      field
	isInverted bool // the condition is true if the field has none of the values
	values     []value
}

// value is a value of a field; only the members for the field's type are set.
type value struct {
	link         string     // the name of an interface, or a prefix and "*"
	number, mask uint32     // the index of an interface, or the masked bits of another field
	first, last  netip.Addr // a range of addresses
}

// Bits of ctState and ctStatus.
const (
	ctEstablished = 1 << 1
	ctNew         = 1 << 3
	ctTranslated  = 3 << 30 // SNAT and DNAT, which only iptables treats as states, in bits that nftables does not use
	ctDNAT        = 1 << 31 // the DNAT bit of ctTranslated
	statusDNAT    = 1 << 5  // IPS_DST_NAT
)

// match returns the share of the packets that meet the condition. For a condition about the state of connections, the
// share is at most usually, because a connection has several states.
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
		state, unknownBits := uint32(ctNew), uint32(ctTranslated)
		if p.IsAnswer {
			state = ctEstablished
		}
		if p.IsForwarded {
			state, unknownBits = state|ctDNAT, unknownBits&^ctDNAT
		}
		return min(c.matchNumber(state, unknownBits), usually)
	case ctStatus:
		if p.IsForwarded {
			return min(c.matchNumber(statusDNAT, ^uint32(statusDNAT)), usually)
		}
	}
	return unknown
}

// matchNumber compares a field with the condition. The field is number, whose bits in unknownBits may have any value.
func (c condition) matchNumber(number, unknownBits uint32) match {
	m := never
	for _, v := range c.values {
		switch {
		case (number^v.number)&v.mask&^unknownBits != 0:
		case v.mask&unknownBits == 0:
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

// matchLink matches the interfaces to the containers or, if isOwn is false, the interface on the other side.
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
	count := 0
	for _, l := range p.Links {
		if slices.ContainsFunc(c.values, func(v value) bool { return v.names(l) }) {
			count++
		}
	}
	switch {
	case p.Links == nil || count > 0 && count < len(p.Links):
		return unknown
	case (count > 0) == c.isInverted:
		return never
	}
	return always
}

func (v value) names(l rtnl.Link) bool {
	prefix, isPattern := strings.CutSuffix(v.link, "*")
	isNamed := v.link != "" && (l.Name == v.link || isPattern && strings.HasPrefix(l.Name, prefix))
	return l.Name != "" && (isNamed || v.link == "" && l.Index != 0 && v.number == uint32(l.Index))
}

// matchAddr matches the addresses of the containers or, if isOwn is false, the addresses on the other side.
func (c condition) matchAddr(p *Packet, isOwn bool) match {
	first, last := p.Range.Masked().Addr(), cni.LastOf(p.Range)
	anyValue := func(test func(value) bool) bool { return slices.ContainsFunc(c.values, test) }
	isOtherFamily := func(v value) bool { return v.first.Is4() != first.Is4() }
	isAll := func(v value) bool { return v.first.IsUnspecified() && v.last == lastOf(first, 0) }
	contains := func(v value) bool { return v.first.Compare(first) <= 0 && last.Compare(v.last) <= 0 }
	overlaps := func(v value) bool { return v.first.Compare(last) <= 0 && first.Compare(v.last) <= 0 }
	m := unknown
	switch {
	case anyValue(isOtherFamily):
		return never
	case anyValue(isAll), isOwn && anyValue(contains):
		m = always
	case isOwn && !anyValue(overlaps), len(c.values) == 0:
		m = never
	case !isOwn && c.isInverted: // the excepted networks are usually local
		return usually
	}
	if c.isInverted {
		return m.invert()
	}
	return m
}

func (r *RuleSummary) match(p *Packet) match {
	m := always
	for _, c := range r.conditions {
		m = min(m, c.match(p))
	}
	return m
}

// IsUnconditional reports whether the rule matches all packets.
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
	IsCertain bool         // it is certain that no earlier rule accepts packets of TCP or UDP
	PassICMP  bool         // it is possible that an earlier rule accepts ICMP
}

// Decide evaluates the rules of the chain, and of the chains to which they jump, for packets. The decision is to drop
// them if no rule accepts ordinary connections, and a rule or the policy drops all other packets.
func (b *BaseChain) Decide(p *Packet) Decision {
	packet := *p
	if !b.IsMarked() {
		packet.Mark = 0
	}
	accepted, rule := b.decide(b.Name, &packet)
	isDropped := accepted < usually && (rule != nil || b.Drops)
	return Decision{isDropped, rule, accepted <= onlyICMP, accepted == onlyICMP}
}

// IsMarked reports whether firewall, whose chain has priority -1, has marked the packets that it accepts before they
// pass this chain.
func (b *BaseChain) IsMarked() bool { return b.Hook == "forward" && b.Priority >= 0 }

// decide evaluates the rules of one chain. It returns the share of packets that they accept, and the rule that drops
// all others, or nil. If there is such a rule, the share also includes packets that may return before it.
func (b *BaseChain) decide(chain string, p *Packet) (accepted match, dropRule *RuleSummary) {
	if b.isPartial && chain != b.Name {
		return unknown, nil
	}
	returned := never
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
			return max(accepted, returned), r
		case r.Target != "":
			inner, rule := b.decide(r.Target, p)
			accepted = max(accepted, min(inner, m))
			if rule != nil && m == always {
				return max(accepted, returned), rule
			}
		}
		if accepted >= usually || r.Returns && m >= usually {
			return accepted, nil
		}
		if r.Returns {
			returned = max(returned, m)
		}
	}
	return accepted, nil
}

// The verdicts about an obstacle: certain, or dependent on rules that are not evaluated.
const (
	StopsIt   = "stops it"
	MayStopIt = "may stop it"
)

// Obstacle returns StopsIt or MayStopIt if the chain drops packets, and the reason. It returns "" if they all pass.
func (b *BaseChain) Obstacle(packets []*Packet) (verdict, why string) {
	for _, p := range packets {
		switch d := b.Decide(p); {
		case d.Drops && d.IsCertain:
			return StopsIt, b.Explain(d)
		case d.Drops && verdict == "":
			verdict, why = MayStopIt, b.Explain(d)
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
