package nft

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Item is an element with its set or map.
type Item struct {
	Set string
	Element
	Name  string // an address or a port, for errors
	Owner string // for Restore: the owner's mark, if Comment is not a mark; otherwise empty
}

// Owned is a layout with the elements that attachments own in it. The comment of an element is its owner's mark.
type Owned struct {
	Layout Layout
	Sets   []string // the sets and maps of the layout whose elements have owners
	// Chain returns the chain with this name, if elements of verdict maps go to it. Such a chain is created with the
	// first reference to it and deleted with the last one. If its Rules are empty, another program adds the rules, and
	// they are not compared or repaired. Chain is nil if no element goes to a chain.
	Chain        func(name string) (c Chain, ok bool)
	Shared       bool     // a key may have several owners (share.go)
	FormerSets   []string // sets of earlier layouts, which have elements of attachments from that time
	FormerChains []string // chains of earlier layouts, which are deleted once FormerSets have no elements
}

// Live returns the items whose keys have an element with a matching mark, with the kernel's chain, data and comment. If
// an element of a shared key belongs to another owner, the item's own entry replaces it, if that exists (share.go).
func (o Owned) Live(c *Conn, items []Item, matches func(mark string) bool) ([]Item, error) {
	live, err := o.liveElements(c, items)
	var out []Item
	for i, e := range live {
		if e != nil && matches(e.Comment) {
			found := items[i]
			found.Goto, found.Data, found.Comment = e.Goto, e.Data, e.Comment
			out = append(out, found)
		}
	}
	return out, err
}

// All returns all elements with a matching mark. Entries in sets of owners (share.go) come last. The cost grows with
// the number of elements of all attachments.
func (o Owned) All(c *Conn, matches func(mark string) bool) (out []Item, err error) {
	sets, err := o.elementSets(c)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		live, err := c.Elements(o.Layout.Table, set)
		if err != nil {
			return nil, err
		}
		for _, e := range live {
			if matches(e.Comment) {
				out = append(out, Item{Set: set, Element: e})
			}
		}
	}
	return out, nil
}

// Holdings returns holdings for the elements of all attachments. value formats an element as nft(8) does. Its cost
// grows with the number of elements.
func (o Owned) Holdings(c *Conn, kind cni.HoldingKind, value func(Item) string) (all []cni.Holding, err error) {
	items, err := o.All(c, func(string) bool { return true })
	seen := map[string]bool{} // the first owner of a shared key has both the element and an entry
	for _, it := range items {
		plain := it.withoutOwner()
		id := plain.Comment + string(plain.Key)
		if seen[id] {
			continue
		}
		seen[id] = true
		what := "set"
		if it.Goto != "" || it.Data != nil {
			what = "map"
		}
		if h, ok := cni.HoldingOf(it.Comment); ok {
			h.Kind, h.Value, h.Kept = kind, value(plain), fmt.Sprintf("nft %s %s %s", what, o.Layout.Table, it.Set)
			all = append(all, h)
		}
	}
	return all, IfSupported(err)
}

// Remove deletes the found items whose marks still match under the host's lock. Without items, it does not lock.
func (o Owned) Remove(ctx context.Context, c *Conn, found []Item, matches func(mark string) bool) error {
	if len(found) == 0 {
		return nil
	}
	return o.Update(ctx, c, func(tx *Tx) error { return tx.Remove(found, matches) })
}

// Sweep deletes all elements with a matching mark. Its cost grows with the number of elements of all attachments.
func (o Owned) Sweep(ctx context.Context, c *Conn, matches func(mark string) bool) error {
	found, err := o.All(c, matches)
	if err != nil {
		return err
	}
	return o.Remove(ctx, c, found, matches)
}

// Verify compares the kernel's state with items, their chains and the layout. Differences match ErrDrift.
func (o Owned) Verify(c *Conn, items []Item) error {
	live, err := o.liveElements(c, items)
	if err != nil {
		return err
	}
	var diffs []error
	var chains []string
	for i, want := range items {
		chains = append(chains, want.Goto)
		if what := difference(want, live[i]); what != "" {
			diffs = append(diffs, o.itemDrift(want, what))
		}
	}
	for _, l := range []Layout{o.Layout, o.chainLayout(chains, map[string]bool{})} {
		err := c.Verify(l)
		if err != nil && !errors.Is(err, ErrDrift) {
			return err
		}
		diffs = append(diffs, err)
	}
	return errors.Join(diffs...)
}

func (o Owned) itemDrift(it Item, what string) error {
	return drift(o.Layout.Table, fmt.Sprintf("set %q, %s", it.Set, it.Name), what)
}

// difference describes how an element differs from the wanted one. It returns "" if they are equal.
func difference(want Item, live *Element) string {
	switch {
	case live == nil:
		return "no element"
	case !sameOwner(live.Comment, want.Comment):
		return fmt.Sprintf("the element belongs to %q", live.Comment)
	case live.Goto != want.Goto:
		return fmt.Sprintf("the element goes to chain %q, not %q", live.Goto, want.Goto)
	case !bytes.Equal(live.Data, want.Data):
		return "the element translates to another address or port"
	}
	return ""
}

// sameOwner reports whether two marks begin with the same hash.
func sameOwner(a, b string) bool {
	a, _, _ = strings.Cut(a, " ")
	b, _, _ = strings.Cut(b, " ")
	return a == b
}

// chainLayout returns a layout of the named chains that o.Chain knows, without chains in seen. It adds them to seen.
func (o Owned) chainLayout(names []string, seen map[string]bool) Layout {
	l := Layout{Table: o.Layout.Table}
	for _, name := range names {
		if c, ok := o.chain(name); ok && !seen[name] {
			seen[name] = true
			l.Chains = append(l.Chains, c)
		}
	}
	return l
}

func (o Owned) chain(name string) (Chain, bool) {
	if o.Chain == nil || name == "" {
		return Chain{}, false
	}
	return o.Chain(name)
}

// Ensure stages the missing parts of the owned layout and of the named chains, and keeps this transaction from deleting
// those chains. A chain must be named before the chains that jump to it. If the layout has lost rules, Ensure also
// repairs all existing chains that Owned.Chain knows.
func (tx *Tx) Ensure(chains ...string) error {
	for _, name := range chains {
		tx.neededChains[name] = true
	}
	if !tx.isEnsured {
		tx.isEnsured = true
		before := len(tx.msgs)
		if err := tx.EnsureLayout(tx.owned.Layout); err != nil {
			return err
		}
		if tx.LayoutStaged = len(tx.msgs) > before; tx.LayoutStaged {
			live, err := tx.Chains(tx.owned.Layout.Table)
			if err != nil {
				return err
			}
			for _, l := range live {
				chains = append(chains, l.Name)
			}
			tx.checkFormer = true
		}
	}
	return tx.EnsureLayout(tx.owned.chainLayout(chains, tx.ensuredChains))
}

// Put stages items, with the layout and the chains that they need. An element that exists and is identical stays.
//
// If resolve is not nil, it decides about conflicts: it gets the elements of other owners that have the keys of items,
// and returns the items to put. If resolve is nil, all items are put. An item replaces another owner's element of its
// key. If keys are shared, that element stays, and the item's owner becomes another owner of the key.
func (tx *Tx) Put(items []Item, resolve func(others []Item) ([]Item, error)) error {
	live, err := tx.get(tx.owned.Layout.Table, items)
	if err != nil {
		return err
	}
	found := map[string]Element{} // the kernel's elements, by set and key
	var others []Item
	for i, e := range live {
		if e == nil {
			continue
		}
		found[items[i].Set+string(e.Key)] = *e
		if !sameOwner(e.Comment, items[i].Comment) {
			others = append(others, Item{Set: items[i].Set, Element: *e, Name: items[i].Name})
		}
	}
	if resolve != nil {
		if items, err = resolve(others); err != nil || len(items) == 0 {
			return err
		}
	}
	var chains []string
	for _, it := range items {
		chains = append(chains, it.Goto)
	}
	if err := tx.Ensure(chains...); err != nil {
		return err
	}
	if !tx.owned.Shared {
		tx.stage(items, found)
		return nil
	}
	own, shared, firsts := splitShared(items, found)
	tx.stage(own, found)
	return tx.addOwners(shared, firsts)
}

// stage stages the items that are missing from found, the kernel's elements by set and key. An element that differs
// from its item is deleted first.
func (tx *Tx) stage(items []Item, found map[string]Element) {
	added := map[string][]Element{}
	for _, it := range items {
		old, exists := found[it.Set+string(it.Key)]
		if exists && !tx.deletedElems[it.Set+string(it.Key)] {
			if difference(it, &old) == "" {
				continue
			}
			tx.deleteOwned(it.Set, old)
		}
		added[it.Set] = append(added[it.Set], it.Element)
	}
	for _, set := range slices.Sorted(maps.Keys(added)) {
		tx.Add(tx.owned.Layout.Table, set, added[set]...)
	}
}

// Lacking returns the owners of missing items, where an owner can occur several times. Callers of Restore examine these
// owners before they take locks.
func (o Owned) Lacking(c *Conn, items []Item) (owners []string, err error) {
	live, err := o.liveElements(c, items)
	for i, e := range live {
		if difference(items[i], e) != "" {
			owners = append(owners, items[i].owner())
		}
	}
	return slices.Compact(owners), err // mostly, the items of an owner follow each other
}

// owner returns the mark of the item's owner.
func (it Item) owner() string { return cmp.Or(it.Owner, it.Comment) }

// Restore adds missing items of owners that exist, and the missing parts of the layout and of the chains that items go
// to. exists reports whether owners exist, by their marks. Restore skips owners that the caller has not examined, for
// example because they lost their items after Lacking. Another owner's element with the key of an item stays. missing
// has the differences, by the owner's mark. If only shared parts were missing, it has one for the first owner.
func (o Owned) Restore(ctx context.Context, c *Conn, items []Item, exists map[string]bool) (
	missing map[string]error, err error,
) {
	if len(items) == 0 {
		return nil, nil
	}
	err = o.Update(ctx, c, func(tx *Tx) error {
		missing = map[string]error{}
		live, err := o.liveElements(tx.Conn, items)
		if err != nil {
			return err
		}
		var own []Item
		seen := map[string]bool{} // the kernel accepts only one element of a key
		for i, it := range items {
			key := it.Set + string(it.Key)
			if o.Shared {
				key += it.Comment
			}
			isForeign := live[i] != nil && !sameOwner(live[i].Comment, it.Comment)
			if seen[key] || isForeign && !o.Shared {
				continue
			}
			if what := difference(it, live[i]); what != "" {
				owner := it.owner()
				if !exists[owner] {
					continue
				}
				missing[owner] = errors.Join(missing[owner], o.itemDrift(it, what))
			}
			seen[key] = true
			own = append(own, it)
		}
		if len(own) == 0 {
			return nil
		}
		if err = tx.Put(own, nil); err == nil && len(missing) == 0 && len(tx.msgs) > 0 {
			missing[own[0].owner()] = drift(o.Layout.Table, "shared chains", "rules are missing")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return missing, nil
}

// Remove stages the deletion of the items that the kernel has with a matching mark.
func (tx *Tx) Remove(items []Item, matches func(mark string) bool) error {
	if tx.owned.Shared {
		return tx.removeOwners(items, matches)
	}
	live, err := tx.owned.Live(tx.Conn, items, matches)
	for _, it := range live {
		tx.deleteOwned(it.Set, it.Element)
	}
	return err
}

// deleteOwned is Delete for an element of the owned layout. It stages the deletion only once.
func (tx *Tx) deleteOwned(set string, e Element) {
	if key := set + string(e.Key); !tx.deletedElems[key] {
		tx.deletedElems[key] = true
		tx.Delete(tx.owned.Layout.Table, set, e)
		tx.droppedRefs[e.Goto]++
	}
}

// Drop makes Update delete the named chains if nothing refers to them. A chain that loses a reference because Put or
// Remove deletes an element needs no Drop.
func (tx *Tx) Drop(chains ...string) { tx.unusedChains = append(tx.unusedChains, chains...) }

// dropUnused stages the deletion of the named chains that nothing refers to any more. If their rules had the last
// references to other chains of Owned.Chain, it also deletes these chains.
//
// The kernel counts the uses of a chain: its rules, plus the rules and elements that refer to it. The number of
// references is therefore this count minus the number of the chain's rules. The chain is unused if the transaction
// deletes all references, which droppedRefs counts. A chain to which another program's rules refer stays, because the
// kernel also counts these references.
func (tx *Tx) dropUnused(names ...string) error {
	t := tx.owned.Layout.Table
	for _, name := range names {
		if _, isOwned := tx.owned.chain(name); !isOwned || tx.neededChains[name] || tx.deletedChains[chainID(t, name)] {
			continue
		}
		live, err := tx.Chain(t, name)
		if err != nil {
			return err
		}
		if live == nil {
			continue
		}
		rules, err := tx.Rules(t, name)
		if err != nil {
			return err
		}
		if references := int(live.use) - len(rules); references > tx.droppedRefs[name] {
			continue
		}
		tx.deleteChain(t, name)
		for _, r := range rules {
			tx.droppedRefs[r.Target]++
			if err := tx.dropUnused(r.Target); err != nil {
				return err
			}
		}
	}
	return nil
}
