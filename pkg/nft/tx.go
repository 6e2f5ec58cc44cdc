package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Tx is what an Update commits: reads see the kernel as it is, changes are staged for one batch, in the order in
// which they are called.
type Tx struct {
	*Conn
	msgs []message
	sets uint32
}

// Add stages new elements. A key that is there already makes the batch fail, whatever its data.
func (tx *Tx) Add(t Table, set string, elems ...Element) {
	tx.msgs = append(tx.msgs, addElements(t, set, elems)...)
}

// Delete stages the deletion of elements by their keys. The kernel ignores whose they are: compare the
// comment of Get in the same change.
func (tx *Tx) Delete(t Table, set string, elems ...Element) {
	tx.msgs = append(tx.msgs, deleteElements(t, set, elems)...)
}

// DeleteChain stages the deletion of a chain with its rules. Whatever leads to it has to go before.
func (tx *Tx) DeleteChain(t Table, chain string) {
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

// DeleteChains stages the deletion of the table's chains whose names match, with their rules: first of those with a
// hook, since their rules lead to the others.
func (tx *Tx) DeleteChains(t Table, matches func(name string) bool) error {
	live, err := tx.Chains(t)
	for _, hooked := range []bool{true, false} {
		for _, l := range live {
			if (l.Hook != nil) == hooked && matches(l.Name) {
				tx.DeleteChain(t, l.Name)
			}
		}
	}
	return err
}

// DeleteRule stages the deletion of one rule.
func (tx *Tx) DeleteRule(t Table, chain string, handle uint64) {
	tx.msgs = append(tx.msgs, t.ruleMessage(unix.NFT_MSG_DELRULE, fmt.Sprintf("delete rule %d of", handle), chain,
		attrBytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))))
}

// Ensure stages what the kernel lacks of the layout. A missing chain is created exclusively, so that
// of several firsts, with the lock or without, one wins and the others start again. A chain that has
// lost rules (nft flush table) gets its own rules anew, in order; rules of others in it stay. It says
// whether anything was lacking.
func (tx *Tx) Ensure(l Layout) (lacking bool, err error) {
	for _, chain := range l.Chains {
		want := chain.compile(l.Table.Family)
		live, err := tx.Rules(l.Table, chain.Name)
		if err != nil {
			return lacking, err
		}
		if len(live) > 0 && missingRule(want, live) < 0 {
			continue
		}
		there, err := tx.Chain(l.Table, chain.Name)
		if err != nil {
			return lacking, err
		}
		if there != nil && len(want) == 0 {
			continue
		}
		if !lacking {
			lacking = true
			tx.stageSets(l)
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
	return lacking, nil
}

// stageSets stages the table and its sets, all of which may exist.
func (tx *Tx) stageSets(l Layout) {
	tx.msgs = append(tx.msgs, newTable(l.Table))
	for _, s := range l.Sets {
		tx.sets++
		tx.msgs = append(tx.msgs, newSet(l.Table, s, tx.sets))
	}
}

// Verify compares what all attachments share with what the kernel has. Its error joins the differences, is code 101
// and matches ErrDrift. Rules that others put between ours are no difference.
func (c *Conn) Verify(l Layout) error {
	var diffs []error
	for _, chain := range l.Chains {
		differs := func(format string, args ...any) {
			diffs = append(diffs, drift(fmt.Sprintf("nftables table %q, chain %q", l.Table, chain.Name),
				format, args...))
		}
		there, err := c.Chain(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if there == nil {
			differs("the chain is missing")
			continue
		}
		if (chain.Hook == nil) != (there.Hook == nil) || chain.Hook != nil && *chain.Hook != *there.Hook {
			differs("the chain has another hook, %+v instead of %+v", there.Hook, chain.Hook)
		}
		live, err := c.Rules(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if i := missingRule(chain.compile(l.Table.Family), live); i >= 0 {
			differs("rule %q is missing", chain.Rules[i])
		}
	}
	return errors.Join(diffs...)
}

func drift(where, format string, args ...any) error {
	return cni.Errorf(cni.CodeDrift, "%s: %w: %s", where, ErrDrift, fmt.Sprintf(format, args...))
}

// Probe says whether the kernel can hold the layout: it has the layout, or accepts it in a batch that is
// not kept. The error matches ErrUnsupported when the kernel cannot. It is an error, too, when Update
// could not make its lock's file.
func (c *Conn) Probe(l Layout) error {
	if err := statefile.Writable(filepath.Dir(LockPath)); err != nil {
		return err
	}
	tx := &Tx{Conn: c}
	if _, err := tx.Ensure(l); err != nil {
		return err
	}
	return c.batch(tx.msgs, false)
}

// compile returns the expressions of each rule.
func (chain Chain) compile(family Family) [][][]byte {
	out := make([][][]byte, len(chain.Rules))
	for i, r := range chain.Rules {
		out[i] = r.compile(family)
	}
	return out
}

// missingRule is the index of the first of the wanted rules that the live ones do not have in this
// order, or -1.
func missingRule(want [][][]byte, live []LiveRule) int {
	i := 0
	for _, r := range live {
		if i < len(want) && r.runs(want[i]) {
			i++
		}
	}
	if i == len(want) {
		return -1
	}
	return i
}
