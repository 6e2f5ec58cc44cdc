package tool

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// dropping is a chain at the hook forward whose policy is to drop, with the rules of its table.
type dropping struct {
	title, chain string
	family       nft.Family
	rules        []rule
}

// rule is what doctor understands of a rule of nf_tables or of iptables-legacy.
type rule struct {
	chain, target string
	mayAccept     bool
	isOurs        bool     // the plugin firewall's jump, or one that asks for its fwmark
	about         []string // with what it compares: names of interfaces, and bytes of addresses among them
}

func (f *facts) droppingChain(c nft.LiveChain, live []nft.LiveRule) dropping {
	d := dropping{fmt.Sprintf("%s %s of nf_tables", c.Table, c.Name), c.Name, c.Table.Family, nil}
	for _, r := range live {
		isOurs := r.Target == "CNI-FORWARD" || r.Mentions(binary.NativeEndian.AppendUint32(nil, f.acceptBit()))
		known := rule{r.Chain, r.Target, r.MayAccept(), isOurs, nil}
		for _, value := range r.Compared(0) {
			known.about = append(known.about, string(value), strings.TrimRight(string(value), "\x00"))
		}
		d.rules = append(d.rules, known)
	}
	return d
}

func (f *facts) droppingLegacy(family nft.Family, live []ipt.Rule) dropping {
	d := dropping{fmt.Sprintf("%s filter FORWARD of iptables-legacy", family), "FORWARD", family, nil}
	for _, r := range live {
		target := r.Option("-j") + r.Option("-g")
		links := []string{r.Option("-i"), r.Option("-o")}
		known := rule{r.Chain, target, target == "ACCEPT", target == "CNI-FORWARD", links}
		for _, option := range []string{"-s", "-d"} {
			if p, err := netip.ParsePrefix(r.Option(option)); err == nil {
				known.about = append(known.about, string(p.Addr().AsSlice()))
			}
		}
		d.rules = append(d.rules, known)
	}
	return d
}

// acceptBit is the bit of the fwmark that the plugin firewall gives to what it accepts.
func (f *facts) acceptBit() uint32 {
	bit := uint32(12)
	for _, list := range f.lists {
		for _, e := range list.Plugins {
			_ = json.Unmarshal(e.Raw["markAcceptBit"], &bit)
		}
	}
	return 1 << (bit & 31)
}

// dropPolicies are chains whose rules accept no container of a list. Of a family without a range they harm nobody.
func dropPolicies(f *facts) {
	for _, d := range f.drops {
		for _, list := range f.lists {
			all := slices.Concat(list.RangeSets()...)
			of := func(r ranges.Range) bool { return d.family != nft.IPv6 || r.Subnet.Addr().Is6() }
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
			f.say("drop-policy", "chain %s drops what %s of containers of %s", d.title, what, titleOf(list))
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
func (f *facts) accepted(d dropping, list node.List, all ranges.Set) (accepted, doubt bool) {
	own, _ := ownBridge(list)
	names := []string{own}
	for _, r := range all {
		addr := string(r.Subnet.Addr().AsSlice())
		names = append(names, addr, addr[:(r.Subnet.Bits()+7)/8])
	}
	isOf := func(name string) bool { return name != "" && slices.Contains(names, name) }
	isOther := func(name string) bool {
		is := func(l rtnl.Link) bool { return l.Name == name && !l.IsPairEnd() }
		return name != own && slices.ContainsFunc(f.links, is)
	}
	chains := []string{d.chain}
	for i := 0; i < len(chains); i++ {
		for _, r := range d.rules {
			if r.chain != chains[i] || slices.ContainsFunc(r.about, isOther) {
				continue
			}
			if r.isOurs || r.mayAccept && slices.ContainsFunc(r.about, isOf) {
				return true, false
			}
			doubt = doubt || r.mayAccept
			if r.target != "" && !slices.Contains(chains, r.target) {
				chains = append(chains, r.target)
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
		if seen[c.Table] || !node.IsRouted(c.Table) || c.Table == table() {
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
