package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// addNFTables makes the attachment's elements and takes away those of dead
// owners whose ports it wants: one batch, everything or nothing.
func addNFTables(ctx context.Context, nf *nft.Conn, st *state, dead []*state) error {
	if err := compileConditions(ctx, nf, st); err != nil {
		return err
	}
	return nf.Update(ctx, func(tx *nft.Tx) error {
		if err := ensure(tx, st); err != nil {
			return err
		}
		ch := changes{tx: tx, gone: map[string]int{}, kept: map[string]bool{}}
		for _, d := range dead {
			if err := ch.remove(d.items(), d.attachment().Owns); err != nil {
				return err
			}
		}
		if err := ch.add(st); err != nil {
			return err
		}
		if err := guard(tx, st.Localnet); err != nil {
			return err
		}
		return ch.dropUnused()
	})
}

// compileConditions has nft make the chains with the attachment's conditions.
// Nothing leads to them yet.
func compileConditions(ctx context.Context, nf *nft.Conn, st *state) error {
	for _, t := range st.Targets {
		chain := st.when(t.v4())
		if chain == "" {
			continue
		}
		if err := nf.Update(ctx, func(tx *nft.Tx) error { return ensure(tx, st) }); err != nil {
			return err
		}
		if err := nft.RunProgram(ctx, st.conditionScript(t.v4())); err != nil {
			return fmt.Errorf("%s: the nft program has to compile them: %w", conditionsKey(t.v4()), err)
		}
		text, err := chainText(nf, chain)
		if err != nil {
			return err
		}
		if st.Compiled == nil {
			st.Compiled = map[string]string{}
		}
		st.Compiled[chain] = text
	}
	return nil
}

func conditionsKey(v4 bool) string {
	if v4 {
		return "conditionsV4"
	}
	return "conditionsV6"
}

// chainText tells whether a chain's rules are what they were.
func chainText(nf *nft.Conn, chain string) (string, error) {
	rules, err := nf.Rules(table, chain)
	text := ""
	for _, r := range rules {
		text += r.Text() + "\n"
	}
	return text, err
}

// ensure stages what is missing of the shared layout and of the chains that
// the attachment uses. Where the shared rules were lost, those of the others'
// chains probably were, too.
func ensure(tx *nft.Tx, st *state) error {
	lacking, err := tx.Ensure(sharedLayout(st.Options.mark()))
	if err != nil {
		return err
	}
	nears := st.nears()
	if lacking {
		live, err := tx.Chains(table)
		if err != nil {
			return err
		}
		for _, c := range live {
			if n, ok := parseNear(c.Name); ok {
				nears = append(nears, n)
			}
		}
	}
	_, err = tx.Ensure(nearLayout(nears))
	return err
}

// guard stages the interface's entry in the guard.
func guard(tx *nft.Tx, link string) error {
	if link == "" {
		return nil
	}
	key := nft.IfNameKey(link)
	live, err := tx.Get(table, localnetSet, key)
	if err != nil || live[0] != nil {
		return err
	}
	was, err := readLocalnet(link)
	if err != nil {
		return err
	}
	tx.Add(table, localnetSet, nft.Element{Key: key, Comment: localnetWas + was})
	return nil
}

// localnetWas, with the value, is the comment of an interface in the guard.
const localnetWas = "route_localnet was "

// changes collects what happens to elements, and so to the number of
// references to the chains that they lead to.
type changes struct {
	tx   *nft.Tx
	gone map[string]int  // chain: elements that are deleted
	kept map[string]bool // chains that get an element
}

// add stages the attachment's elements. The usual case does not look whether
// the keys are free: the ledger says so, and the kernel refuses a key that is
// there. Then this runs again and looks.
func (ch *changes) add(st *state) error {
	items := st.items()
	if ch.tx.Attempt > 1 {
		if err := ch.makeRoom(st, items); err != nil {
			return err
		}
	}
	bySet := map[string][]nft.Element{}
	for _, it := range items {
		bySet[it.set] = append(bySet[it.set], it.Element)
		ch.kept[it.Goto] = true
	}
	for _, set := range itemSets() {
		ch.tx.Add(table, set, bySet[set]...)
	}
	return nil
}

// makeRoom stages the removal of what the attachment itself left, and refuses
// keys that somebody else has of whom there is no record.
func (ch *changes) makeRoom(st *state, items []item) error {
	for set, elems := range group(items) {
		live, err := ch.get(set, elems)
		if err != nil {
			return err
		}
		for _, old := range live {
			if !st.attachment().Owns(old.Comment) {
				return portTaken("host port in map %q: held by %q, of whom there is no record (DEL or GC of that network removes it)", set, old.Comment)
			}
			ch.delete(set, old)
		}
	}
	return nil
}

func group(items []item) map[string][]nft.Element {
	bySet := map[string][]nft.Element{}
	for _, it := range items {
		bySet[it.set] = append(bySet[it.set], it.Element)
	}
	return bySet
}

// get returns those of the elements that are there.
func (ch *changes) get(set string, elems []nft.Element) ([]nft.Element, error) {
	keys := make([][]byte, len(elems))
	for i, e := range elems {
		keys[i] = e.Key
	}
	live, err := ch.tx.Get(table, set, keys...)
	var out []nft.Element
	for _, e := range live {
		if e != nil {
			out = append(out, *e)
		}
	}
	return out, err
}

// remove stages the deletion of those of the elements that are mine.
func (ch *changes) remove(items []item, mine func(mark string) bool) error {
	for set, elems := range group(items) {
		live, err := ch.get(set, elems)
		if err != nil {
			return err
		}
		for _, e := range live {
			if mine(e.Comment) {
				ch.delete(set, e)
			}
		}
	}
	return nil
}

func (ch *changes) delete(set string, e nft.Element) {
	ch.tx.Delete(table, set, e)
	if e.Goto != "" {
		ch.gone[e.Goto]++
	}
}

// dropUnused stages the deletion of the chains that lose their last element:
// first those with conditions, which lead to the others.
func (ch *changes) dropUnused() error {
	for _, marking := range []bool{false, true} {
		for _, name := range slices.Sorted(maps.Keys(ch.gone)) {
			if _, marks := parseNear(name); marks != marking || ch.kept[name] {
				continue
			}
			left, err := ch.tx.References(table, name)
			if err != nil {
				return err
			}
			if left > ch.gone[name] {
				continue
			}
			if err := ch.dropChain(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (ch *changes) dropChain(name string) error {
	rules, err := ch.tx.Rules(table, name)
	for _, r := range rules {
		if _, marks := parseNear(r.Target); marks {
			ch.gone[r.Target]++
		}
	}
	ch.tx.DeleteChain(table, name)
	return err
}

// delNFTables takes away what the attachment has in our table. Without its
// record everything there has to be looked at.
func delNFTables(ctx context.Context, nf *nft.Conn, st *state, free string) error {
	items := st.items()
	own := st.attachment()
	return removeNFTables(ctx, nf, free, func() ([]item, error) {
		left, err := present(nf, items, own.Owns)
		return left, err
	})
}

// sweepNFTables takes away every element whose mark is garbage.
func sweepNFTables(ctx context.Context, nf *nft.Conn, garbage func(mark string) bool) error {
	return removeNFTables(ctx, nf, "", func() ([]item, error) { return owned(nf, garbage) })
}

// removeNFTables deletes the elements that find returns, and takes the link
// that is free now out of the guard. The first look costs no lock.
func removeNFTables(ctx context.Context, nf *nft.Conn, free string, find func() ([]item, error)) error {
	if found, err := find(); err != nil || len(found) == 0 && free == "" {
		return err
	}
	return nf.Update(ctx, func(tx *nft.Tx) error {
		found, err := find()
		if err != nil {
			return err
		}
		ch := changes{tx: tx, gone: map[string]int{}}
		for _, it := range found {
			ch.delete(it.set, it.Element)
		}
		if err := unguard(tx, free); err != nil {
			return err
		}
		return ch.dropUnused()
	})
}

// unguard takes route_localnet back where we set it, and then stages the end of
// the interface's guard.
func unguard(tx *nft.Tx, link string) error {
	if link == "" {
		return nil
	}
	live, err := tx.Get(table, localnetSet, nft.IfNameKey(link))
	if err != nil || live[0] == nil {
		return err
	}
	if live[0].Comment == localnetWas+"0" {
		if err := writeLocalnet(link, "0"); err != nil {
			return err
		}
	}
	tx.Delete(table, localnetSet, *live[0])
	return nil
}

// present are those of the elements that are there and mine.
func present(nf *nft.Conn, items []item, mine func(mark string) bool) ([]item, error) {
	ch := changes{tx: &nft.Tx{Conn: nf}}
	var out []item
	for set, elems := range group(items) {
		live, err := ch.get(set, elems)
		if err != nil {
			return nil, err
		}
		for _, e := range live {
			if mine(e.Comment) {
				out = append(out, item{set, e})
			}
		}
	}
	return out, nil
}

// owned finds elements by their owner, which means to look at all.
func owned(nf *nft.Conn, mine func(mark string) bool) ([]item, error) {
	var out []item
	for _, set := range itemSets() {
		live, err := nf.Elements(table, set)
		if err != nil {
			return nil, err
		}
		for _, e := range live {
			if mine(e.Comment) {
				out = append(out, item{set, e})
			}
		}
	}
	return out, nil
}

// dropConditions deletes the attachment's chains of conditions to which no
// element led, since its ADD ended before that, and those that they led to.
func dropConditions(ctx context.Context, nf *nft.Conn, st *state) error {
	var names []string
	for _, f := range families() {
		names = append(names, f.whenPrefix()+st.attachment().Hash())
	}
	for _, n := range st.nears() {
		names = append(names, n.name())
	}
	gone := map[string]int{}
	for _, name := range names {
		chain, err := nf.Chain(table, name)
		if err != nil {
			return err
		}
		if chain != nil {
			gone[name] = 0
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return nf.Update(ctx, func(tx *nft.Tx) error {
		ch := changes{tx: tx, gone: maps.Clone(gone)}
		return ch.dropUnused()
	})
}

// checkNFTables compares the attachment's elements and what it shares with
// others with the kernel's.
func checkNFTables(nf *nft.Conn, st *state) error {
	var diffs []error
	for set, elems := range group(st.items()) {
		keys := make([][]byte, len(elems))
		for i, e := range elems {
			keys[i] = e.Key
		}
		live, err := nf.Get(table, set, keys...)
		if err != nil {
			return err
		}
		for i, want := range elems {
			if what := difference(st.attachment(), want, live[i]); what != "" {
				diffs = append(diffs, drift("nftables map %q, %s: %s", set, keyName(want.Key), what))
			}
		}
	}
	for _, l := range []nft.Layout{sharedLayout(st.Options.mark()), nearLayout(st.nears())} {
		err := nf.Verify(l)
		if err != nil && !errors.Is(err, nft.ErrDrift) {
			return err
		}
		if err != nil {
			diffs = append(diffs, drift("%w", err))
		}
	}
	for _, t := range st.Targets {
		chain := st.when(t.v4())
		if chain == "" {
			continue
		}
		text, err := chainText(nf, chain)
		if err != nil {
			return err
		}
		if text == "" || text != st.Compiled[chain] {
			diffs = append(diffs, drift("nftables chain %q: the conditions are not those of %s", chain, conditionsKey(t.v4())))
		}
	}
	return errors.Join(diffs...)
}

func difference(a cni.Attachment, want nft.Element, live *nft.Element) string {
	switch {
	case live == nil:
		return "no element"
	case !a.Owns(live.Comment):
		return fmt.Sprintf("the element belongs to %q", live.Comment)
	case live.Goto != want.Goto:
		return fmt.Sprintf("the element leads to chain %q, not %q", live.Goto, want.Goto)
	case !bytes.Equal(live.Data, want.Data):
		return "the element leads to another container address or port"
	}
	return ""
}

// keyName is a key for people: protocol and port.
func keyName(key []byte) string {
	port := key[len(key)-4:]
	return fmt.Sprintf("%d/%s", uint16(port[0])<<8|uint16(port[1]), proto(key[0]))
}

func drift(format string, args ...any) error {
	return cni.Errorf(cni.CodeDrift, format, args...)
}

func portTaken(format string, args ...any) error {
	return cni.Errorf(cni.CodePortTaken, format, args...)
}
