package nft

import (
	"bytes"
	"context"
	"slices"

	"golang.org/x/sys/unix"
)

// Removal selects rules that another program made, and the chains to which they lead.
type Removal struct {
	Table Table
	Chain string              // has the rules; empty: any chain of the table
	Rule  func(LiveRule) bool // whether a rule is one of them
	Drop  []string            // the chains; if any are named and none exists, there are no such rules
}

// Remove deletes the rules and the chains. It takes no lock where there are none.
func (r Removal) Remove(ctx context.Context, c *Conn) error {
	found := Owned{}.begin(c)
	if err := r.Stage(found); err != nil || len(found.msgs) == 0 {
		return err
	}
	return c.Update(ctx, r.Stage)
}

// Stage stages the deletion of the rules and the chains.
func (r Removal) Stage(tx *Tx) error {
	var chains []string
	for _, name := range r.Drop {
		live, err := tx.Chain(r.Table, name)
		if err != nil {
			return err
		}
		if live != nil {
			chains = append(chains, name)
		}
	}
	if len(r.Drop) > 0 && len(chains) == 0 {
		return nil
	}
	rules, err := tx.Rules(r.Table, r.Chain)
	for _, rule := range rules {
		if r.Rule(rule) {
			tx.DeleteRule(r.Table, rule.Chain, rule.Handle)
		}
	}
	for _, name := range chains {
		tx.DeleteChain(r.Table, name)
	}
	return err
}

// Mentions reports whether the rule compares with this value, an address or a port, or translates to it.
func (r LiveRule) Mentions(value []byte) bool {
	has := func(v []byte) bool { return bytes.Equal(v, value) }
	return slices.ContainsFunc(r.Compared(len(value)), has) ||
		slices.ContainsFunc(r.operands("immediate", unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE), has)
}

// Compared returns the values of this size, in bytes, with which the rule compares; 0 = any size.
func (r LiveRule) Compared(size int) [][]byte {
	return slices.DeleteFunc(r.operands("cmp", unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE),
		func(v []byte) bool { return size > 0 && len(v) != size })
}

// IsOneOf reports whether the rule, in a table of the family, does exactly what one of these does.
func (r LiveRule) IsOneOf(f Family, rules ...Rule) bool {
	return slices.ContainsFunc(rules, func(rule Rule) bool { return r.runs(rule.compile(f)) })
}

// XTMatch is a match of iptables that nf_tables runs for iptables-nft.
func XTMatch(name string, revision uint32, info []byte) Stmt {
	return Stmt{text: "xt match " + name, exprs: [][]byte{expression("match", attrText(unix.NFTA_MATCH_NAME, name),
		attrNet32(unix.NFTA_MATCH_REV, revision), attrBytes(unix.NFTA_MATCH_INFO, info))}}
}
