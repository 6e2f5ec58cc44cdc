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

// Tx is a transaction. Reads ignore staged changes. Changes are staged in order, for one batch.
type Tx struct {
	*Conn
	LayoutStaged bool // true if Ensure staged a missing part of the owned layout
	// Prevailing lists elements of earlier owners that Put kept although the new owner's item goes to another chain.
	Prevailing []Item

	msgs          []message
	owned         Owned
	isEnsured     bool            // Ensure has handled the owned layout
	ensuredChains map[string]bool // chains that Ensure has handled
	deletedElems  map[string]bool // elements whose deletion is staged, by set and key
	deletedChains map[string]bool // chains whose deletion is staged, by chainID

	// For the deletion of unused chains (dropUnused).
	neededChains map[string]bool // chains that were passed to Ensure
	droppedRefs  map[string]int  // number of elements and rules with a staged deletion that refer to the chain
	unusedChains []string        // chains that were passed to Drop

	// For the deletion of empty sets (dropEmpty).
	shrunkSets  map[string]bool // sets of owners that lose entries
	checkFormer bool            // the former layout may have lost its last element
}

func (o Owned) begin(c *Conn) *Tx {
	return &Tx{Conn: c, owned: o, ensuredChains: map[string]bool{}, neededChains: map[string]bool{},
		deletedElems: map[string]bool{}, deletedChains: map[string]bool{}, droppedRefs: map[string]int{},
		shrunkSets: map[string]bool{}}
}

// elementsMax is the maximum number of elements in a message. The length field of an attribute has 16 bits, and an
// element has fewer than 1,000 bytes.
const elementsMax = 64

// Add stages new elements. The batch fails if one of the keys exists, regardless of its data.
func (tx *Tx) Add(t Table, set string, elems ...Element) {
	for part := range slices.Chunk(elems, elementsMax) {
		m := t.elementMessage(unix.NFT_MSG_NEWSETELEM, "add to", set, elementList(part, Element.encode))
		m.flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
		tx.msgs = append(tx.msgs, m)
	}
}

// Delete stages the deletion of elements by their keys. The caller must check the owner in the same transaction.
func (tx *Tx) Delete(t Table, set string, elems ...Element) {
	for part := range slices.Chunk(elems, elementsMax) {
		tx.msgs = append(tx.msgs,
			t.elementMessage(unix.NFT_MSG_DELSETELEM, "delete from", set, elementList(part, Element.encodeKey)))
	}
}

// deleteChain stages the deletion of a chain with its rules. All references to the chain must be deleted first.
func (tx *Tx) deleteChain(t Table, chain string) {
	if id := chainID(t, chain); !tx.deletedChains[id] {
		tx.deletedChains[id] = true
		tx.msgs = append(tx.msgs, t.chainMessage(unix.NFT_MSG_DELCHAIN, "delete", chain))
	}
}

func chainID(t Table, chain string) string { return t.String() + " " + chain }

// AddRule stages a rule at the end of the chain.
func (tx *Tx) AddRule(t Table, chain string, r Rule) { tx.msgs = append(tx.msgs, newRule(t, chain, r)) }

// InsertRule stages a rule at the beginning of the chain.
func (tx *Tx) InsertRule(t Table, chain string, r Rule) {
	m := newRule(t, chain, r)
	m.flags &^= unix.NLM_F_APPEND
	tx.msgs = append(tx.msgs, m)
}

// DeleteChains stages the deletion of the table's chains whose names match. Base chains are deleted first, because
// their rules jump to the others.
func (tx *Tx) DeleteChains(t Table, matches func(name string) bool) error {
	live, err := tx.Chains(t)
	for _, isBase := range []bool{true, false} {
		for _, l := range live {
			if (l.Hook != nil) == isBase && matches(l.Name) {
				tx.deleteChain(t, l.Name)
			}
		}
	}
	return err
}

// DeleteRule stages the deletion of a rule.
func (tx *Tx) DeleteRule(t Table, chain string, handle uint64) {
	tx.msgs = append(tx.msgs, t.ruleMessage(unix.NFT_MSG_DELRULE, fmt.Sprintf("delete rule %d of", handle), chain,
		nlattr.Bytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))))
}

// EnsureLayout stages the missing parts of a layout. If a chain has lost rules, for example by nft flush table, the
// remaining rules of the layout are deleted and all are added in order. Rules of other programs stay. If several
// processes create a chain concurrently, one batch succeeds and the other Updates start again.
func (tx *Tx) EnsureLayout(l Layout) error {
	hasStagedSets := false
	for _, chain := range l.Chains {
		want := chain.compile(l.Table.Family)
		live, err := tx.Rules(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if len(live) > 0 && missingRule(want, live) == len(want) {
			continue // any live rule also shows that the chain exists
		}
		existing, err := tx.Chain(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if existing != nil && len(want) == 0 {
			continue
		}
		if !hasStagedSets {
			hasStagedSets = true
			tx.msgs = append(tx.msgs, newTable(l.Table)) // no effect if it exists; the same holds for sets
			for _, s := range l.Sets {
				tx.msgs = append(tx.msgs, newSet(l.Table, s, uint32(len(tx.msgs)))) // an ID that is unique in the batch
			}
		}
		if existing == nil {
			tx.msgs = append(tx.msgs, newChain(l.Table, chain))
			if err := tx.deleteFormer(l.Table, chain); err != nil {
				return err
			}
		}
		for _, r := range live {
			if slices.ContainsFunc(want, r.hasExprs) {
				tx.DeleteRule(l.Table, chain.Name, r.Handle)
			}
		}
		for _, r := range chain.Rules {
			tx.AddRule(l.Table, chain.Name, r)
		}
	}
	return nil
}

// deleteFormer stages the deletion of the former chains of a chain. A former chain stays if rules of other chains, for
// example of an even older layout, jump to it.
func (tx *Tx) deleteFormer(t Table, chain Chain) error {
	for _, former := range chain.Former {
		live, err := tx.Chain(t, former.Name)
		if err != nil {
			return err
		}
		if live == nil {
			continue
		}
		rules, err := tx.Rules(t, "")
		if err != nil {
			return err
		}
		isJump := func(r LiveRule) bool { return r.Target == former.Name && !tx.deletedChains[chainID(t, r.Chain)] }
		if !slices.ContainsFunc(rules, isJump) {
			tx.deleteChain(t, former.Name)
		}
	}
	return nil
}

// Verify compares the layout with the kernel's state. The error joins all differences, has code 101 and matches
// ErrDrift. Rules of other programs between the layout's rules are not a difference.
func (c *Conn) Verify(l Layout) error {
	var diffs []error
	for _, chain := range l.Chains {
		addDiff := func(format string, args ...any) {
			diffs = append(diffs, drift(l.Table, fmt.Sprintf("chain %q", chain.Name), fmt.Sprintf(format, args...)))
		}
		live, err := c.Chain(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if live == nil && len(chain.Former) > 0 && c.Verify(Layout{Table: l.Table, Chains: chain.Former}) == nil {
			continue
		}
		if live == nil {
			addDiff("the chain is missing")
			continue
		}
		if !reflect.DeepEqual(chain.Hook, live.Hook) {
			addDiff("the chain has another hook, %+v instead of %+v", live.Hook, chain.Hook)
		}
		rules, err := c.Rules(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if i := missingRule(chain.compile(l.Table.Family), rules); i < len(chain.Rules) {
			addDiff("rule %q is missing", chain.Rules[i])
		}
	}
	return errors.Join(diffs...)
}

func drift(t Table, object, what string) error {
	return cni.Drift("nftables table %q, %s: %w: %s", t, object, ErrDrift, what)
}

// Probe returns nil if Update could create the layout: the lock's directory is writable, and the kernel has the layout
// or accepts it in a batch that is not committed. The error matches ErrUnsupported if the kernel lacks something.
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

// ProbeTables returns nil if the kernel has nf_tables. Otherwise, the error matches ErrUnsupported.
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

// missingRule returns the index of the first wanted rule that the live rules lack in this order, or len(want).
func missingRule(want [][][]byte, live []LiveRule) int {
	i := 0
	for _, r := range live {
		if i < len(want) && r.hasExprs(want[i]) {
			i++
		}
	}
	return i
}

// Removal selects rules outside of Layouts, such as the reference plugins', and the chains to which they jump.
type Removal struct {
	Table Table
	Chain string              // the chain with the rules; empty = all chains of the table
	Rule  func(LiveRule) bool // reports whether a rule is selected
	Drop  []string            // chains to delete; if none of them exists, rules also stay. Empty = delete only rules
}

// Remove deletes the rules and the chains. If there are none, it does not take the lock.
func (r Removal) Remove(ctx context.Context, c *Conn) error {
	probe := Owned{}.begin(c) // without the lock; not committed
	if err := r.Stage(probe); err != nil || len(probe.msgs) == 0 {
		return err
	}
	return c.Update(ctx, r.Stage)
}

// Stage stages the deletion of the rules, and of the chains in Drop to which no other rule of r.Chain jumps. The batch
// fails if a remaining rule of another chain also jumps to one of them.
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
