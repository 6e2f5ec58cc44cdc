package node

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// RuleSummary describes which packets a rule matches and what it does with them. A rule with a verdict map has a
// summary for each element of the map. Expressions that are not evaluated are conditions of an unknown effect.
type RuleSummary struct {
	Chain      string // the chain that contains the rule
	Number     int    // position in the chain, from 1
	Target     string // the chain that the rule jumps or goes to; empty = none
	Drops      bool   // the rule drops or rejects packets
	Accepts    bool   // the rule accepts packets, or another program decides about them
	Returns    bool   // the rule ends the chain for its packets: a return, or a goto to the Target
	conditions []condition
}

// Verdicts of the kernel (NF_DROP, NF_ACCEPT), which golang.org/x/sys does not define.
const (
	verdictDrop   = 0
	verdictAccept = 1
)

// queue is the target of iptables that passes packets to a program, which decides about them.
const queue = "NFQUEUE"

// ReadRules returns summaries of a chain's rules, in order. An empty name selects all chains of the table.
func ReadRules(c *nft.Conn, t nft.Table, chain string) (all []RuleSummary, err error) {
	rules, err := c.Rules(t, chain)
	elements := func(set string) ([]nft.Element, error) { return c.Elements(t, set) }
	numbers := map[string]int{}
	for _, rule := range rules {
		numbers[rule.Chain]++
		summaries, err := readRule(rule, numbers[rule.Chain], elements)
		if err != nil {
			return all, err
		}
		all = append(all, summaries...)
	}
	return all, err
}

func readRule(rule nft.LiveRule, number int, elements setReader) ([]RuleSummary, error) {
	r := ruleReader{elements: elements}
	r.Chain, r.Number, r.Target = rule.Chain, number, rule.Target
	for _, x := range nlattr.All(rule.Exprs) {
		r.read(nlattr.GetString(x, unix.NFTA_EXPR_NAME), nlattr.Get(x, unix.NFTA_EXPR_DATA))
	}
	if r.branches == nil {
		return []RuleSummary{r.RuleSummary}, r.err
	}
	for i := range r.branches {
		r.branches[i].conditions = append(r.branches[i].conditions, r.conditions...)
	}
	return r.branches, r.err
}

type setReader func(set string) ([]nft.Element, error)

// ruleReader builds the summary of a rule from its expressions, in their order: one expression loads a field of the
// packet into a register, and later ones mask it, compare it or look it up in a set.
type ruleReader struct {
	RuleSummary
	elements  setReader
	branches  []RuleSummary // one for each element of a verdict map
	field     field         // the loaded field
	isIndex   bool          // the field is the index of an interface
	offset    uint64        // of the field in the packet's header, in bytes
	mask      []byte        // the bits of the field that are compared; nil = all
	isPending bool          // no expression has compared the field
	err       error
}

func (r *ruleReader) read(name string, data []byte) {
	switch name {
	case "counter", "last", "log":
	case "meta":
		key := nlattr.GetNumber(data, unix.NFTA_META_KEY)
		r.load(metaField(key), nlattr.Get(data, unix.NFTA_META_SREG))
		r.isIndex = key == unix.NFT_META_IIF || key == unix.NFT_META_OIF
	case "ct":
		loaded := map[uint64]field{unix.NFT_CT_STATE: ctState, unix.NFT_CT_STATUS: ctStatus}
		r.load(loaded[nlattr.GetNumber(data, unix.NFTA_CT_KEY)], nlattr.Get(data, unix.NFTA_CT_SREG))
	case "payload":
		r.offset = nlattr.GetNumber(data, unix.NFTA_PAYLOAD_OFFSET)
		loaded := otherField
		if nlattr.GetNumber(data, unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER {
			// IPv4 has the addresses at 12 and 16, IPv6 at 8 and 24.
			loaded = map[uint64]field{9: protocol, 12: source, 8: source, 16: destination, 24: destination}[r.offset]
		}
		r.load(loaded, nlattr.Get(data, unix.NFTA_PAYLOAD_SREG))
	case "bitwise":
		r.mask = nlattr.Get(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
	case "cmp":
		r.compare(data)
	case "lookup":
		r.lookUp(data)
	case "immediate":
		r.setVerdict(nlattr.Get(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE))
	case "reject":
		r.Drops = true
	case "target", "match": // extensions of iptables; the attributes of both have the same numbers
		r.readExtension(nlattr.GetString(data, unix.NFTA_MATCH_NAME), nlattr.Get(data, unix.NFTA_MATCH_INFO))
	default:
		if name == "objref" && nlattr.GetNumber(data, unix.NFTA_OBJREF_IMM_TYPE) == unix.NFT_OBJECT_COUNTER {
			return
		}
		r.Accepts = r.Accepts || name == "queue"
		r.conditions = append(r.conditions, condition{})
		r.field, r.isPending = otherField, slices.Contains(loaders, name)
	}
}

// setVerdict adds the verdict of a rule, or of an element of a verdict map. An empty code is no verdict.
func (r *RuleSummary) setVerdict(code []byte) {
	if len(code) != 4 {
		return
	}
	switch int32(binary.BigEndian.Uint32(code)) {
	case verdictDrop:
		r.Drops = true
	case verdictAccept:
		r.Accepts = true
	case unix.NFT_RETURN, unix.NFT_GOTO:
		r.Returns = true
	}
}

// loaders are the expressions that load a field that is not evaluated, or change it.
var loaders = []string{"byteorder", "exthdr", "fib", "hash", "numgen", "osf", "rt", "socket", "tunnel", "xfrm"}

func metaField(key uint64) field {
	return map[uint64]field{unix.NFT_META_IIFNAME: inLink, unix.NFT_META_IIF: inLink, unix.NFT_META_OIFNAME: outLink,
		unix.NFT_META_OIF: outLink, unix.NFT_META_NFPROTO: family, unix.NFT_META_L4PROTO: protocol,
		unix.NFT_META_MARK: fwmark}[key]
}

// load sets the loaded field. An expression with a source register loads nothing, but writes to the packet. A second
// field before a comparison is the next part of a concatenation, which is not evaluated.
func (r *ruleReader) load(loaded field, sourceRegister []byte) {
	if r.isPending {
		loaded = otherField
	}
	r.field, r.mask, r.isPending = loaded, nil, sourceRegister == nil
}

// compare adds the condition that the loaded field is equal to a value, or not equal.
func (r *ruleReader) compare(data []byte) {
	op := nlattr.GetNumber(data, unix.NFTA_CMP_OP)
	if op != unix.NFT_CMP_EQ && op != unix.NFT_CMP_NEQ {
		r.field = otherField
	}
	c := condition{}
	if v, isKnown := r.value(nlattr.Get(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)); isKnown {
		c = condition{field: r.field, isInverted: op == unix.NFT_CMP_NEQ, values: []value{v}}
	}
	r.conditions, r.isPending = append(r.conditions, c), false
}

// lookUp adds the condition that the loaded field is in a set, or a branch for each element of a verdict map.
func (r *ruleReader) lookUp(data []byte) {
	register := nlattr.Get(data, unix.NFTA_LOOKUP_DREG)
	isMap := register != nil && nlattr.GetNumber(register) == unix.NFT_REG_VERDICT
	c, elements := condition{}, []nft.Element(nil)
	if r.err == nil && r.field != otherField && (register == nil || isMap) {
		elements, r.err = r.elements(nlattr.GetString(data, unix.NFTA_LOOKUP_SET))
		c, elements = r.setCondition(elements)
	}
	c.isInverted = nlattr.GetNumber(data, unix.NFTA_LOOKUP_FLAGS) != 0
	r.isPending = false
	if !isMap || c.field == otherField {
		r.Accepts = r.Accepts || isMap // an element of a map that is not evaluated may accept packets
		r.conditions = append(r.conditions, c)
		return
	}
	for i, e := range elements {
		b := RuleSummary{Chain: r.Chain, Number: r.Number, Target: e.Goto}
		b.setVerdict(e.Verdict)
		b.conditions = []condition{{field: c.field, values: c.values[i : i+1]}}
		r.branches = append(r.branches, b)
	}
}

// setCondition returns the condition that the loaded field has a value of the set, and the element of each value. An
// element that only ends an interval has no value.
func (r *ruleReader) setCondition(set []nft.Element) (c condition, elements []nft.Element) {
	hasIntervals := slices.ContainsFunc(set, func(e nft.Element) bool { return e.IsEnd })
	sort.Slice(set, func(i, j int) bool { // slices.SortFunc would add 16 kB to the program
		c := bytes.Compare(set[i].Key, set[j].Key)
		return c < 0 || c == 0 && set[i].IsEnd && !set[j].IsEnd // an interval may begin where another one ends
	})
	c.field = r.field
	for i, e := range set {
		if e.IsEnd {
			continue
		}
		v, isKnown := r.value(e.Key)
		if hasIntervals {
			end := []byte(nil) // nil = the interval has no end
			if i+1 < len(set) {
				end = set[i+1].Key
			}
			v, isKnown = r.interval(e.Key, end)
		}
		if !isKnown {
			return condition{}, nil
		}
		c.values, elements = append(c.values, v), append(elements, e)
	}
	return c, elements
}

// interval returns the values from begin up to, but not including end. isKnown is false for a range of interface names
// that is neither one name nor all names with a prefix.
func (r *ruleReader) interval(begin, end []byte) (v value, isKnown bool) {
	switch {
	case len(begin) == 0 || r.mask != nil || r.isIndex:
	case r.field == source || r.field == destination:
		if v, isKnown = r.networkOf(begin); isKnown {
			v.last = lastOf(v.first, 0)
		}
		if next, ok := netip.AddrFromSlice(end); ok {
			v.last = next.Prev()
		}
	case r.field == inLink || r.field == outLink:
		v.link = unix.ByteSliceToString(begin)
		// The interval of one name ends at the key plus 1. The interval of a prefix ends at the prefix plus 1.
		for suffix, length := range map[string]int{"": len(begin), "*": max(len(v.link), 1)} {
			next := slices.Clone(begin)
			next[length-1]++
			if bytes.Equal(next, end) {
				v.link, isKnown = v.link+suffix, true
			}
		}
	}
	return v, isKnown
}

func (r *ruleReader) value(key []byte) (v value, isKnown bool) {
	switch {
	case r.field == otherField:
		return v, false
	case r.field == source || r.field == destination:
		return r.networkOf(key)
	case (r.field == family || r.field == protocol) && len(key) == 1:
		v.number, v.mask = uint32(key[0]), 0xff
	case (r.field == inLink || r.field == outLink) && !r.isIndex:
		if v.link = unix.ByteSliceToString(key); !bytes.HasSuffix(key, []byte{0}) { // a prefix has no terminating zero
			v.link += "*"
		}
	case len(key) == 4:
		v.number, v.mask = binary.NativeEndian.Uint32(key), ^uint32(0)
		if len(r.mask) == 4 {
			v.mask = binary.NativeEndian.Uint32(r.mask)
		}
		if r.field == ctState {
			v.mask &^= ctTranslated
		}
	default:
		return v, false
	}
	return v, true
}

// networkOf returns the addresses that are equal to key in the bits of the mask. isKnown is false if they are not a
// network.
func (r *ruleReader) networkOf(key []byte) (v value, isKnown bool) {
	size := net.IPv6len
	if r.offset == 12 || r.offset == 16 { // in the header of IPv4
		size = net.IPv4len
	}
	if len(key) > size {
		return v, false
	}
	addr, bits := make([]byte, size), net.CIDRMask(8*len(key), 8*size)
	copy(addr, key)
	copy(bits, r.mask)
	ones, all := bits.Size() // 0, 0 if the mask is not a prefix
	v.first, _ = netip.AddrFromSlice(addr)
	v.last = lastOf(v.first, ones)
	return v, all != 0
}

// lastOf returns the last address of addr's network with this prefix length.
func lastOf(addr netip.Addr, bits int) netip.Addr { return cni.LastOf(netip.PrefixFrom(addr, bits)) }

func (r *ruleReader) readExtension(name string, info []byte) {
	const matchFlags, invertFlags, stateMask, end = 146, 148, 150, 152 // offsets in struct xt_conntrack_mtinfo3
	const stateOnly = 1                                                // XT_CONNTRACK_STATE
	c, native := condition{}, binary.NativeEndian
	switch {
	case name == "comment":
		return
	case name == "REJECT":
		r.Drops = true
		return
	case name == "conntrack" && len(info) >= end && native.Uint16(info[matchFlags:]) == stateOnly:
		c = stateCondition(uint32(native.Uint16(info[stateMask:])), native.Uint16(info[invertFlags:]) != 0)
	}
	r.Accepts = r.Accepts || name == queue
	r.conditions = append(r.conditions, c)
}

// stateCondition returns the condition that a connection has one of the states of iptables' match conntrack or, if
// isInverted is true, none of them.
func stateCondition(bits uint32, isInverted bool) condition {
	const states, translated = 0xf, 3 << 6 // XT_CONNTRACK_STATE_SNAT and _DNAT
	bits = bits&states | bits&translated<<24
	none := value{mask: bits} // all of these bits are 0, so the inverted condition is that one of them is set
	return condition{field: ctState, isInverted: !isInverted, values: []value{none}}
}

func readLegacyRule(r ipt.Rule, number int, isChain func(string) bool) RuleSummary {
	target := r.Option("-j") + r.Option("-g")
	m := RuleSummary{Chain: r.Chain, Number: number, Accepts: target == "ACCEPT" || target == queue,
		Drops: target == "DROP" || target == "REJECT", Returns: target == "RETURN" || r.Option("-g") != ""}
	if target == queue {
		m.conditions = append(m.conditions, condition{})
	}
	if isChain(target) {
		m.Target = target
	}
	isInverted := false
	for i := 0; i < len(r.Args); i++ {
		option, text := r.Args[i], ""
		if i+1 < len(r.Args) && (option == "--comment" || !strings.HasPrefix(r.Args[i+1], "-") && r.Args[i+1] != "!") {
			i++
			text = r.Args[i]
		}
		switch option {
		case "!":
			isInverted = true
			continue
		case "-j", "-g", "-m", "--comment", "--reject-with":
		default:
			m.conditions = append(m.conditions, legacyCondition(option, text, isInverted))
		}
		isInverted = false
	}
	return m
}

func legacyCondition(option, text string, isInverted bool) condition {
	c := condition{isInverted: isInverted}
	switch option {
	case "-i", "-o":
		c.field = map[string]field{"-i": inLink, "-o": outLink}[option]
		c.values = []value{{link: strings.Replace(text, "+", "*", 1)}}
		return c
	case "-s", "-d":
		network, err := netip.ParsePrefix(text)
		if err == nil {
			c.field = map[string]field{"-s": source, "-d": destination}[option]
			c.values = []value{{first: network.Addr(), last: cni.LastOf(network)}}
			return c
		}
	case "-p":
		c.field = protocol
		number := map[string]uint32{"icmp": unix.IPPROTO_ICMP, "ipv6-icmp": unix.IPPROTO_ICMPV6}
		c.values = []value{{number: number[text]}}
		return c
	case "--ctstate", "--state":
		bits := uint32(0)
		for _, word := range strings.Split(text, ",") {
			bit, isState := map[string]uint32{"INVALID": 1, "ESTABLISHED": ctEstablished, "RELATED": 1 << 2,
				"NEW": ctNew, "SNAT": 1 << 6, "DNAT": 1 << 7, "UNTRACKED": 1 << 8}[word]
			if !isState {
				return condition{}
			}
			bits |= bit
		}
		return stateCondition(bits, isInverted)
	}
	return condition{}
}
