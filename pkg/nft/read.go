package nft

import (
	"bytes"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// LiveRule is a rule in the kernel.
type LiveRule struct {
	Chain   string
	Handle  uint64
	Comment string
	Target  string // the chain that the rule jumps or goes to; empty = none
	Exprs   []byte // the list of its expressions; see package nlattr
}

// LiveChain is a chain in the kernel.
type LiveChain struct {
	Name    string
	Hook    *Hook // nil for a chain that is reached only by jumps
	Drops   bool  // the policy of the base chain is drop
	Table   Table
	Comment string
	use     uint64 // number of its rules, plus the number of rules and elements that refer to it
}

// Chain returns the chain, or nil if it does not exist.
func (c *Conn) Chain(t Table, name string) (*LiveChain, error) {
	replies, err := c.query(t.chainMessage(unix.NFT_MSG_GETCHAIN, "get", name))
	if err != nil || replies[0] == nil {
		return nil, err
	}
	chain := decodeChain(t.Family, replies[0])
	return &chain, nil
}

// Chains returns all chains of the table, or of all tables for the zero Table. Its cost grows with the number of chains
// of the family.
func (c *Conn) Chains(t Table) ([]LiveChain, error) {
	replies, err := c.list(t.message(unix.NFT_MSG_GETCHAIN, ""))
	var out []LiveChain
	for _, r := range replies {
		chain := decodeChain(Family(r[0]), r[nfgenmsgSize:])
		if t == (Table{}) || t == chain.Table {
			out = append(out, chain)
		}
	}
	return out, err
}

// Rules returns the rules of the chain, in order. An empty name selects all chains. A missing chain has no rules.
func (c *Conn) Rules(t Table, chain string) ([]LiveRule, error) {
	m := t.message(unix.NFT_MSG_GETRULE, "")
	if chain != "" {
		m.body = append(m.body, nlattr.String(unix.NFTA_RULE_CHAIN, chain)...)
	}
	replies, err := c.list(m)
	out := make([]LiveRule, 0, len(replies))
	for _, r := range replies {
		out = append(out, decodeRule(r[nfgenmsgSize:]))
	}
	return out, err
}

// Get returns the element of each key, or nil for a key without an element.
func (c *Conn) Get(t Table, set string, keys ...[]byte) ([]*Element, error) {
	items := make([]Item, len(keys))
	for i, key := range keys {
		items[i] = Item{Set: set, Element: Element{Key: key}}
	}
	return c.get(t, items)
}

// get returns the element of each item's key, or nil for a key without an element.
func (c *Conn) get(t Table, items []Item) ([]*Element, error) {
	msgs := make([]message, len(items))
	for i, it := range items {
		key := elementList([]Element{it.Element}, Element.encodeKey)
		msgs[i] = t.elementMessage(unix.NFT_MSG_GETSETELEM, "", it.Set, key)
	}
	replies, err := c.query(msgs...)
	if err != nil {
		return nil, err
	}
	out := make([]*Element, len(items))
	for i, r := range replies {
		for _, e := range decodeElements(r) {
			out[i] = &e
		}
	}
	return out, nil
}

// Elements returns all elements of the set, or none if it does not exist. Its cost grows with their number.
//
// The kernel lists a set in parts. If the set grows concurrently, the list can repeat one element and omit another.
// Elements therefore reads the set again if a key is repeated or the ruleset has changed, with growing pauses. A caller
// must tolerate an omission without these signs: the next GC finds the element.
func (c *Conn) Elements(t Table, set string) ([]Element, error) {
	m := t.elementMessage(unix.NFT_MSG_GETSETELEM, "list", set)
	for attempt := range 100 {
		if attempt > 3 {
			<-time.After(time.Duration(attempt) * time.Millisecond)
		}
		parts, err := c.list(m)
		var out []Element
		type boundary struct { // an interval may begin where another one ends
			key   string
			isEnd bool
		}
		isWhole, seen := true, map[boundary]bool{}
		for _, part := range parts {
			isWhole = isWhole && bytes.Equal(generation(part), generation(parts[0]))
			for _, e := range decodeElements(part[nfgenmsgSize:]) {
				key := boundary{string(e.Key), e.IsEnd}
				isWhole = isWhole && !seen[key]
				seen[key] = true
				out = append(out, e)
			}
		}
		if isWhole || err != nil {
			return out, err
		}
	}
	return nil, c.readError(m, nl.ErrDumpInterrupted)
}

// generation returns the version of the ruleset in an answer (res_id of struct nfgenmsg).
func generation(answer []byte) []byte { return answer[2:nfgenmsgSize] }

func decodeChain(f Family, data []byte) LiveChain {
	c := LiveChain{
		Name:  nlattr.GetString(data, unix.NFTA_CHAIN_NAME),
		Table: Table{f, nlattr.GetString(data, unix.NFTA_CHAIN_TABLE)},
		use:   nlattr.GetNumber(data, unix.NFTA_CHAIN_USE),

		Comment: udata(nlattr.Get(data, attrChainUserdata), udataComment),
	}
	if nlattr.Get(data, unix.NFTA_CHAIN_HOOK) != nil {
		c.Hook = &Hook{
			Type:     nlattr.GetString(data, unix.NFTA_CHAIN_TYPE),
			Point:    uint32(nlattr.GetNumber(data, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_HOOKNUM)),
			Priority: int32(nlattr.GetNumber(data, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_PRIORITY)),
		}
		c.Drops = nlattr.GetNumber(data, unix.NFTA_CHAIN_POLICY) != acceptPacket
	}
	return c
}

func decodeRule(data []byte) LiveRule {
	r := LiveRule{
		Chain:   nlattr.GetString(data, unix.NFTA_RULE_CHAIN),
		Comment: udata(nlattr.Get(data, unix.NFTA_RULE_USERDATA), udataComment),
		Handle:  nlattr.GetNumber(data, unix.NFTA_RULE_HANDLE),
		Exprs:   nlattr.Get(data, unix.NFTA_RULE_EXPRESSIONS),
	}
	for _, value := range r.operands("immediate", unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT,
		unix.NFTA_VERDICT_CHAIN) {
		r.Target = unix.ByteSliceToString(value)
	}
	return r
}

// operands returns the values at a path of attributes in all expressions with this name.
func (r LiveRule) operands(name string, path ...uint16) (out [][]byte) {
	for _, x := range nlattr.All(r.Exprs) {
		value := nlattr.Get(nlattr.Get(x, unix.NFTA_EXPR_DATA), path...)
		if value != nil && nlattr.GetString(x, unix.NFTA_EXPR_NAME) == name {
			out = append(out, value)
		}
	}
	return out
}

// hasExprs reports whether the rule has exactly these expressions. Counters are ignored.
func (r LiveRule) hasExprs(want [][]byte) bool {
	i := 0
	for _, x := range nlattr.All(r.Exprs) {
		if nlattr.GetString(x, unix.NFTA_EXPR_NAME) == "counter" {
			continue
		}
		if i == len(want) || !nlattr.Contains(x, want[i]) {
			return false
		}
		i++
	}
	return i == len(want)
}

// Mentions reports whether the rule compares a field with the value or translates to it. The value is an address or a
// port.
func (r LiveRule) Mentions(value []byte) bool {
	values := append(r.ComparedValues(len(value)), r.LoadedValues(len(value))...)
	return slices.ContainsFunc(values, func(v []byte) bool { return bytes.Equal(v, value) })
}

// ComparedValues returns the values with which the rule compares fields. If size is not 0, it omits values whose number
// of bytes is not size.
func (r LiveRule) ComparedValues(size int) [][]byte {
	return filterSize(size, r.operands("cmp", unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE))
}

// LoadedValues returns the values to which the rule translates addresses and ports. For size, see ComparedValues.
func (r LiveRule) LoadedValues(size int) [][]byte {
	return filterSize(size, r.operands("immediate", unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE))
}

func filterSize(size int, values [][]byte) [][]byte {
	return slices.DeleteFunc(values, func(v []byte) bool { return size > 0 && len(v) != size })
}

// IsOneOf reports whether the rule, in a table of the family, is equal to one of rules.
func (r LiveRule) IsOneOf(f Family, rules ...Rule) bool {
	return slices.ContainsFunc(rules, func(rule Rule) bool { return r.hasExprs(rule.compile(f)) })
}
