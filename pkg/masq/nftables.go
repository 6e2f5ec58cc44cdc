package masq

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// table is shared with other plugins; the names in it carry the version of the layout, except those of
// the sets that are for the administrator.
var table = nft.Table{Family: nft.INet, Name: "hawser"}

const (
	baseChain   = "masq_v1"
	prefixChain = "masq_v1_"
	map4        = "masq4_v1"
	map6        = "masq6_v1"
	exempt4     = "masq_exempt4"
	exempt6     = "masq_exempt6"
)

// sharedLayout is what all attachments use. nat at 100 (srcnat) is where everybody translates sources.
func sharedLayout() nft.Layout {
	return nft.Layout{
		Table:   table,
		Comment: "Hawser CNI plugins",
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
	switch {
	case p.IsSingleIP() && p.Addr().Is4():
		return prefixChain + "single4"
	case p.IsSingleIP():
		return prefixChain + "single6"
	}
	return prefixChain + strings.ReplaceAll(p.Masked().String(), ":", "-")
}

// parseChainName is the prefix of a chain's name; ok is false for a chain that is none of these.
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

// chain is the chain of a prefix: what stays in it, and multicast, keeps its source.
func chain(p netip.Prefix) nft.Chain {
	daddr, multicast := nft.IPDaddr, multicast4
	if p.Addr().Is6() {
		daddr, multicast = nft.IP6Daddr, multicast6
	}
	c := nft.Chain{Name: chainName(p)}
	if !p.IsSingleIP() {
		c.Rules = append(c.Rules, nft.Rule{nft.InPrefix(daddr, p), nft.Return()})
	}
	c.Rules = append(c.Rules, nft.Rule{nft.InPrefix(daddr, netip.MustParsePrefix(multicast)), nft.Return()},
		nft.Rule{nft.Masquerade()})
	return c
}

const (
	multicast4 = "224.0.0.0/4"
	multicast6 = "ff00::/8"
)

// chains is the layout of the chains of these prefixes.
func chains(prefixes []netip.Prefix) nft.Layout {
	l := nft.Layout{Table: table, Comment: sharedLayout().Comment}
	seen := map[string]bool{}
	for _, p := range prefixes {
		if c := chain(p); !seen[c.Name] {
			seen[c.Name] = true
			l.Chains = append(l.Chains, c)
		}
	}
	return l
}

// element is the element of one address in its map.
func element(a cni.Attachment, p netip.Prefix) (mapName string, e nft.Element) {
	return mapOf(p.Addr()), nft.Element{Key: nft.AddrKey(p.Addr()), Goto: chainName(p), Comment: a.Mark()}
}

func mapOf(a netip.Addr) string {
	if a.Is4() {
		return map4
	}
	return map6
}

func addNFTables(ctx context.Context, nf *nft.Conn, c Config) error {
	addrs := distinct(c.Addrs)
	return nf.Update(ctx, func(tx *nft.Tx) error {
		if err := ensure(tx, addrs); err != nil {
			return err
		}
		ch := changes{tx: tx, gone: map[string]int{}, kept: map[string]bool{}}
		for _, p := range addrs {
			if err := ch.put(c.Attachment, p); err != nil {
				return err
			}
		}
		return ch.dropUnused()
	})
}

// ensure stages what is missing of the shared layout and of the chains of the prefixes. Where the
// shared rules were lost, those of the other networks' chains probably were, too.
func ensure(tx *nft.Tx, addrs []netip.Prefix) error {
	lacking, err := tx.Ensure(sharedLayout())
	if err != nil {
		return err
	}
	if lacking {
		live, err := tx.Chains(table)
		if err != nil {
			return err
		}
		for _, l := range live {
			if p, ok := parseChainName(l.Name); ok {
				addrs = append(addrs[:len(addrs):len(addrs)], p)
			}
		}
	}
	_, err = tx.Ensure(chains(addrs))
	return err
}

// changes collects what happens to elements, and so to the number of references to their chains.
type changes struct {
	tx   *nft.Tx
	gone map[string]int  // chain: elements that are deleted
	kept map[string]bool // chains that get an element
}

// put stages the element of an address unless it is there. Another attachment's is replaced.
func (ch *changes) put(a cni.Attachment, p netip.Prefix) error {
	mapName, want := element(a, p)
	live, err := ch.tx.Get(table, mapName, want.Key)
	if err != nil {
		return err
	}
	if old := live[0]; old != nil {
		if a.Owns(old.Comment) && old.Goto == want.Goto {
			return nil
		}
		ch.remove(mapName, *old)
	}
	ch.kept[want.Goto] = true
	ch.tx.Add(table, mapName, want)
	return nil
}

func (ch *changes) remove(mapName string, e nft.Element) {
	ch.tx.Delete(table, mapName, e)
	ch.gone[e.Goto]++
}

// dropUnused stages the deletion of the chains that lose their last element.
func (ch *changes) dropUnused() error {
	for name, n := range ch.gone {
		if _, ours := parseChainName(name); !ours || ch.kept[name] {
			continue
		}
		left, err := ch.tx.References(table, name)
		if err != nil {
			return err
		}
		if left <= n {
			ch.tx.DeleteChain(table, name)
		}
	}
	return nil
}

func delNFTables(ctx context.Context, nf *nft.Conn, a cni.Attachment, addrs []netip.Prefix) error {
	find := func() (map[string][]nft.Element, error) {
		found, err := hinted(nf, a, addrs)
		if found != nil || err != nil {
			return found, err
		}
		return owned(nf, a.Owns)
	}
	return removeFound(ctx, nf, find)
}

func gcNFTables(ctx context.Context, nf *nft.Conn, valid cni.Set) error {
	return removeFound(ctx, nf, func() (map[string][]nft.Element, error) { return owned(nf, valid.Garbage) })
}

// removeFound deletes the elements that find returns. The first look costs no lock.
func removeFound(ctx context.Context, nf *nft.Conn, find func() (map[string][]nft.Element, error)) error {
	if found, err := find(); err != nil || len(found) == 0 {
		return err
	}
	return nf.Update(ctx, func(tx *nft.Tx) error {
		found, err := find()
		if err != nil {
			return err
		}
		ch := changes{tx: tx, gone: map[string]int{}}
		for _, mapName := range []string{map4, map6} {
			for _, e := range found[mapName] {
				ch.remove(mapName, e)
			}
		}
		return ch.dropUnused()
	})
}

// hinted finds the attachment's elements by their addresses. It returns nil unless there is one for
// each: then the hint is not the whole truth.
func hinted(nf *nft.Conn, a cni.Attachment, addrs []netip.Prefix) (map[string][]nft.Element, error) {
	found := map[string][]nft.Element{}
	for _, p := range distinct(addrs) {
		mapName, e := element(a, p)
		live, err := nf.Get(table, mapName, e.Key)
		if err != nil || live[0] == nil || !a.Owns(live[0].Comment) {
			return nil, err
		}
		found[mapName] = append(found[mapName], *live[0])
	}
	if len(found) == 0 {
		return nil, nil
	}
	return found, nil
}

// owned finds elements by their owner, which means to look at all.
func owned(nf *nft.Conn, mine func(mark string) bool) (map[string][]nft.Element, error) {
	found := map[string][]nft.Element{}
	for _, mapName := range []string{map4, map6} {
		live, err := nf.Elements(table, mapName)
		if err != nil {
			return nil, err
		}
		for _, e := range live {
			if mine(e.Comment) {
				found[mapName] = append(found[mapName], e)
			}
		}
	}
	return found, nil
}

func checkNFTables(nf *nft.Conn, c Config) error {
	var diffs []error
	addrs := distinct(c.Addrs)
	for _, p := range addrs {
		mapName, want := element(c.Attachment, p)
		live, err := nf.Get(table, mapName, want.Key)
		if err != nil {
			return err
		}
		if what := difference(c.Attachment, want, live[0]); what != "" {
			diffs = append(diffs, fmt.Errorf("nftables map %q, address %s: %w: %s", mapName, p.Addr(), ErrMissing, what))
		}
	}
	for _, l := range []nft.Layout{sharedLayout(), chains(addrs)} {
		err := nf.Verify(l)
		if err != nil && !errors.Is(err, nft.ErrDrift) {
			return err
		}
		if err != nil {
			diffs = append(diffs, fmt.Errorf("%w: %w", ErrMissing, err))
		}
	}
	return errors.Join(diffs...)
}

func difference(a cni.Attachment, want nft.Element, live *nft.Element) string {
	switch {
	case live == nil:
		return "no element"
	case !a.Owns(live.Comment):
		return fmt.Sprintf("the element belongs to %q", live.Comment)
	case live.Goto != want.Goto:
		return fmt.Sprintf("the element leads to chain %q, not %q", live.Goto, want.Goto)
	}
	return ""
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
