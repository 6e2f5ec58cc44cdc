package tool

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// acceptBit returns the fwmark that the plugin firewall sets on accepted packets, as the bytes with which rules compare
// it.
func (f *facts) acceptBit() string {
	bit := uint32(12)
	for _, list := range f.lists {
		for _, e := range list.Plugins {
			_ = json.Unmarshal(e.Raw["markAcceptBit"], &bit)
		}
	}
	return string(binary.NativeEndian.AppendUint32(nil, 1<<(bit&31)))
}

// dropPolicies finds chains that drop packets unless a rule accepts them, and have no rule that accepts packets of a
// list's containers. It omits IPv6 chains if the list has no IPv6 range, and all chains if the list has no range.
func dropPolicies(f *facts) {
	for _, d := range f.hooked {
		if f.noRules || d.Hook != "forward" || !d.Drops && d.DropsAt == 0 || strings.HasSuffix(d.Table, " firewalld") {
			continue
		}
		for _, list := range f.lists {
			of := func(r ranges.Range) bool { return d.Family != nft.IPv6 || r.Subnet.Addr().Is6() }
			hasRange := slices.ContainsFunc(slices.Concat(list.RangeSets()...), of)
			if !isRouted(list) || !hasRange || f.isFirewallsChain(d, list) {
				continue
			}
			if accepted, doubt := f.accepted(d, list); !accepted {
				f.addDropPolicy(d, list, doubt)
				break
			}
		}
	}
}

// dropRules finds rules of other programs that drop all packets of a list's bridge or range.
func dropRules(f *facts) {
	for _, d := range f.hooked {
		for _, list := range f.lists {
			place, isCertain := d.FirstDrop(f.selects(list))
			if !isCertain || d.IsOurs() || !isRouted(list) {
				continue
			}
			said := f.add("drop-policy", "rule %d of %s drops all packets of containers of %s", place, chainOf(d),
				titleOf(list))
			said.Advice = "remove the rule, or insert a rule before it that accepts containers"
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
	if uses(list, "firewall") {
		said.Advice = "add a rule that accepts containers to the chain: firewall in the list does not change it"
	}
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

// accepted evaluates the rules of a chain, up to a rule that drops every packet, and the rules of the chains to which
// they jump. accepted is true if a rule jumps to CNI-FORWARD, compares the mark of the plugin firewall, accepts every
// packet, or accepts packets and names the list's bridge or a network that contains a range. doubt is true if only
// other rules may accept packets. Rules for other interfaces are ignored.
func (f *facts) accepted(d node.BaseChain, list node.List) (accepted, doubt bool) {
	own, _ := ownBridge(list)
	isOwn, bit := f.selects(list), f.acceptBit()
	isOther := func(name string) bool {
		is := func(l rtnl.Link) bool { return l.Name == name && !l.IsPairEnd() }
		return name != own && slices.ContainsFunc(f.links, is)
	}
	chains, isForAll, passed := []string{d.Name}, map[string]bool{d.Name: true}, 0
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
			case slices.ContainsFunc(r.Links, isOther):
				continue
			case r.Target == node.CNIForward, slices.Contains(r.Compared, bit), r.MayAccept && isOwn(r),
				r.MayAccept && r.Unconditional && isForAll[r.Chain]:
				return true, false
			}
			doubt = doubt || r.MayAccept
			if r.Target != "" && !slices.Contains(chains, r.Target) {
				chains = append(chains, r.Target)
				isForAll[r.Target] = r.Unconditional && isForAll[r.Chain]
			}
		}
	}
	return false, doubt
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
