package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// addNFTables makes the attachment's elements and removes those of the owners that are gone: one batch.
func (c *call) addNFTables(ctx context.Context, s *store, r *record, gone []*record) error {
	if err := c.compileConditions(ctx, s, r); err != nil {
		return err
	}
	return c.nf.Update(ctx, func(tx *nft.Tx) error {
		if err := ensure(tx, s, r); err != nil {
			return err
		}
		ch := change{tx: tx, gone: map[string]int{}, kept: map[string]bool{}, deleted: map[string]bool{}}
		for _, o := range gone {
			if err := ch.remove(o.items(), o.attachment().Owns); err != nil {
				return err
			}
		}
		if err := ch.add(r); err != nil {
			return err
		}
		if err := guard(tx, r); err != nil {
			return err
		}
		return ch.dropUnused()
	})
}

// compileConditions has nft(8) make the chains with the attachment's conditions. Nothing leads to them yet.
func (c *call) compileConditions(ctx context.Context, s *store, r *record) error {
	for _, a := range r.served() {
		if r.conditionChain(a.v4()) == "" {
			continue
		}
		if err := c.nf.Update(ctx, func(tx *nft.Tx) error { return ensure(tx, s, r) }); err != nil {
			return err
		}
		err := nft.RunProgram(ctx, r.conditionScript(a))
		if errors.Is(err, nft.ErrRefused) {
			return cni.Errorf(cni.CodeConfig, "%s: %q: %w", conditionsKey(a.v4()), r.Options.conditions(a.v4()), err)
		}
		if err != nil {
			return fmt.Errorf("%s: the nft program has to compile them: %w", conditionsKey(a.v4()), err)
		}
	}
	return nil
}

func conditionsKey(v4 bool) string {
	if v4 {
		return "conditionsV4"
	}
	return "conditionsV6"
}

// ensure stages what is missing of the shared layout and of the chains by which the attachment masquerades.
// Where the shared rules were lost, those of the others' chains probably were, too.
func ensure(tx *nft.Tx, s *store, r *record) error {
	lacking, err := tx.Ensure(sharedLayout(r.Options.MarkBit))
	if err != nil {
		return err
	}
	users := []*record{r}
	if lacking {
		all, err := records(s)
		if err != nil {
			return err
		}
		users = append(users, onNFTables(all)...)
	}
	_, err = tx.Ensure(masqLayout(users...))
	return err
}

func onNFTables(all []*record) []*record {
	return slices.DeleteFunc(all, func(r *record) bool { return r.Backend != nftables })
}

// change collects what happens to elements in one batch, and so to the chains that they lead to.
type change struct {
	tx      *nft.Tx
	gone    map[string]int  // chain: elements that are deleted
	kept    map[string]bool // chains that get an element
	deleted map[string]bool // elements, by set and key
}

// add stages the attachment's elements. Once the batch failed, they are looked for.
func (ch *change) add(r *record) error {
	items := r.items()
	for set, list := range bySet(items) {
		if ch.tx.Attempt > 1 {
			if err := ch.replace(r, set, list); err != nil {
				return err
			}
		}
		var elems []nft.Element
		for _, it := range list {
			elems = append(elems, it.Element)
			ch.kept[it.Goto] = true
		}
		ch.tx.Add(table, set, elems...)
	}
	return nil
}

// replace stages the deletion of elements that the attachment itself left, and refuses those of others.
func (ch *change) replace(r *record, set string, items []item) error {
	live, err := ch.tx.Get(table, set, keys(items)...)
	if err != nil {
		return err
	}
	for i, e := range live {
		if e == nil {
			continue
		}
		if !ch.deleted[set+string(e.Key)] && !r.attachment().Owns(e.Comment) {
			return conflict(items[i].port, holderOf(items[i].port, items[i].port, nil, e.Comment).name)
		}
		ch.delete(set, *e)
	}
	return nil
}

func bySet(items []item) map[string][]item {
	out := map[string][]item{}
	for _, it := range items {
		out[it.set] = append(out[it.set], it)
	}
	return out
}

func keys(items []item) [][]byte {
	out := make([][]byte, len(items))
	for i, it := range items {
		out[i] = it.Key
	}
	return out
}

// present are the elements that there are under the keys.
func present(nf *nft.Conn, set string, keys [][]byte) ([]nft.Element, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	live, err := nf.Get(table, set, keys...)
	var out []nft.Element
	for _, e := range live {
		if e != nil {
			out = append(out, *e)
		}
	}
	return out, err
}

// remove stages the deletion of those of the elements that are mine.
func (ch *change) remove(items []item, mine func(mark string) bool) error {
	found, err := owned(ch.tx.Conn, items, mine)
	for _, it := range found {
		ch.delete(it.set, it.Element)
	}
	return err
}

// delete stages the deletion of an element once.
func (ch *change) delete(set string, e nft.Element) {
	if at := set + string(e.Key); !ch.deleted[at] {
		ch.deleted[at] = true
		ch.tx.Delete(table, set, e)
		if e.Goto != "" {
			ch.gone[e.Goto]++
		}
	}
}

// dropUnused stages the deletion of the chains that lose their last element: first those with conditions,
// which lead to the others.
func (ch *change) dropUnused() error {
	for _, conditions := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(ch.gone)) {
			if isConditionChain(name) != conditions || ch.kept[name] {
				continue
			}
			left, err := ch.tx.References(table, name)
			if err != nil {
				return err
			}
			if left > ch.gone[name] {
				continue
			}
			rules, err := ch.tx.Rules(table, name)
			if err != nil {
				return err
			}
			for _, rule := range rules {
				if conditions && !strings.HasSuffix(rule.Target, "_dnat_v1") {
					ch.gone[rule.Target]++
				}
			}
			ch.tx.DeleteChain(table, name)
		}
	}
	return nil
}

// delNFTables removes the attachment's elements, and its link from the guard when free says so.
func (c *call) delNFTables(ctx context.Context, r *record, free bool) error {
	items := r.items()
	err := c.delElements(ctx, r, free, func() ([]item, error) { return owned(c.nf, items, r.attachment().Owns) })
	if err == nil && len(r.Options.ConditionsV4)+len(r.Options.ConditionsV6) > 0 {
		err = c.dropConditions(ctx, r)
	}
	return err
}

// sweep removes every element whose mark is garbage.
func (c *call) sweep(ctx context.Context, garbage func(mark string) bool) error {
	return c.delElements(ctx, &record{}, false, func() ([]item, error) { return c.elements(garbage) })
}

// delElements deletes the elements that find returns. The first look costs no lock.
func (c *call) delElements(ctx context.Context, r *record, free bool, find func() ([]item, error)) error {
	if found, err := find(); err != nil || len(found) == 0 && !free {
		return err
	}
	return c.nf.Update(ctx, func(tx *nft.Tx) error {
		found, err := find()
		if err != nil {
			return err
		}
		ch := change{tx: tx, gone: map[string]int{}, deleted: map[string]bool{}}
		for _, it := range found {
			ch.delete(it.set, it.Element)
		}
		if free {
			if err := unguard(tx, r.Localnet, r.LocalnetWas); err != nil {
				return err
			}
		}
		return ch.dropUnused()
	})
}

// owned are those of the elements that there are and that are mine.
func owned(nf *nft.Conn, items []item, mine func(mark string) bool) ([]item, error) {
	var out []item
	for set, list := range bySet(items) {
		live, err := present(nf, set, keys(list))
		if err != nil {
			return nil, err
		}
		for _, e := range live {
			if mine(e.Comment) {
				out = append(out, item{set: set, Element: e})
			}
		}
	}
	return out, nil
}

// elements looks at all elements for those that are mine.
func (c *call) elements(mine func(mark string) bool) ([]item, error) {
	var out []item
	for _, set := range itemSets() {
		live, err := c.nf.Elements(table, set)
		if err != nil {
			return nil, err
		}
		for _, e := range live {
			if mine(e.Comment) {
				out = append(out, item{set: set, Element: e})
			}
		}
	}
	return out, nil
}

// dropConditions deletes the attachment's chains to which no element leads, since its ADD ended before that.
func (c *call) dropConditions(ctx context.Context, r *record) error {
	var names []string
	for _, f := range families() {
		names = append(names, f.conditionChains()+r.hash())
	}
	for _, chain := range masqLayout(r).Chains {
		names = append(names, chain.Name)
	}
	there := map[string]int{}
	for _, name := range names {
		chain, err := c.nf.Chain(table, name)
		if err != nil {
			return err
		}
		if chain != nil {
			there[name] = 0
		}
	}
	if len(there) == 0 {
		return nil
	}
	return c.nf.Update(ctx, func(tx *nft.Tx) error {
		ch := change{tx: tx, gone: maps.Clone(there)}
		return ch.dropUnused()
	})
}

// checkNFTables compares the attachment's elements and what it shares with others with the kernel's.
func (c *call) checkNFTables(r *record) error {
	var diffs []error
	for set, list := range bySet(r.items()) {
		live, err := c.nf.Get(table, set, keys(list)...)
		if err != nil {
			return err
		}
		for i, want := range list {
			if what := difference(r.attachment(), want.Element, live[i]); what != "" {
				diffs = append(diffs, drift("nftables map %q, host port %s: %s", set, want.port, what))
			}
		}
	}
	for _, l := range []nft.Layout{sharedLayout(r.Options.MarkBit), masqLayout(r)} {
		err := c.nf.Verify(l)
		if err != nil && !errors.Is(err, nft.ErrDrift) {
			return err
		}
		if err != nil {
			diffs = append(diffs, drift("%w", err))
		}
	}
	for _, a := range r.served() {
		chain := r.conditionChain(a.v4())
		if chain == "" {
			continue
		}
		rules, err := c.nf.Rules(table, chain)
		if err != nil {
			return err
		}
		if len(rules) != 1 || rules[0].Target != r.afterConditions(a) {
			diffs = append(diffs, drift("nftables chain %q: does not have the rule of %s", chain, conditionsKey(a.v4())))
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

func drift(format string, args ...any) error { return cni.Errorf(cni.CodeDrift, format, args...) }
