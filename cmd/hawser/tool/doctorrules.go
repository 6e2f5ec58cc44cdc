package tool

import (
	"encoding/binary"
	"encoding/json"
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

// dropPolicies are chains whose rules accept no container of a list. Of a family without a range they harm nobody.
func dropPolicies(f *facts) {
	for _, d := range f.drops {
		for _, list := range f.lists {
			all := slices.Concat(list.RangeSets()...)
			of := func(r ranges.Range) bool { return d.Family != nft.IPv6 || r.Subnet.Addr().Is6() }
			if !isRouted(list) || !slices.ContainsFunc(all, of) {
				continue
			}
			accepted, doubt := f.accepted(d, list, all)
			if accepted {
				continue
			}
			what := "no rule accepts"
			if doubt {
				what = "its rules do not accept; they accept some packets, and not for certain those"
			}
			chain := d.Table + " " + d.Name + " of nf_tables"
			if legacy, ok := strings.CutPrefix(d.Table, "legacy "); ok {
				chain = legacy + " " + d.Name + " of iptables-legacy"
			}
			f.say("drop-policy", "chain %s drops what %s of containers of %s", chain, what, titleOf(list))
			if doubt {
				f.found[len(f.found)-1].Severity = doubtful
			}
			break
		}
	}
}

// accepted follows the rules of a chain, and of those to which they lead: it is true for a rule that accepts the plugin
// firewall's packets, or names the list's bridge or a subnet of it. There is doubt where another rule accepts packets
// that need not be those of another interface.
func (f *facts) accepted(d node.BaseChain, list node.List, all ranges.Set) (accepted, doubt bool) {
	own, _ := ownBridge(list)
	names, bit := []string{own}, f.acceptBit()
	for _, r := range all {
		addr := string(r.Subnet.Addr().AsSlice())
		names = append(names, addr, addr[:(r.Subnet.Bits()+7)/8])
	}
	isOf := func(name string) bool { return name != "" && slices.Contains(names, name) }
	accepts := func(r node.Rule) bool {
		return r.Target == node.CNIForward || slices.Contains(r.About, bit) ||
			r.MayAccept && slices.ContainsFunc(r.About, isOf)
	}
	isOther := func(name string) bool {
		is := func(l rtnl.Link) bool { return l.Name == name && !l.IsPairEnd() }
		return name != own && slices.ContainsFunc(f.links, is)
	}
	chains := []string{d.Name}
	for i := 0; i < len(chains); i++ {
		for _, r := range d.Rules {
			if r.Chain != chains[i] || slices.ContainsFunc(r.About, isOther) {
				continue
			}
			if accepts(r) {
				return true, false
			}
			doubt = doubt || r.MayAccept
			if r.Target != "" && !slices.Contains(chains, r.Target) {
				chains = append(chains, r.Target)
			}
		}
	}
	return false, doubt
}

// dropsLoopback says whether a rule of somebody drops what comes for 127.0.0.0/8, as a kubelet's does.
func (f *facts) dropsLoopback() bool {
	nf := nft.New()
	defer nf.Close()
	seen := map[nft.Table]bool{}
	for _, c := range f.chains {
		if seen[c.Table] || !node.IsRouted(c.Table) || c.Table == ownTable() {
			continue
		}
		seen[c.Table] = true
		rules, err := nf.Rules(c.Table, "")
		f.note(err)
		isGuard := func(r nft.LiveRule) bool {
			return r.Drops() && (r.Mentions([]byte{127}) || r.Mentions([]byte{127, 0, 0, 0}))
		}
		if slices.ContainsFunc(rules, isGuard) {
			return true
		}
	}
	return false
}
