package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nlattr"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Tx is a transaction: reads see the kernel as it is, changes are staged for one batch, in order.
type Tx struct {
	*Conn
	Lacked bool   // the kernel lacked some of the owned layout when it was ensured
	Behind []Item // elements of other owners that stay before items with other data, where keys are shared

	msgs    []message
	owned   Owned
	ensured bool            // the owned layout is
	seen    map[string]bool // chains that are ensured
	settled map[string]bool // chains that the elements of the transaction need, or that are deleted
	deleted map[string]bool // elements, by set and key
	unused  map[string]int  // chains: how many of the elements and rules that led there are deleted
	dropped []string        // by Drop

	left         map[string]bool // sets of owners that lose entries
	leavesFormer bool            // the former layout may have no elements any more
}

func (o Owned) begin(c *Conn) *Tx {
	return &Tx{Conn: c, owned: o, seen: map[string]bool{}, settled: map[string]bool{}, deleted: map[string]bool{},
		unused: map[string]int{}, left: map[string]bool{}}
}

// elementsMax is how many elements a message has: an attribute's length has 16 bits, an element less than 1,000 bytes.
const elementsMax = 64

// Add stages new elements. A key that is there already makes the batch fail, whatever its data.
func (tx *Tx) Add(t Table, set string, elems ...Element) {
	for some := range slices.Chunk(elems, elementsMax) {
		m := t.setMessage(unix.NFT_MSG_NEWSETELEM, "add to", set, elementList(some, Element.encode))
		m.flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
		tx.msgs = append(tx.msgs, m)
	}
}

// Delete stages the deletion of elements by their keys. Read the owner's comment in the same transaction.
func (tx *Tx) Delete(t Table, set string, elems ...Element) {
	for some := range slices.Chunk(elems, elementsMax) {
		tx.msgs = append(tx.msgs,
			t.setMessage(unix.NFT_MSG_DELSETELEM, "delete from", set, elementList(some, Element.encodeKey)))
	}
}

// deleteChain stages the deletion of a chain with its rules. What leads to it must be deleted before.
func (tx *Tx) deleteChain(t Table, chain string) {
	tx.msgs = append(tx.msgs, t.chainMessage(unix.NFT_MSG_DELCHAIN, "delete", chain))
}

// AddRule stages a rule at the end of the chain.
func (tx *Tx) AddRule(t Table, chain string, r Rule) { tx.msgs = append(tx.msgs, newRule(t, chain, r)) }

// InsertRule stages a rule at the beginning of the chain.
func (tx *Tx) InsertRule(t Table, chain string, r Rule) {
	m := newRule(t, chain, r)
	m.flags &^= unix.NLM_F_APPEND
	tx.msgs = append(tx.msgs, m)
}

// DeleteChains stages the deletion of the table's chains whose names match: first of those with a hook, whose rules
// lead to the others.
func (tx *Tx) DeleteChains(t Table, matches func(name string) bool) error {
	live, err := tx.Chains(t)
	for _, hooked := range []bool{true, false} {
		for _, l := range live {
			if (l.Hook != nil) == hooked && matches(l.Name) {
				tx.deleteChain(t, l.Name)
			}
		}
	}
	return err
}

func (tx *Tx) DeleteRule(t Table, chain string, handle uint64) {
	tx.msgs = append(tx.msgs, t.ruleMessage(unix.NFT_MSG_DELRULE, fmt.Sprintf("delete rule %d of", handle), chain,
		nlattr.Bytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))))
}

// EnsureLayout stages what the kernel lacks of a layout. When several create a chain at once, one succeeds and the
// others start again. A chain that has lost rules (nft flush table) gets all its rules anew; rules of others stay.
func (tx *Tx) EnsureLayout(l Layout) error {
	hasSets := false
	for _, chain := range l.Chains {
		want := chain.compile(l.Table.Family)
		live, err := tx.Rules(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if len(live) > 0 && missingRule(want, live) == len(want) {
			continue
		}
		there, err := tx.Chain(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if there != nil && len(want) == 0 {
			continue
		}
		if !hasSets {
			hasSets = true
			tx.msgs = append(tx.msgs, newTable(l.Table)) // which may exist, and so may the sets
			for _, s := range l.Sets {
				tx.msgs = append(tx.msgs, newSet(l.Table, s, uint32(len(tx.msgs)))) // an ID of its own
			}
		}
		if there == nil {
			tx.msgs = append(tx.msgs, newChain(l.Table, chain))
		}
		for _, r := range live {
			if slices.ContainsFunc(want, r.runs) {
				tx.DeleteRule(l.Table, chain.Name, r.Handle)
			}
		}
		for _, r := range chain.Rules {
			tx.AddRule(l.Table, chain.Name, r)
		}
	}
	return nil
}

// Verify compares the layout with what the kernel has. Its error joins the differences, is code 101 and matches
// ErrDrift. Rules of others between ours are no difference.
func (c *Conn) Verify(l Layout) error {
	var diffs []error
	for _, chain := range l.Chains {
		differs := func(format string, args ...any) {
			diffs = append(diffs, drift(l.Table, fmt.Sprintf("chain %q", chain.Name), fmt.Sprintf(format, args...)))
		}
		there, err := c.Chain(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if there == nil {
			differs("the chain is missing")
			continue
		}
		if !reflect.DeepEqual(chain.Hook, there.Hook) {
			differs("the chain has another hook, %+v instead of %+v", there.Hook, chain.Hook)
		}
		live, err := c.Rules(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if i := missingRule(chain.compile(l.Table.Family), live); i < len(chain.Rules) {
			differs("rule %q is missing", chain.Rules[i])
		}
	}
	return errors.Join(diffs...)
}

func drift(t Table, object, what string) error {
	return cni.Drift("nftables table %q, %s: %w: %s", t, object, ErrDrift, what)
}

// Probe returns nil if the kernel has the layout, or accepts it in a batch that is not kept, and Update
// could make its lock's file. The error matches ErrUnsupported when the kernel cannot hold the layout.
func (c *Conn) Probe(l Layout) error {
	if err := statefile.Writable(filepath.Dir(LockPath)); err != nil {
		return err
	}
	tx := Owned{}.begin(c)
	if err := tx.EnsureLayout(l); err != nil {
		return err
	}
	return c.batch(tx.msgs, false)
}

// ProbeTables returns nil if the kernel has nf_tables at all. The error matches ErrUnsupported when it lacks them.
func (c *Conn) ProbeTables() error {
	return c.batch([]message{newTable(Table{Family: IPv4, Name: "hawser"})}, false)
}

func (chain Chain) compile(family Family) [][][]byte {
	out := make([][][]byte, len(chain.Rules))
	for i, r := range chain.Rules {
		out[i] = r.compile(family)
	}
	return out
}

// missingRule is the index of the first wanted rule that the live ones lack in this order, or len(want).
func missingRule(want [][][]byte, live []LiveRule) int {
	i := 0
	for _, r := range live {
		if i < len(want) && r.runs(want[i]) {
			i++
		}
	}
	return i
}

// Removal selects rules of another program, and the chains to which they alone lead.
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
		} else {
			chains = slices.DeleteFunc(chains, func(name string) bool { return name == rule.Target })
		}
	}
	for _, name := range chains {
		tx.deleteChain(r.Table, name)
	}
	return err
}
