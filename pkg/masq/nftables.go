package masq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

const (
	baseChain   = "masq_v2"
	prefixChain = "masq_v1_"
	// formerChain is the base chain of version 0.1.0, in whose maps (formerMap) the keys have no interface.
	formerChain = "masq_v1"
)

var errNoLink = errors.New("masquerade: the interface on which the container's packets arrive is unknown")

// addNFTables adds the elements. Other attachments' elements for the same addresses stay, with a warning.
func addNFTables(ctx context.Context, nf *nft.Conn, c Config) error {
	if c.Link == "" {
		return errNoLink
	}
	var prevailing []nft.Item
	err := c.owned().Update(ctx, nf, func(tx *nft.Tx) error {
		err := tx.Put(c.items(), nil)
		prevailing = tx.Prevailing
		return err
	})
	for _, it := range prevailing {
		if err == nil && c.Warn != nil {
			c.Warn("masquerade of address %s: the rules of %q apply until that attachment ends", keyAddr(it),
				it.Comment)
		}
	}
	return err
}

// delNFTables removes the attachment's elements. It looks them up by interface and address. If one is missing, or if
// the keys are not known, it reads all elements of the host.
func delNFTables(ctx context.Context, nf *nft.Conn, c Config) error {
	isOwn := c.Attachment.Owns
	found, err := c.owned().Live(nf, slices.Concat(c.items(), c.formerItems()), isOwn)
	if err == nil && (len(found) == 0 || len(found) < len(distinct(c.Addrs))) {
		found, err = c.owned().All(nf, isOwn)
	}
	if err != nil {
		return err
	}
	return c.owned().Remove(ctx, nf, found, isOwn)
}

// checkNFTables compares the kernel's state with the elements and the shared layout. It also accepts elements of
// version 0.1.0.
func checkNFTables(nf *nft.Conn, c Config) error {
	if c.Link == "" {
		return errNoLink
	}
	err := c.owned().Verify(nf, c.items())
	if errors.Is(err, nft.ErrDrift) && c.former().Verify(nf, c.formerItems()) == nil {
		return nil
	}
	return err
}

// addrMap returns the name of a family's map of addresses, formerMap that map's name in version 0.1.0, and exemptSet
// the name of the set of the administrator's exemptions.
func addrMap(f nft.Family) string   { return "masq" + f.Digit() + "_v2" }
func formerMap(f nft.Family) string { return "masq" + f.Digit() + "_v1" }
func exemptSet(f nft.Family) string { return "masq_exempt" + f.Digit() }

// owned returns the layout that all attachments share, and the maps with their elements. An element's key is the
// interface on which packets arrive and their source address. Its verdict goes to the chain of the address's prefix.
func (c Config) owned() nft.Owned {
	o := c.layout(baseChain, addrMap, nft.IIFName)
	o.Shared = true
	for _, f := range nft.Families() {
		o.FormerSets = append(o.FormerSets, formerMap(f))
	}
	o.FormerChains = []string{formerChain}
	return o
}

// former returns the layout of version 0.1.0.
func (c Config) former() nft.Owned { return c.layout(formerChain, formerMap) }

// layout returns a layout with a base chain, at the usual priority of source NAT, and its maps. A map's key consists of
// fields and a source address.
func (c Config) layout(base string, mapOf func(nft.Family) string, fields ...nft.Field) nft.Owned {
	o := nft.Owned{Chain: c.chainByName}
	var exempts, maps []nft.Set
	var returns, jumps []nft.Rule
	for _, f := range nft.Families() {
		exempts = append(exempts, nft.Set{Name: exemptSet(f), Key: []nft.Type{f.Addr()}, Interval: true,
			Comment: "yours: destinations that are not masqueraded"})
		key, comment := []nft.Type{f.Addr()}, "container address : chain of its network"
		if len(fields) > 0 {
			key, comment = append([]nft.Type{nft.IfName}, key...), "interface and "+comment
		}
		maps = append(maps, nft.Set{Name: mapOf(f), Key: key, Data: []nft.Type{nft.Verdict}, Comment: comment})
		o.Sets = append(o.Sets, mapOf(f))
		returns = append(returns, nft.Rule{nft.InSet(exemptSet(f), f.Daddr()), nft.Return()})
		jumps = append(jumps, nft.Rule{nft.VerdictMap(mapOf(f), append(slices.Clone(fields), f.Saddr())...)})
	}
	o.Layout = nft.Layout{
		Table: nft.Table{Family: nft.INet, Name: nft.TableName},
		Sets:  append(exempts, maps...),
		Chains: []nft.Chain{{Name: base, Comment: "source NAT of containers",
			Hook: &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: 100}, Rules: append(returns, jumps...)}},
	}
	return o
}

// chainName returns the name of the chain for an address's prefix. nft does not accept colons in names. All prefixes of
// a single address share one chain, because otherwise each container would have its own.
func (c Config) chainName(p netip.Prefix) string {
	name := prefixChain + strings.ReplaceAll(p.Masked().String(), ":", "-")
	if p.IsSingleIP() {
		name = prefixChain + "single" + nft.FamilyOf(p.Addr()).Digit()
	}
	if suffix := c.suffix(nft.FamilyOf(p.Addr())); suffix != "" {
		name += "_" + suffix
	}
	return name
}

// suffix returns a hash of the options, which distinguishes the names of a prefix's chains with different options. It
// returns "" if no option is set.
func (s Special) suffix(f nft.Family) string {
	exclude := ofFamily(f, s.Exclude)
	if !s.isSpecial(exclude) {
		return ""
	}
	return cni.Digest(fmt.Sprint(exclude, s.RandomFully, s.Ports), 16)
}

func ofFamily(f nft.Family, all []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return nft.FamilyOf(p.Addr()) != f })
}

// chainByName returns the chain with a name from chainName. In the chain, packets to the prefix, to multicast and to
// excluded destinations keep their source. A chain with other options than c's is returned without rules, because its
// name contains only a hash of the options.
func (c Config) chainByName(name string) (nft.Chain, bool) {
	text, found := strings.CutPrefix(name, prefixChain)
	text, suffix, _ := strings.Cut(text, "_")
	p, err := netip.ParsePrefix(strings.ReplaceAll(text, "-", ":"))
	switch {
	case found && text == "single4":
		p = netip.PrefixFrom(netip.IPv4Unspecified(), 32)
	case found && text == "single6":
		p = netip.PrefixFrom(netip.IPv6Unspecified(), 128)
	case !found || err != nil:
		return nft.Chain{}, false
	}
	f := nft.FamilyOf(p.Addr())
	if suffix != "" && suffix != c.suffix(f) {
		return nft.Chain{Name: name}, true
	}
	var keep []netip.Prefix
	if !p.IsSingleIP() {
		keep = append(keep, p)
	}
	keep = append(keep, netip.MustParsePrefix(multicast(f)))
	last := []nft.Rule{{nft.Masquerade()}}
	if suffix != "" {
		keep = append(keep, ofFamily(f, c.Exclude)...)
		last = c.masquerades()
	}
	chain := nft.Chain{Name: name}
	for _, p := range keep {
		chain.Rules = append(chain.Rules, nft.Rule{nft.InPrefix(f.Daddr(), p), nft.Return()})
	}
	chain.Rules = append(chain.Rules, last...)
	return chain, true
}

// masquerades returns the last rules of a chain with options.
func (s Special) masquerades() (out []nft.Rule) {
	if s.Ports != [2]uint16{} {
		masquerade := nft.MasqueradeTo(s.Ports, s.RandomFully)
		out = append(out, nft.Rule{nft.IsProtocol(unix.IPPROTO_TCP, "tcp"), masquerade},
			nft.Rule{nft.IsProtocol(unix.IPPROTO_UDP, "udp"), masquerade})
	}
	return append(out, nft.Rule{nft.MasqueradeTo([2]uint16{}, s.RandomFully)})
}

func multicast(f nft.Family) string {
	if f == nft.IPv4 {
		return "224.0.0.0/4"
	}
	return "ff00::/8"
}

// items returns the elements of the attachment's addresses. It returns nil if the interface is not known.
func (c Config) items() (out []nft.Item) {
	if c.Link == "" {
		return nil
	}
	for _, p := range distinct(c.Addrs) {
		out = append(out, c.item(addrMap(nft.FamilyOf(p.Addr())), p, nft.IfNameKey(c.Link), nft.AddrKey(p.Addr())))
	}
	return out
}

// formerItems returns the elements that version 0.1.0 added.
func (c Config) formerItems() (out []nft.Item) {
	for _, p := range distinct(c.Addrs) {
		out = append(out, c.item(formerMap(nft.FamilyOf(p.Addr())), p, nft.AddrKey(p.Addr())))
	}
	return out
}

// formerMarks returns the marks of the attachments that have elements of version 0.1.0.
func formerMarks(nf *nft.Conn, all []Config) (marks map[string]bool, err error) {
	o := Config{}.former()
	chain, err := nf.Chain(o.Layout.Table, formerChain)
	if err != nil || chain == nil {
		return nil, err
	}
	var items []nft.Item
	for _, c := range all {
		items = append(items, c.formerItems()...)
	}
	live, err := o.Live(nf, items, func(string) bool { return true })
	marks = map[string]bool{}
	for _, it := range live {
		marks[it.Comment] = true
	}
	return marks, err
}

func (c Config) item(set string, p netip.Prefix, key ...[]byte) nft.Item {
	return nft.Item{Set: set, Name: "address " + p.Addr().String(),
		Element: nft.Element{Key: nft.Key(key...), Goto: c.chainName(p), Comment: c.Attachment.Mark()}}
}

// keyAddr returns the address at the end of an element's key.
func keyAddr(it nft.Item) netip.Addr {
	size := net.IPv6len
	if strings.HasPrefix(it.Set, "masq4") {
		size = net.IPv4len
	}
	addr, _ := netip.AddrFromSlice(it.Key[len(it.Key)-size:])
	return addr
}

// distinct returns the valid prefixes. Of several prefixes with the same address, it returns only the first.
func distinct(addrs []netip.Prefix) (out []netip.Prefix) {
	seen := map[netip.Addr]bool{}
	for _, p := range addrs {
		if p.IsValid() && !seen[p.Addr()] {
			seen[p.Addr()] = true
			out = append(out, p)
		}
	}
	return out
}
