package node

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

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
	Returns    bool   // the rule ends its chain, also after a Target that does not decide
	conditions []condition
}

// Verdicts of the kernel (NF_DROP, NF_ACCEPT), which golang.org/x/sys does not define.
const (
	verdictDrop   = 0
	verdictAccept = 1
)

// queue is the target of iptables that lets a program decide about packets.
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

// setReader returns the elements of a set.
type setReader func(set string) ([]nft.Element, error)

// ruleReader builds the summary of a rule from its expressions, in their order: one expression loads a field of the
// packet into a register, and later ones mask it, compare it or look it up in a set.
type ruleReader struct {
	RuleSummary
	elements  setReader
	branches  []RuleSummary // one for each element of a verdict map
	field     field         // the loaded field
	isIndex   bool          // the field is the index of an interface
	offset    uint64        // of an address in the packet's header
	mask      []byte        // the bits of the field that are compared; nil = all
	isPending bool          // the field was not yet compared
	err       error
}

func (r *ruleReader) read(name string, data []byte) {
	switch name {
	case "counter", "log":
	case "meta":
		key := nlattr.GetNumber(data, unix.NFTA_META_KEY)
		r.load(metaField(key), nlattr.Get(data, unix.NFTA_META_SREG))
		r.isIndex = key == unix.NFT_META_IIF || key == unix.NFT_META_OIF
	case "ct":
		isState := nlattr.GetNumber(data, unix.NFTA_CT_KEY) == unix.NFT_CT_STATE
		r.load(map[bool]field{true: ctState}[isState], nlattr.Get(data, unix.NFTA_CT_SREG))
	case "payload":
		r.offset = nlattr.GetNumber(data, unix.NFTA_PAYLOAD_OFFSET)
		loaded := otherField
		if nlattr.GetNumber(data, unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER {
			loaded = map[uint64]field{12: source, 8: source, 16: destination, 24: destination}[r.offset]
		}
		r.load(loaded, nlattr.Get(data, unix.NFTA_PAYLOAD_SREG))
	case "bitwise":
		r.mask = nlattr.Get(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
	case "cmp":
		r.compare(data)
	case "lookup":
		r.lookUp(data)
	case "immediate":
		code := nlattr.Get(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE)
		if len(code) == 4 {
			switch int32(binary.BigEndian.Uint32(code)) {
			case verdictDrop:
				r.Drops = true
			case verdictAccept:
				r.Accepts = true
			case unix.NFT_RETURN, unix.NFT_GOTO:
				r.Returns = true
			}
		}
	case "reject":
		r.Drops = true
	case "target", "match": // extensions of iptables, whose attributes have the same numbers for both
		r.extend(nlattr.GetString(data, unix.NFTA_MATCH_NAME), nlattr.Get(data, unix.NFTA_MATCH_INFO))
	default:
		r.Accepts = r.Accepts || name == "queue"
		r.conditions = append(r.conditions, condition{})
		r.field, r.isPending = otherField, slices.Contains(loaders, name)
	}
}

// loaders are the expressions that load a field that is not evaluated, or change it.
var loaders = []string{"byteorder", "exthdr", "fib", "hash", "numgen", "osf", "rt", "socket", "tunnel", "xfrm"}

func metaField(key uint64) field {
	return map[uint64]field{unix.NFT_META_IIFNAME: inLink, unix.NFT_META_IIF: inLink, unix.NFT_META_OIFNAME: outLink,
		unix.NFT_META_OIF: outLink, unix.NFT_META_NFPROTO: family, unix.NFT_META_MARK: fwmark}[key]
}

// load notes the field that an expression loads. An expression with a source register writes to the packet instead. A
// second field before a comparison is the next part of a concatenation.
func (r *ruleReader) load(loaded field, sourceRegister []byte) {
	if r.isPending {
		loaded = otherField
	}
	r.field, r.mask, r.isPending = loaded, nil, sourceRegister == nil
}

// compare adds the condition that the loaded field has a value, or that it does not have it.
func (r *ruleReader) compare(data []byte) {
	op := nlattr.GetNumber(data, unix.NFTA_CMP_OP)
	if op != unix.NFT_CMP_EQ && op != unix.NFT_CMP_NEQ {
		r.field = otherField
	}
	r.addCondition(op == unix.NFT_CMP_NEQ, nlattr.Get(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE))
}

// lookUp adds the condition that the loaded field is in a set, or a branch for each element of a verdict map. It only
// evaluates sets of interfaces and states without intervals.
func (r *ruleReader) lookUp(data []byte) {
	register := nlattr.Get(data, unix.NFTA_LOOKUP_DREG)
	isMap := register != nil && nlattr.GetNumber(register) == unix.NFT_REG_VERDICT
	isRead := (r.field == inLink || r.field == outLink || r.field == ctState) && (register == nil || isMap)
	var elements []nft.Element
	if isRead {
		elements, r.err = r.elements(nlattr.GetString(data, unix.NFTA_LOOKUP_SET))
	}
	if !isRead || slices.ContainsFunc(elements, func(e nft.Element) bool { return e.IsEnd }) {
		r.field, isRead = otherField, false
	}
	if !isRead || !isMap {
		r.Accepts = r.Accepts || isMap
		var keys [][]byte
		for _, e := range elements {
			keys = append(keys, e.Key)
		}
		r.addCondition(nlattr.GetNumber(data, unix.NFTA_LOOKUP_FLAGS) != 0, keys...)
		return
	}
	r.isPending = false
	for _, e := range elements {
		b := RuleSummary{Chain: r.Chain, Number: r.Number, Target: e.Goto, Accepts: e.Accepts}
		b.conditions = append(b.conditions, r.condition(false, e.Key))
		r.branches = append(r.branches, b)
	}
}

func (r *ruleReader) addCondition(isInverted bool, keys ...[]byte) {
	r.conditions = append(r.conditions, r.condition(isInverted, keys...))
	r.isPending = false
}

func (r *ruleReader) condition(isInverted bool, keys ...[]byte) condition {
	c := condition{field: r.field, isInverted: isInverted}
	for _, key := range keys {
		v, isKnown := r.value(key)
		if !isKnown {
			return condition{}
		}
		c.values = append(c.values, v)
	}
	return c
}

func (r *ruleReader) value(key []byte) (v value, isKnown bool) {
	switch {
	case r.field == otherField:
		return v, false
	case r.field == source || r.field == destination:
		v.network, isKnown = r.networkOf(key)
		return v, isKnown
	case r.field == family && len(key) == 1:
		v.number, v.mask = uint32(key[0]), 0xff
	case (r.field == inLink || r.field == outLink) && !r.isIndex:
		v.link = linkPattern(key)
	case len(key) == 4:
		v.number, v.mask = binary.NativeEndian.Uint32(key), ^uint32(0)
		if len(r.mask) == 4 {
			v.mask = binary.NativeEndian.Uint32(r.mask)
		}
	default:
		return v, false
	}
	return v, true
}

// linkPattern returns an interface name from a rule or a set. A name without its terminating zero is a prefix, to which
// linkPattern adds "*".
func linkPattern(value []byte) string {
	if bytes.HasSuffix(value, []byte{0}) {
		return nlattr.Text(value)
	}
	return string(value) + "*"
}

// networkOf returns the network with which a masked address is compared.
func (r *ruleReader) networkOf(key []byte) (p netip.Prefix, ok bool) {
	size := net.IPv6len
	if r.offset == 12 || r.offset == 16 { // in the header of IPv4
		size = net.IPv4len
	}
	if len(key) > size {
		return p, false
	}
	addr, bits := make([]byte, size), net.CIDRMask(8*len(key), 8*size)
	copy(addr, key)
	copy(bits, r.mask)
	from, _ := netip.AddrFromSlice(addr)
	ones, _ := bits.Size()
	return netip.PrefixFrom(from, ones), true
}

// extend adds an extension of iptables.
func (r *ruleReader) extend(name string, info []byte) {
	const stateOnly, end = 1, 152 // XT_CONNTRACK_STATE, and the end of state_mask in xt_conntrack_mtinfo3
	c, native := condition{}, binary.NativeEndian
	switch {
	case name == "comment":
		return
	case name == "REJECT":
		r.Drops = true
		return
	case name == "conntrack" && len(info) >= end && native.Uint16(info[146:]) == stateOnly:
		c = stateCondition(uint32(native.Uint16(info[150:])), native.Uint16(info[148:]) != 0)
	}
	r.Accepts = r.Accepts || name == queue
	r.conditions = append(r.conditions, c)
}

// stateCondition returns the condition that the state of the connection is one of the bits, or that it is none of them.
// It is unknown for bits of other facts, such as translation.
func stateCondition(bits uint32, isInverted bool) condition {
	if bits >= 1<<4 {
		return condition{}
	}
	return condition{field: ctState, isInverted: !isInverted, values: []value{{mask: bits}}}
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
		if i+1 < len(r.Args) && !strings.HasPrefix(r.Args[i+1], "-") && r.Args[i+1] != "!" {
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
			c.values = []value{{network: network}}
			return c
		}
	case "--ctstate", "--state":
		bits := uint32(0)
		for _, word := range strings.Split(text, ",") {
			bit, isState := map[string]uint32{"INVALID": 1, "ESTABLISHED": ctEstablished, "RELATED": 1 << 2,
				"NEW": ctNew}[word]
			if !isState {
				return condition{}
			}
			bits |= bit
		}
		return stateCondition(bits, isInverted)
	}
	return condition{}
}
