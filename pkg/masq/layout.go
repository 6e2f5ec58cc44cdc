package masq

import (
	"net/netip"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

const (
	baseChain   = "masq_v1"
	prefixChain = "masq_v1_"
	map4        = "masq4_v1"
	map6        = "masq6_v1"
	exempt4     = "masq_exempt4"
	exempt6     = "masq_exempt6"
)

// sharedLayout is the layout that all attachments use. 100 (srcnat) is the usual priority of source NAT.
func sharedLayout() nft.Layout {
	return nft.Layout{
		Table: nft.Table{Family: nft.INet, Name: nft.TableName},
		Sets: []nft.Set{
			{Name: exempt4, Key: []nft.Type{nft.IPv4Addr}, Interval: true,
				Comment: "yours: destinations that are not masqueraded"},
			{Name: exempt6, Key: []nft.Type{nft.IPv6Addr}, Interval: true,
				Comment: "yours: destinations that are not masqueraded"},
			{Name: map4, Key: []nft.Type{nft.IPv4Addr}, Data: []nft.Type{nft.Verdict},
				Comment: "container address : chain of its network"},
			{Name: map6, Key: []nft.Type{nft.IPv6Addr}, Data: []nft.Type{nft.Verdict},
				Comment: "container address : chain of its network"},
		},
		Chains: []nft.Chain{{
			Name:    baseChain,
			Comment: "source NAT of containers",
			Hook:    &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: 100},
			Rules: []nft.Rule{
				{nft.InSet(exempt4, nft.IPDaddr), nft.Return()},
				{nft.InSet(exempt6, nft.IP6Daddr), nft.Return()},
				{nft.VerdictMap(map4, nft.IPSaddr)},
				{nft.VerdictMap(map6, nft.IP6Saddr)},
			},
		}},
	}
}

// chainName names the chain of an address's prefix. nft takes no colons in names. An address that is
// alone in its prefix shares a chain with all others of that kind, or there would be one chain for each
// container.
func chainName(p netip.Prefix) string {
	if p.IsSingleIP() {
		return prefixChain + "single" + nft.FamilyOf(p.Addr()).Digit()
	}
	return prefixChain + strings.ReplaceAll(p.Masked().String(), ":", "-")
}

// parseChainName is the reverse of chainName; ok is false for any other chain's name.
func parseChainName(name string) (p netip.Prefix, ok bool) {
	text, found := strings.CutPrefix(name, prefixChain)
	switch {
	case !found:
		return netip.Prefix{}, false
	case text == "single4":
		return netip.PrefixFrom(netip.IPv4Unspecified(), 32), true
	case text == "single6":
		return netip.PrefixFrom(netip.IPv6Unspecified(), 128), true
	}
	p, err := netip.ParsePrefix(strings.ReplaceAll(text, "-", ":"))
	return p, err == nil
}

// chain is the chain of a prefix: packets to the prefix, and multicast, keep their source.
func chain(p netip.Prefix) nft.Chain {
	f := nft.FamilyOf(p.Addr())
	c := nft.Chain{Name: chainName(p)}
	if !p.IsSingleIP() {
		c.Rules = append(c.Rules, nft.Rule{nft.InPrefix(f.Daddr(), p), nft.Return()})
	}
	c.Rules = append(c.Rules, nft.Rule{nft.InPrefix(f.Daddr(), netip.MustParsePrefix(multicast(f))), nft.Return()},
		nft.Rule{nft.Masquerade()})
	return c
}

func multicast(f nft.Family) string {
	return map[nft.Family]string{nft.IPv4: "224.0.0.0/4", nft.IPv6: "ff00::/8"}[f]
}

// owned is the layout with the elements of all attachments: one for each address, which leads to the chain of the
// address's prefix.
func owned() nft.Owned {
	return nft.Owned{Layout: sharedLayout(), Sets: []string{map4, map6}, Chain: func(name string) (nft.Chain, bool) {
		p, ok := parseChainName(name)
		if !ok {
			return nft.Chain{}, false
		}
		return chain(p), true
	}}
}

// items are the elements of an attachment's addresses.
func items(a cni.Attachment, addrs []netip.Prefix) []nft.Item {
	var out []nft.Item
	for _, p := range distinct(addrs) {
		set := map4
		if p.Addr().Is6() {
			set = map6
		}
		out = append(out, nft.Item{Set: set, Name: "address " + p.Addr().String(),
			Element: nft.Element{Key: nft.AddrKey(p.Addr()), Goto: chainName(p), Comment: a.Mark()}})
	}
	return out
}

// distinct leaves out prefixes whose address came before: it can only have one.
func distinct(addrs []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	seen := map[netip.Addr]bool{}
	for _, p := range addrs {
		if p.IsValid() && !seen[p.Addr()] {
			seen[p.Addr()] = true
			out = append(out, p)
		}
	}
	return out
}
