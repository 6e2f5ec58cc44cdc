package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// LiveRule is a rule as the kernel has it.
type LiveRule struct {
	Handle  uint64
	Comment string
	// Target is the chain that the rule jumps or goes to, empty when it does neither.
	Target string

	exprs []byte
}

// LiveChain is a chain as the kernel has it.
type LiveChain struct {
	Table Table
	Name  string
	Hook  *Hook // nil for a chain that only jumps lead to

	use uint32 // its rules and what leads to it
}

// HasTable says whether the table exists.
func (c *Conn) HasTable(t Table) (bool, error) {
	var a netlink.Body
	a.Text(unix.NFTA_TABLE_NAME, t.Name)
	replies, err := c.query(message{typ: nfMsg(unix.NFT_MSG_GETTABLE), table: t, body: a})
	return err == nil && replies[0] != nil, err
}

// Chain returns the chain, nil when there is none.
func (c *Conn) Chain(t Table, name string) (*LiveChain, error) {
	replies, err := c.query(chainRef(unix.NFT_MSG_GETCHAIN, t, name))
	if err != nil || replies[0] == nil {
		return nil, err
	}
	chain := decodeChain(t, replies[0])
	return &chain, nil
}

// Chains returns all chains of the table; its cost grows with the number of chains in the family.
func (c *Conn) Chains(t Table) ([]LiveChain, error) {
	replies, err := c.dump(message{typ: nfMsg(unix.NFT_MSG_GETCHAIN), table: t})
	var out []LiveChain
	for _, r := range replies {
		if netlink.Text(netlink.Attribute(r, unix.NFTA_CHAIN_TABLE)) == t.Name {
			out = append(out, decodeChain(t, r))
		}
	}
	return out, err
}

// Rules returns the rules of the chain, in order; none when there is no chain.
func (c *Conn) Rules(t Table, chain string) ([]LiveRule, error) {
	var a netlink.Body
	a.Text(unix.NFTA_RULE_TABLE, t.Name)
	a.Text(unix.NFTA_RULE_CHAIN, chain)
	replies, err := c.dump(message{typ: nfMsg(unix.NFT_MSG_GETRULE), table: t, body: a})
	out := make([]LiveRule, 0, len(replies))
	for _, r := range replies {
		out = append(out, decodeRule(r))
	}
	return out, err
}

// Get returns the elements with these keys, in the order of the keys, nil for those that are not
// there. One round for any 64 of them.
func (c *Conn) Get(t Table, set string, keys ...[]byte) ([]*Element, error) {
	msgs := make([]message, len(keys))
	for i, key := range keys {
		var list netlink.Body
		list.Nest(unix.NFTA_LIST_ELEM, Element{Key: key}.encode(false))
		body := setRef(t, set)
		body.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)
		msgs[i] = message{typ: nfMsg(unix.NFT_MSG_GETSETELEM), table: t, body: body}
	}
	replies, err := c.query(msgs...)
	if err != nil {
		return nil, err
	}
	out := make([]*Element, len(keys))
	for i, r := range replies {
		for _, e := range decodeElements(r) {
			out[i] = &e
		}
	}
	return out, nil
}

// Elements returns all elements of the set, none when there is no set; its cost grows with them.
func (c *Conn) Elements(t Table, set string) ([]Element, error) {
	replies, err := c.dump(message{typ: nfMsg(unix.NFT_MSG_GETSETELEM), table: t, body: setRef(t, set)})
	var out []Element
	for _, r := range replies {
		out = append(out, decodeElements(r)...)
	}
	return out, err
}

func decodeChain(t Table, data []byte) LiveChain {
	c := LiveChain{Table: t}
	for typ, val := range netlink.Attributes(data) {
		switch typ {
		case unix.NFTA_CHAIN_NAME:
			c.Name = netlink.Text(val)
		case unix.NFTA_CHAIN_USE:
			c.use = netNumber(val)
		case unix.NFTA_CHAIN_HOOK:
			c.hook().Point = HookPoint(netNumber(netlink.Attribute(val, unix.NFTA_HOOK_HOOKNUM)))
			c.hook().Priority = int32(netNumber(netlink.Attribute(val, unix.NFTA_HOOK_PRIORITY)))
		case unix.NFTA_CHAIN_TYPE:
			c.hook().Type = netlink.Text(val)
		}
	}
	return c
}

func (c *LiveChain) hook() *Hook {
	if c.Hook == nil {
		c.Hook = &Hook{}
	}
	return c.Hook
}

func decodeRule(data []byte) LiveRule {
	var r LiveRule
	for typ, val := range netlink.Attributes(data) {
		switch typ {
		case unix.NFTA_RULE_HANDLE:
			if len(val) == 8 {
				r.Handle = binary.BigEndian.Uint64(val)
			}
		case unix.NFTA_RULE_USERDATA:
			r.Comment = udata(val, udataComment)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.exprs = val
			r.Target = target(val)
		}
	}
	return r
}

// target finds the chain of a jump or goto among expressions, whoever wrote them.
func target(exprs []byte) string {
	for _, e := range netlink.Attributes(exprs) {
		if netlink.Text(netlink.Attribute(e, unix.NFTA_EXPR_NAME)) != "immediate" {
			continue
		}
		data := netlink.Attribute(netlink.Attribute(e, unix.NFTA_EXPR_DATA), unix.NFTA_IMMEDIATE_DATA)
		if name := netlink.Attribute(netlink.Attribute(data, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN); name != nil {
			return netlink.Text(name)
		}
	}
	return ""
}
