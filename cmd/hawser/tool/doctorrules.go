package tool

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// acceptMark returns the fwmark that Hawser's firewall sets on accepted packets of a list's containers. It returns 0 if
// the list has another backend than nftables, or if one of the containers was accepted by another one.
func acceptMark(list node.List, attached []*node.Attachment) uint32 {
	bit, isMarked := uint32(12), true
	for _, e := range list.Plugins {
		_ = json.Unmarshal(e.Raw["markAcceptBit"], &bit)
		backend := rawText(e.Raw["backend"])
		isMarked = isMarked && (!e.Is("firewall") || backend == "" || backend == "nftables")
	}
	for _, a := range attached {
		isOther := func(value string) bool { return !strings.Contains(value, " nftables ") }
		isMarked = isMarked && (a.Network != list.Name || !slices.ContainsFunc(a.Held(cni.HeldAccept), isOther))
	}
	if !isMarked {
		return 0
	}
	return 1 << (bit & 31)
}

// dropPolicies finds chains that drop packets unless a rule accepts them, and have no rule that accepts packets of a
// list's containers.
func dropPolicies(f *facts) {
	for _, d := range f.hooked {
		if f.noRules || d.Hook != "forward" || !d.Drops && d.DropsAt == 0 || strings.HasSuffix(d.Table, " firewalld") {
			continue
		}
		for _, list := range f.lists {
			if len(routedRanges(d, list)) == 0 || f.isFirewallsChain(d, list) {
				continue
			}
			if accepted, doubt := f.matcherOf(list).accepts(d); !accepted {
				f.addDropPolicy(d, list, doubt)
				break
			}
		}
	}
}

// routedRanges returns the list's ranges whose packets the host routes through a chain. A chain of one address family
// has no packets of the other.
func routedRanges(d node.BaseChain, list node.List) (own []ranges.Range) {
	for _, r := range slices.Concat(list.RangeSets()...) {
		isOf := d.Family == nft.INet || (d.Family == nft.IPv6) == r.Subnet.Addr().Is6()
		if isRouted(list) && isOf {
			own = append(own, r)
		}
	}
	return own
}

// dropRules finds rules of other programs that drop all packets of a list's bridge or range.
func dropRules(f *facts) {
	for _, d := range f.hooked {
		for _, list := range f.lists {
			place, isCertain := d.FirstDrop(f.selects(list))
			if !isCertain || d.IsOurs() || len(routedRanges(d, list)) == 0 {
				continue
			}
			f.add("drop-policy", "rule %d of %s drops all packets of containers of %s", place, chainOf(d),
				titleOf(list))
		}
	}
}

// chainOf names a chain in findings.
func chainOf(d node.BaseChain) string {
	if legacy, ok := strings.CutPrefix(d.Table, "legacy "); ok {
		return "chain " + legacy + " " + d.Name + " of iptables-legacy"
	}
	return "chain " + d.Table + " " + d.Name + " of nf_tables"
}

// addDropPolicy adds a finding about a chain that drops packets of the list's containers. With doubt, it is a warning.
func (f *facts) addDropPolicy(d node.BaseChain, list node.List, doubt bool) {
	what := "has no rule that accepts packets"
	if doubt {
		what = "has rules that accept some packets, but may not accept those"
	}
	said := f.add("drop-policy", "%s drops packets and %s of containers of %s", chainOf(d), what, titleOf(list))
	if doubt {
		said.Severity = doubtful
	}
	said.Advice = "accept the containers: " + f.acceptCommands(d, list)
	if !uses(list, "firewall") && d.Name == "FORWARD" {
		said.Advice = "add the plugin firewall to the list, or " + said.Advice
	}
}

// acceptCommands returns commands that insert rules into a chain so that it accepts packets of the list's containers.
func (f *facts) acceptCommands(d node.BaseChain, list node.List) string {
	table, isLegacy := strings.CutPrefix(d.Table, "legacy ")
	if m := f.matcherOf(list); m.mark != 0 && !isLegacy {
		return fmt.Sprintf("nft insert rule %s %s meta mark and %#x == %#[3]x accept", table, d.Name, m.mark)
	}
	var commands []string
	for _, r := range routedRanges(d, list) {
		family := nft.FamilyOf(r.Subnet.Addr()).String()
		for _, end := range []string{"s", "d"} {
			command := fmt.Sprintf("nft insert rule %s %s %s %saddr %s accept", table, d.Name, family, end, r.Subnet)
			if table == family+" filter" && d.Name == "FORWARD" {
				command = fmt.Sprintf("%stables%s -I FORWARD -%s %s -j ACCEPT", family,
					map[bool]string{true: "-legacy"}[isLegacy], end, r.Subnet)
			}
			commands = append(commands, command)
		}
	}
	return strings.Join(commands, "; ")
}

// isFirewallsChain reports whether the plugin firewall is responsible for the missing rule: either its first ADD will
// create the rule, because no container is attached, or a drift already reports the loss of the rule.
func (f *facts) isFirewallsChain(d node.BaseChain, list node.List) bool {
	if !uses(list, "firewall") || d.Name != "FORWARD" {
		return false
	}
	isOf := func(a *node.Attachment) bool { return a.IsLive() && a.Network == list.Name }
	isLost := func(found *finding) bool {
		return found.ID == "drift" && strings.Contains(found.What, fmt.Sprintf("on %q: firewall: ", list.Name))
	}
	return !slices.ContainsFunc(f.attached, isOf) || slices.ContainsFunc(f.found, isLost)
}

// names reports whether a rule names a link, the link's index, or a network that contains one of the ranges.
func names(r node.RuleSummary, link string, index int, all ranges.Set) bool {
	isLink := func(name string) bool {
		begin, isMore := strings.CutSuffix(name, "*")
		return link != "" && (name == link || isMore && strings.HasPrefix(link, begin))
	}
	isAround := func(p netip.Prefix) bool {
		in := func(r ranges.Range) bool { return p.Bits() <= r.Subnet.Bits() && p.Contains(r.Subnet.Addr()) }
		return slices.ContainsFunc(all, in)
	}
	return slices.ContainsFunc(r.Links, isLink) || slices.ContainsFunc(r.SetLinks, isLink) ||
		slices.ContainsFunc(r.Networks, isAround) || index != 0 && slices.Contains(r.Indexes, index)
}

// matcher decides about rules whether packets of one network or container pass them.
type matcher struct {
	isOwn      func(node.RuleSummary) bool // the rule names its bridge, or a network that contains its addresses
	isOther    func(link string) bool      // the host's link is another one's
	isAccepted bool                        // the plugin firewall accepts its packets in CNI-FORWARD
	mark       uint32                      // the fwmark of its packets; 0 = none
}

// selects returns a function that reports whether a rule names the list's bridge or a network that contains one of its
// ranges.
func (f *facts) selects(list node.List) func(node.RuleSummary) bool {
	index, all := 0, slices.Concat(list.RangeSets()...)
	own, _ := ownBridge(list)
	for _, l := range f.links {
		if l.Name == own {
			index = l.Index
		}
	}
	return func(r node.RuleSummary) bool { return names(r, own, index, all) }
}

// matcherOf returns the matcher of a list.
func (f *facts) matcherOf(list node.List) matcher {
	own, _ := ownBridge(list)
	isOther := func(name string) bool {
		is := func(l rtnl.Link) bool { return l.Name == name && !l.IsPairEnd() }
		return name != own && slices.ContainsFunc(f.links, is)
	}
	m := matcher{f.selects(list), isOther, uses(list, "firewall"), 0}
	if slices.ContainsFunc(list.Plugins, func(e node.Entry) bool {
		return e.Is("firewall") && f.programs[e.Type].kind == ours
	}) {
		m.mark = acceptMark(list, f.attached)
	}
	return m
}

// accepts evaluates the rules of a chain, up to a rule that drops every packet, and the rules of the chains to which
// they jump. accepted is true if a rule has no condition, if the plugin firewall accepts the packets in CNI-FORWARD or
// by their mark, or if an own rule and another one accept packets: a single own rule may accept only what containers
// send, without the answers. doubt is true if some rules may accept packets. Rules for other interfaces are ignored.
func (m matcher) accepts(d node.BaseChain) (accepted, doubt bool) {
	bit := string(binary.NativeEndian.AppendUint32(nil, m.mark))
	chains, hasOwn, accepting, passed := []string{d.Name}, false, 0, 0
	ways := map[string]int{d.Name: 2} // own rules that jump to the chain; 2 = all packets pass it
	for i := 0; i < len(chains); i++ {
		for _, r := range d.Rules {
			if r.Chain != chains[i] {
				continue
			}
			if i == 0 {
				passed++
			}
			switch {
			case i == 0 && d.DropsAt > 0 && passed >= d.DropsAt:
				continue
			case slices.ContainsFunc(r.Links, m.isOther):
				continue
			case m.isAccepted && r.Target == node.CNIForward, m.mark != 0 && slices.Contains(r.Compared, bit):
				return true, false
			case r.MayAccept && r.Unconditional && ways[r.Chain] > 0:
				hasOwn, accepting = true, accepting+ways[r.Chain]
			case r.MayAccept:
				hasOwn, accepting = hasOwn || m.isOwn(r), accepting+1
			}
			if r.Unconditional {
				ways[r.Target] += ways[r.Chain]
			} else if ways[r.Chain] > 0 && m.isOwn(r) {
				ways[r.Target]++
			}
			if r.Target != "" && !slices.Contains(chains, r.Target) {
				chains = append(chains, r.Target)
			}
		}
	}
	return hasOwn && accepting > 1, accepting > 0
}

// isLoopbackGuarded reports whether a rule of another program drops or rejects packets to 127.0.0.0/8, as a kubelet's
// does. It returns true if the rules cannot be read.
func (f *facts) isLoopbackGuarded() bool {
	isGuard := func(r node.RuleSummary) bool {
		return r.Drops && slices.Contains(r.Networks, netip.MustParsePrefix("127.0.0.0/8"))
	}
	nf := nft.New()
	defer nf.Close()
	seen := map[nft.Table]bool{}
	for _, c := range f.chains {
		if seen[c.Table] || !node.IsRouted(c.Table) || c.Table == ownTable() {
			continue
		}
		seen[c.Table] = true
		rules, err := node.ReadRules(nf, c.Table, "")
		if f.addError(err); err != nil {
			return true // unknown
		}
		if slices.ContainsFunc(rules, isGuard) {
			return true
		}
	}
	return slices.ContainsFunc(f.hooked, func(b node.BaseChain) bool { // chains of iptables-legacy
		return !b.IsOurs() && slices.ContainsFunc(b.Rules, isGuard) // Hawser's guard only covers the links of its set
	})
}
