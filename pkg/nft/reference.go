package nft

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Leftover is what another program made: rules that nobody shares, and chains to which they lead.
type Leftover struct {
	Table Table
	Chain string              // has the rules; empty: any chain of the table
	Rule  func(LiveRule) bool // says whether a rule is one
	Drop  []string            // the chains; where there are names but no such chain, no rule is looked at
}

// Remove deletes the rules by their handles, and the chains. Where there is nothing it takes no lock.
func (l Leftover) Remove(ctx context.Context, c *Conn) error {
	look := &Tx{Conn: c}
	if err := l.Stage(look); err != nil || len(look.msgs) == 0 {
		return err
	}
	return c.Update(ctx, l.Stage)
}

// Stage stages the same.
func (l Leftover) Stage(tx *Tx) error {
	var there []string
	for _, name := range l.Drop {
		live, err := tx.Chain(l.Table, name)
		if err != nil {
			return err
		}
		if live != nil {
			there = append(there, name)
		}
	}
	if len(l.Drop) > 0 && len(there) == 0 {
		return nil
	}
	rules, err := tx.Rules(l.Table, l.Chain)
	for _, r := range rules {
		if l.Rule(r) {
			tx.DeleteRule(l.Table, r.Chain, r.Handle)
		}
	}
	for _, name := range there {
		tx.DeleteChain(l.Table, name)
	}
	return err
}

// Mentions says whether the rule has this value as it is: an address or a port that it compares with or
// translates to. It tells apart rules that other software made.
func (r LiveRule) Mentions(value []byte) bool {
	has := func(v []byte) bool { return bytes.Equal(v, value) }
	return slices.ContainsFunc(r.Compared(len(value)), has) ||
		slices.ContainsFunc(r.operands("immediate", unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE), has)
}

// Compared returns the values of so many bytes that the rule compares something with; 0 is for any number.
func (r LiveRule) Compared(size int) [][]byte {
	return slices.DeleteFunc(r.operands("cmp", unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE),
		func(v []byte) bool { return size > 0 && len(v) != size })
}

// OneOf returns a function that says whether a rule of a table of the family does exactly what one of these does.
func OneOf(f Family, rules ...Rule) func(LiveRule) bool {
	compiled := make([][][]byte, len(rules))
	for i, r := range rules {
		compiled[i] = r.compile(f)
	}
	return func(live LiveRule) bool { return slices.ContainsFunc(compiled, live.runs) }
}

// Is matches packets whose field has the value.
func Is(f Field, value []byte) Stmt { return compareField(f, "", unix.NFT_CMP_EQ, value) }

// IsNot is the opposite of Is.
func IsNot(f Field, value []byte) Stmt { return compareField(f, "!= ", unix.NFT_CMP_NEQ, value) }

func compareField(f Field, not string, op uint32, value []byte) Stmt {
	spec := fieldTable[f]
	return Stmt{text: fmt.Sprintf("%s %s0x%x", spec.text, not, value), proto: spec.proto,
		exprs: [][]byte{spec.load(reg1), compare(op, value)}}
}

// XTMatch is a match of iptables that nf_tables runs for iptables-nft.
func XTMatch(name string, revision uint32, info []byte) Stmt {
	return Stmt{text: "xt match " + name, exprs: [][]byte{expression("match", attrText(unix.NFTA_MATCH_NAME, name),
		attrNet32(unix.NFTA_MATCH_REV, revision), attrBytes(unix.NFTA_MATCH_INFO, info))}}
}
