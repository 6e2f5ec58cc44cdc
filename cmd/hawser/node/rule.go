package node

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// RuleSummary describes which packets a rule matches and what it does with them. Unknown expressions are treated as
// conditions with an unknown effect.
type RuleSummary struct {
	Chain         string         // the chain that contains the rule
	Target        string         // the chain that the rule jumps or goes to; empty = none
	Drops         bool           // the rule drops or rejects packets
	MayAccept     bool           // the rule accepts packets, or a map decides what happens to them
	Unconditional bool           // the rule has no condition
	MatchesOne    bool           // its only condition is one interface, one set of interfaces or one network
	Links         []string       // interfaces that it compares with: a name, or a prefix and "*"
	SetLinks      []string       // interfaces in its sets; a packet needs to match only one of them
	Indexes       []int          // interface indexes that it compares with, or that are in its sets
	Networks      []netip.Prefix // source or destination networks
	Compared      []string       // all values that it compares with, as bytes
}

// Verdicts of the kernel (NF_DROP, NF_ACCEPT), which golang.org/x/sys does not define.
const (
	verdictDrop   = 0
	verdictAccept = 1
)

// ReadRules returns summaries of a chain's rules, in order. An empty name selects all chains of the table.
func ReadRules(c *nft.Conn, t nft.Table, chain string) (all []RuleSummary, err error) {
	rules, err := c.Rules(t, chain)
	for _, rule := range rules {
		r := readRule(rule)
		for _, lookup := range r.lookups {
			elements, err := c.Elements(t, nlattr.GetString(lookup, unix.NFTA_LOOKUP_SET))
			if err != nil {
				return all, err
			}
			r.addElements(elements, isMapLookup(lookup))
		}
		all = append(all, r.RuleSummary)
	}
	return all, err
}

// ruleReader builds the summary of a rule from its expressions, in their order: one expression loads a field of the
// packet into a register, and later ones mask it, compare it or look it up in a set.
type ruleReader struct {
	RuleSummary
	conditions int
	lookups    [][]byte // lookups of interfaces in sets and maps
	field      string   // the loaded field, as fieldName returns it
	load       []byte   // the attributes of the expression that loaded it
	mask       []byte   // the bits of the field that are compared; nil = all
}

func readRule(rule nft.LiveRule) ruleReader {
	r := ruleReader{RuleSummary: RuleSummary{Chain: rule.Chain, Target: rule.Target, Unconditional: true}}
	for _, x := range nlattr.All(rule.Exprs) {
		r.read(nlattr.GetString(x, unix.NFTA_EXPR_NAME), nlattr.Get(x, unix.NFTA_EXPR_DATA))
	}
	values := len(r.Links) + len(r.Indexes) + len(r.Networks) + len(r.lookups)
	r.MatchesOne = r.conditions == 1 && values == 1
	return r
}

// read adds one expression to the summary. Expressions for which it returns early are not conditions.
func (r *ruleReader) read(name string, data []byte) {
	switch name {
	case "counter", "log":
		return
	case "immediate":
		verdict := nlattr.Get(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
		code := nlattr.GetNumber(verdict, unix.NFTA_VERDICT_CODE)
		r.Drops = r.Drops || verdict != nil && code == verdictDrop
		r.MayAccept = r.MayAccept || verdict != nil && code == verdictAccept
		return
	case "reject":
		r.Drops = true
		return
	case "target", "match": // extensions of iptables; the attribute of the name has the same number for both
		switch nlattr.GetString(data, unix.NFTA_TARGET_NAME) {
		case "comment":
			return
		case "REJECT":
			r.Drops = true
			return
		}
	}
	r.Unconditional = false
	switch name {
	case "meta", "payload":
		r.field, r.load, r.mask = fieldName(name, data), data, nil
	case "bitwise":
		r.mask = nlattr.Get(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
	case "cmp":
		r.readCompare(data)
	case "lookup":
		r.conditions++
		r.MayAccept = r.MayAccept || isMapLookup(data)
		isInverted := nlattr.GetNumber(data, unix.NFTA_LOOKUP_FLAGS) != 0
		if !isInverted && (r.field == "ifname" || r.field == "ifindex") {
			r.lookups = append(r.lookups, data)
		}
	case "match", "range", "limit", "quota", "connlimit":
		r.conditions++
	}
}

func (r *ruleReader) readCompare(data []byte) {
	value := nlattr.Get(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
	r.Compared = append(r.Compared, string(value))
	if r.field != "family" {
		r.conditions++
	}
	if nlattr.GetNumber(data, unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ {
		return
	}
	switch {
	case r.field == "ifname":
		r.Links = append(r.Links, linkPattern(value))
	case r.field == "ifindex" && len(value) == 4:
		r.Indexes = append(r.Indexes, int(binary.NativeEndian.Uint32(value)))
	case r.field == "payload":
		if p, ok := comparedNetwork(r.load, value, r.mask); ok {
			r.Networks = append(r.Networks, p)
		}
	}
}

// addElements adds the interfaces in a set, or the interfaces whose packets a verdict map accepts.
func (r *ruleReader) addElements(elements []nft.Element, isMap bool) {
	for _, e := range elements {
		switch {
		case isMap && !e.Accepts:
		case len(e.Key) == 4:
			r.Indexes = append(r.Indexes, int(binary.NativeEndian.Uint32(e.Key)))
		default:
			r.SetLinks = append(r.SetLinks, linkPattern(e.Key))
		}
	}
}

// isMapLookup reports whether a lookup reads a map, which may return a verdict.
func isMapLookup(lookup []byte) bool { return nlattr.Get(lookup, unix.NFTA_LOOKUP_DREG) != nil }

// fieldName returns "ifname", "ifindex" or "family" for these fields, and otherwise the name of the expression that
// loads the field.
func fieldName(expr string, data []byte) string {
	if expr == "meta" {
		switch nlattr.GetNumber(data, unix.NFTA_META_KEY) {
		case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
			return "ifname"
		case unix.NFT_META_IIF, unix.NFT_META_OIF:
			return "ifindex"
		case unix.NFT_META_NFPROTO:
			return "family"
		}
	}
	return expr
}

// linkPattern returns an interface name from a rule or a set. A name without its terminating zero is a prefix, to which
// linkPattern adds "*".
func linkPattern(value []byte) string {
	if bytes.HasSuffix(value, []byte{0}) {
		return nlattr.Text(value)
	}
	return string(value) + "*"
}

// comparedNetwork returns the network that a masked header field is compared with. ok is false if the field is not a
// source or destination address.
func comparedNetwork(load, value, mask []byte) (p netip.Prefix, ok bool) {
	size := 0
	switch nlattr.GetNumber(load, unix.NFTA_PAYLOAD_OFFSET) {
	case 12, 16: // source and destination in the header of IPv4
		size = net.IPv4len
	case 8, 24: // in the header of IPv6
		size = net.IPv6len
	}
	base := nlattr.GetNumber(load, unix.NFTA_PAYLOAD_BASE)
	if base != unix.NFT_PAYLOAD_NETWORK_HEADER || len(value) > size {
		return p, false
	}
	addr, bits := make([]byte, size), net.CIDRMask(8*len(value), 8*size)
	copy(addr, value)
	copy(bits, mask)
	from, _ := netip.AddrFromSlice(addr)
	ones, _ := bits.Size()
	return netip.PrefixFrom(from, ones), true
}
