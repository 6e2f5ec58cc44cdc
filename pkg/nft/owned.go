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

// Item is an element, and the set or map that it is in.
type Item struct {
	Set string
	Element
	Name  string // in errors: an address or a port
	Owner string // the mark of whose it is, where the comment says something else
}

// Owned is a layout and the elements that attachments own in it: the comment of each is its owner's mark.
type Owned struct {
	Layout Layout   // that all attachments share
	Sets   []string // that have the elements
	// Chain returns the chain of that name, if elements lead to such chains. It is made with its first element,
	// and deleted with its last one. One without rules is not repaired. Nil: elements lead to no chains.
	Chain func(name string) (c Chain, ok bool)
	// Shared reports that several attachments may own one key. Its element stays as the first owner made it. The other
	// owners, and the first one from then on, are in a set beside it, and the element goes with the last of them.
	Shared bool
	// Former are sets of earlier layouts, which have elements as long as attachments from then are live.
	Former []string
	// FormerChains are chains of earlier layouts, which are deleted once Former has no elements.
	FormerChains []string
}

// Live returns the items that the kernel has and whose marks match. An item may be an entry among the owners.
func (o Owned) Live(c *Conn, items []Item, matches func(mark string) bool) ([]Item, error) {
	live, err := o.standing(c, items)
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

// All returns all elements whose marks match, entries among the owners last. Its cost grows with all elements.
func (o Owned) All(c *Conn, matches func(mark string) bool) (out []Item, err error) {
	sets, err := o.searched(c)
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

// Held lists the elements of all attachments; value writes one as nft(8) does. Its cost grows with the elements.
func (o Owned) Held(c *Conn, kind cni.HoldingKind, value func(Item) string) (all []cni.Holding, err error) {
	items, err := o.All(c, func(string) bool { return true })
	seen := map[string]bool{} // the first owner of a shared key is among the owners, too
	for _, it := range items {
		shown := it.shown()
		if id := shown.Comment + string(shown.Key); seen[id] {
			continue
		} else {
			seen[id] = true
		}
		what := "set"
		if it.Goto != "" || it.Data != nil {
			what = "map"
		}
		if owner, ok := cni.ParseMark(it.Comment); ok {
			all = append(all, cni.Holding{Attachment: owner, Kind: kind, Value: value(shown),
				Kept: fmt.Sprintf("nft %s %s %s", what, o.Layout.Table, it.Set)})
		}
	}
	return all, IfSupported(err)
}

// Remove takes the host's lock and deletes the found items whose marks still match. It does nothing for none.
func (o Owned) Remove(ctx context.Context, c *Conn, found []Item, matches func(mark string) bool) error {
	if len(found) == 0 {
		return nil
	}
	return o.Update(ctx, c, func(tx *Tx) error { return tx.Remove(found, matches) })
}

// Sweep deletes all elements whose marks match. Its cost grows with the elements of everybody.
func (o Owned) Sweep(ctx context.Context, c *Conn, matches func(mark string) bool) error {
	found, err := o.All(c, matches)
	if err != nil {
		return err
	}
	return o.Remove(ctx, c, found, matches)
}

// Verify compares items, the layout and the chains to which items lead with the kernel's. Differences match ErrDrift.
func (o Owned) Verify(c *Conn, items []Item) error {
	live, err := o.standing(c, items)
	if err != nil {
		return err
	}
	var diffs []error
	var chains []string
	for i, want := range items {
		chains = append(chains, want.Goto)
		if what := difference(want, live[i]); what != "" {
			diffs = append(diffs, o.differs(want, what))
		}
	}
	for _, l := range []Layout{o.Layout, o.layout(chains, map[string]bool{})} {
		err := c.Verify(l)
		if err != nil && !errors.Is(err, ErrDrift) {
			return err
		}
		diffs = append(diffs, err)
	}
	return errors.Join(diffs...)
}

func (o Owned) differs(it Item, what string) error {
	return drift(o.Layout.Table, fmt.Sprintf("set %q, %s", it.Set, it.Name), what)
}

func difference(want Item, live *Element) string {
	switch {
	case live == nil:
		return "no element"
	case !sameOwner(live.Comment, want.Comment):
		return fmt.Sprintf("the element belongs to %q", live.Comment)
	case live.Goto != want.Goto:
		return fmt.Sprintf("the element leads to chain %q, not %q", live.Goto, want.Goto)
	case !bytes.Equal(live.Data, want.Data):
		return "the element leads to another address or port"
	}
	return ""
}

// sameOwner compares the hashes with which marks begin.
func sameOwner(a, b string) bool {
	a, _, _ = strings.Cut(a, " ")
	b, _, _ = strings.Cut(b, " ")
	return a == b
}

// layout has the named chains to which elements may lead, but for those in seen, to which it adds them.
func (o Owned) layout(names []string, seen map[string]bool) Layout {
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

// Ensure stages what the kernel lacks of the owned layout and of the named chains, and keeps these. A chain is named
// before those that lead to it. Where the layout has lost rules, all chains to which elements lead are ensured.
func (tx *Tx) Ensure(chains ...string) error {
	for _, name := range chains {
		tx.settled[name] = true
	}
	if !tx.ensured {
		tx.ensured = true
		before := len(tx.msgs)
		if err := tx.EnsureLayout(tx.owned.Layout); err != nil {
			return err
		}
		if tx.Lacked = len(tx.msgs) > before; tx.Lacked {
			live, err := tx.Chains(tx.owned.Layout.Table)
			if err != nil {
				return err
			}
			for _, l := range live {
				chains = append(chains, l.Name)
			}
			tx.leavesFormer = true
		}
	}
	return tx.EnsureLayout(tx.owned.layout(chains, tx.seen))
}

// Put stages items, with the layout and the chains that they need. An element that is there and the same stays.
// resolve decides about other owners: it gets their elements that are in the place of items, and returns those of the
// items to put. Without resolve all are put. They replace other owners' elements, or are behind them if Shared.
func (tx *Tx) Put(items []Item, resolve func(others []Item) ([]Item, error)) error {
	live, err := tx.get(tx.owned.Layout.Table, items)
	if err != nil {
		return err
	}
	found := map[string]Element{} // by set and key
	var others []Item
	for i, e := range live {
		if e != nil {
			found[items[i].Set+string(e.Key)] = *e
			if !sameOwner(e.Comment, items[i].Comment) {
				others = append(others, Item{Set: items[i].Set, Element: *e, Name: items[i].Name})
			}
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
	var later, heads []Item
	if tx.owned.Shared {
		items, later, heads = behind(items, found)
	}
	added := map[string][]Element{}
	for _, it := range items {
		old, is := found[it.Set+string(it.Key)]
		if is && !tx.deleted[it.Set+string(it.Key)] {
			if difference(it, &old) == "" {
				continue
			}
			tx.delete(it.Set, old)
		}
		added[it.Set] = append(added[it.Set], it.Element)
	}
	for _, set := range slices.Sorted(maps.Keys(added)) {
		tx.Add(tx.owned.Layout.Table, set, added[set]...)
	}
	return tx.queue(later, heads)
}

// Restore adds missing items, the missing parts of the layout, and missing chains to which items jump. Another owner's
// element with the key of an item stays. If an owner lacks an item and does not exist, Restore skips all items of this
// owner that are missing. It returns what was missing, by the owner's mark; a missing shared part is returned for the
// first owner.
func (o Owned) Restore(ctx context.Context, c *Conn, items []Item, exists func(mark string) bool) (
	missing map[string]error, err error,
) {
	if len(items) == 0 {
		return nil, nil
	}
	err = o.Update(ctx, c, func(tx *Tx) error {
		missing = map[string]error{}
		known := map[string]bool{} // whether an owner that lacks an item exists
		live, err := o.standing(tx.Conn, items)
		if err != nil {
			return err
		}
		var own []Item
		seen := map[string]bool{} // the kernel takes one element of a key
		for i, it := range items {
			key := it.Set + string(it.Key)
			if o.Shared {
				key += it.Comment
			}
			isOthers := live[i] != nil && !sameOwner(live[i].Comment, it.Comment)
			if seen[key] || isOthers && !o.Shared {
				continue
			}
			if what := difference(it, live[i]); what != "" {
				owner := cmp.Or(it.Owner, it.Comment)
				if _, isKnown := known[owner]; !isKnown {
					known[owner] = exists(owner)
				}
				if !known[owner] {
					continue
				}
				missing[owner] = errors.Join(missing[owner], o.differs(it, what))
			}
			seen[key] = true
			own = append(own, it)
		}
		if len(own) == 0 {
			return nil
		}
		if err = tx.Put(own, nil); err == nil && len(missing) == 0 && len(tx.msgs) > 0 {
			first := cmp.Or(own[0].Owner, own[0].Comment)
			missing[first] = drift(o.Layout.Table, "what all attachments share", "rules are missing")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return missing, nil
}

// Remove stages the deletion of the items that the kernel has and whose marks match.
func (tx *Tx) Remove(items []Item, matches func(mark string) bool) error {
	if tx.owned.Shared {
		return tx.leave(items, matches)
	}
	live, err := tx.owned.Live(tx.Conn, items, matches)
	for _, it := range live {
		tx.delete(it.Set, it.Element)
	}
	return err
}

func (tx *Tx) delete(set string, e Element) {
	if key := set + string(e.Key); !tx.deleted[key] {
		tx.deleted[key] = true
		tx.Delete(tx.owned.Layout.Table, set, e)
		tx.unused[e.Goto]++
	}
}

// Drop names chains that Update deletes if nothing leads to them, as it does with chains that lost their elements.
func (tx *Tx) Drop(chains ...string) { tx.dropped = append(tx.dropped, chains...) }

// dropUnused stages the deletion of chains to which nothing leads any more, then of those to which their rules led.
func (tx *Tx) dropUnused(names ...string) error {
	t := tx.owned.Layout.Table
	for _, name := range names {
		if _, ours := tx.owned.chain(name); !ours || tx.settled[name] {
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
		if int(live.use)-len(rules) > tx.unused[name] {
			continue
		}
		tx.settled[name] = true
		tx.deleteChain(t, name)
		for _, r := range rules {
			tx.unused[r.Target]++
			if err := tx.dropUnused(r.Target); err != nil {
				return err
			}
		}
	}
	return nil
}
