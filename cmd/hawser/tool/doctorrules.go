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

// acceptBit is the bit of the fwmark that the plugin firewall gives to what it accepts.
func (f *facts) acceptBit() string {
	bit := uint32(12)
	for _, list := range f.lists {
		for _, e := range list.Plugins {
			_ = json.Unmarshal(e.Raw["markAcceptBit"], &bit)
		}
	}
	return string(binary.NativeEndian.AppendUint32(nil, 1<<(bit&31)))
}

// dropPolicies are chains that drop what their rules do not accept, and accept no container of a list. Of a family
// without a range they harm nobody.
func dropPolicies(f *facts) {
	for _, d := range f.hooked {
		if f.noRules || d.Hook != "forward" || !d.Drops && d.DropsAt == 0 || strings.HasSuffix(d.Table, " firewalld") {
			continue
		}
		for _, list := range f.lists {
			of := func(r ranges.Range) bool { return d.Family != nft.IPv6 || r.Subnet.Addr().Is6() }
			hasRange := slices.ContainsFunc(slices.Concat(list.RangeSets()...), of)
			if !isRouted(list) || !hasRange || f.isFirewalls(d, list) {
				continue
			}
			if accepted, doubt := f.accepted(d, list); !accepted {
				f.sayDrops(d, list, doubt)
				break
			}
		}
	}
}

// dropRules are rules of others that drop all packets of a list's bridge or range.
func dropRules(f *facts) {
	for _, d := range f.hooked {
		for _, list := range f.lists {
			place, isCertain := d.DropOf(f.namesOf(list))
			if !isCertain || d.IsOurs() || !isRouted(list) {
				continue
			}
			said := f.say("drop-policy", "rule %d of %s drops all packets of containers of %s", place, chainOf(d),
				titleOf(list))
			said.Advice = "take the rule away, or put one before it that accepts containers"
		}
	}
}

// chainOf names a chain.
func chainOf(d node.BaseChain) string {
	if legacy, ok := strings.CutPrefix(d.Table, "legacy "); ok {
		return "chain " + legacy + " " + d.Name + " of iptables-legacy"
	}
	return "chain " + d.Table + " " + d.Name + " of nf_tables"
}

func (f *facts) sayDrops(d node.BaseChain, list node.List, doubt bool) {
	what := "no rule accepts"
	if doubt {
		what = "its rules do not accept; they accept some packets, and not for certain those"
	}
	said := f.say("drop-policy", "%s drops what %s of containers of %s", chainOf(d), what, titleOf(list))
	if doubt {
		said.Severity = doubtful
	}
	if uses(list, "firewall") {
		said.Advice = "add to the chain a rule that accepts containers: the plugin firewall is in the list"
	}
}

// isFirewalls says that the list's firewall has to make the rule in the chain: at its first ADD, or again, of which
// drift speaks.
func (f *facts) isFirewalls(d node.BaseChain, list node.List) bool {
	if !uses(list, "firewall") || d.Name != "FORWARD" {
		return false
	}
	isOf := func(a *node.Attachment) bool { return a.IsLive() && a.Network == list.Name }
	isLost := func(found *finding) bool {
		return found.ID == "drift" && strings.Contains(found.What, fmt.Sprintf("on %q: firewall: ", list.Name))
	}
	return !slices.ContainsFunc(f.attached, isOf) || slices.ContainsFunc(f.found, isLost)
}

// names says whether a rule names a link, its index or, of all ranges, a network around one.
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

// namesOf says of a rule whether it names the list's bridge or a network around a range of it.
func (f *facts) namesOf(list node.List) func(node.RuleSummary) bool {
	index, all := 0, slices.Concat(list.RangeSets()...)
	own, _ := ownBridge(list)
	for _, l := range f.links {
		if l.Name == own {
			index = l.Index
		}
	}
	return func(r node.RuleSummary) bool { return names(r, own, index, all) }
}

// accepted follows the rules of a chain up to one that drops all, and of those to which they lead: it is true for a
// rule that accepts the plugin firewall's packets or all, or names the list's bridge or a network around a range of it.
// There is doubt where another rule accepts packets that need not be those of another interface.
func (f *facts) accepted(d node.BaseChain, list node.List) (accepted, doubt bool) {
	own, _ := ownBridge(list)
	isOwn, bit := f.namesOf(list), f.acceptBit()
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

// dropsLoopback says whether a rule of somebody drops or rejects what comes for 127.0.0.0/8, as a kubelet's does.
func (f *facts) dropsLoopback() bool {
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
		if f.note(err); err != nil {
			return true // not known
		}
		if slices.ContainsFunc(rules, isGuard) {
			return true
		}
	}
	return slices.ContainsFunc(f.hooked, func(b node.BaseChain) bool { // of iptables-legacy
		return !b.IsOurs() && slices.ContainsFunc(b.Rules, isGuard) // ours guards the links of its set alone
	})
}
