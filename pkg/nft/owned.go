package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Item is an element, and the set or map that it is in.
type Item struct {
	Set string
	Element
	Name string // in errors: an address or a port
}

// Owned is a layout with the elements that attachments own in it: the comment of each is its owner's mark.
type Owned struct {
	Layout Layout   // that all attachments share
	Sets   []string // that have the elements
	// Chain returns the chain of that name, when elements lead to such chains: ok is false for all others. The
	// chain is made with its first element and deleted with its last one. A Chain without rules is not repaired
	// when the kernel's has lost some. Nil: elements lead to no chains.
	Chain func(name string) (c Chain, ok bool)
	// Stale says whether a chain belongs to another layout. Ensure deletes such chains when it makes this one. Nil:
	// none does.
	Stale func(name string) bool
}

// Update is Conn.Update for changes of owned elements. A chain that loses its last element is deleted in the same
// batch, and so on with the chains to which it led.
func (o Owned) Update(ctx context.Context, c *Conn, change func(*Change) error) error {
	return c.Update(ctx, func(tx *Tx) error {
		ch := &Change{Tx: tx, owned: o, settled: map[string]bool{}, deleted: map[string]bool{}, gone: map[string]int{}}
		if err := change(ch); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(ch.gone)) {
			if err := ch.dropUnused(name); err != nil {
				return err
			}
		}
		return nil
	})
}

// Live returns the items that the kernel has and whose marks match.
func (o Owned) Live(c *Conn, items []Item, matches func(mark string) bool) ([]Item, error) {
	live, err := c.get(o.Layout.Table, items)
	var out []Item
	for i, e := range live {
		if e != nil && matches(e.Comment) {
			out = append(out, Item{items[i].Set, *e, items[i].Name})
		}
	}
	return out, err
}

// All returns all elements whose marks match. Its cost grows with the elements of everybody.
func (o Owned) All(c *Conn, matches func(mark string) bool) ([]Item, error) {
	var out []Item
	for _, set := range o.Sets {
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

// Remove deletes the found items whose marks still match under the host's lock. Where nothing was found it does not
// take the lock.
func (o Owned) Remove(ctx context.Context, c *Conn, found []Item, matches func(mark string) bool) error {
	if len(found) == 0 {
		return nil
	}
	return o.Update(ctx, c, func(ch *Change) error { return ch.Remove(found, matches) })
}

// Sweep deletes all elements whose marks match. Its cost grows with the elements of everybody.
func (o Owned) Sweep(ctx context.Context, c *Conn, matches func(mark string) bool) error {
	found, err := o.All(c, matches)
	if err != nil {
		return err
	}
	return o.Remove(ctx, c, found, matches)
}

// Verify compares items, the layout and the chains to which the items lead with what the kernel has. Its
// error joins the differences and matches ErrDrift.
func (o Owned) Verify(c *Conn, items []Item) error {
	live, err := c.get(o.Layout.Table, items)
	if err != nil {
		return err
	}
	var diffs []error
	var chains []string
	for i, want := range items {
		chains = append(chains, want.Goto)
		if what := difference(want, live[i]); what != "" {
			diffs = append(diffs, drift(
				fmt.Sprintf("nftables table %q, set %q, %s", o.Layout.Table, want.Set, want.Name),
				"%s", what))
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

// layout holds those of the named chains that are for elements to lead to and not yet seen.
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

// Change is a Tx for owned elements. It counts what leads to each chain.
type Change struct {
	*Tx
	Lacked  bool // the kernel lacked some of the layout when it was ensured
	owned   Owned
	ensured bool            // the layout is
	settled map[string]bool // chains that are ensured, or deleted
	deleted map[string]bool // elements, by set and key
	gone    map[string]int  // chain: how much leads to it and is deleted
}

// Ensure stages what the kernel lacks of the layout and of the named chains, and keeps the chains. A chain is named
// before those that lead to it. Where shared rules were lost Ensure looks at all chains that elements may lead to,
// since their rules probably were lost, too.
func (ch *Change) Ensure(chains ...string) error {
	if !ch.ensured {
		ch.ensured = true
		lacking, err := ch.Tx.Ensure(ch.owned.Layout)
		if err != nil {
			return err
		}
		if ch.Lacked = lacking; lacking {
			if ch.owned.Stale != nil {
				if err := ch.DeleteChains(ch.owned.Layout.Table, ch.owned.Stale); err != nil {
					return err
				}
			}
			live, err := ch.Chains(ch.owned.Layout.Table)
			if err != nil {
				return err
			}
			for _, l := range live {
				chains = append(chains, l.Name)
			}
		}
	}
	_, err := ch.Tx.Ensure(ch.owned.layout(chains, ch.settled))
	return err
}

// Put stages items, with the layout and the chains that they need. An element that is there and the same stays.
// Another owner's is replaced when replace returns nil for it, or is nil itself; otherwise Put returns the error.
func (ch *Change) Put(items []Item, replace func(old Item) error) error {
	var chains []string
	for _, it := range items {
		chains = append(chains, it.Goto)
	}
	if err := ch.Ensure(chains...); err != nil {
		return err
	}
	live, err := ch.get(ch.owned.Layout.Table, items)
	if err != nil {
		return err
	}
	added := map[string][]Element{}
	for i, it := range items {
		if old := live[i]; old != nil && !ch.deleted[it.Set+string(it.Key)] {
			if difference(it, old) == "" {
				continue
			}
			if replace != nil && !sameOwner(old.Comment, it.Comment) {
				if err := replace(Item{it.Set, *old, it.Name}); err != nil {
					return err
				}
			}
			ch.delete(it.Set, *old)
		}
		added[it.Set] = append(added[it.Set], it.Element)
	}
	for _, set := range ch.owned.Sets {
		ch.Add(ch.owned.Layout.Table, set, added[set]...)
	}
	return nil
}

// Remove stages the deletion of the items that the kernel has and whose marks match.
func (ch *Change) Remove(items []Item, matches func(mark string) bool) error {
	live, err := ch.owned.Live(ch.Conn, items, matches)
	for _, it := range live {
		ch.delete(it.Set, it.Element)
	}
	return err
}

// delete stages the deletion of an element, once however often it is called for it.
func (ch *Change) delete(set string, e Element) {
	if at := set + string(e.Key); !ch.deleted[at] {
		ch.deleted[at] = true
		ch.Delete(ch.owned.Layout.Table, set, e)
		ch.gone[e.Goto]++
	}
}

// Drop names chains that Update deletes with the others that lost their elements, if they exist and nothing leads
// to them.
func (ch *Change) Drop(chains ...string) {
	for _, name := range chains {
		if _, named := ch.gone[name]; !named {
			ch.gone[name] = 0
		}
	}
}

// dropUnused stages the deletion of a chain when nothing leads to it any more, and of those to which its rules led.
func (ch *Change) dropUnused(name string) error {
	t := ch.owned.Layout.Table
	if _, ours := ch.owned.chain(name); !ours || ch.settled[name] {
		return nil
	}
	live, err := ch.Tx.Chain(t, name)
	if err != nil || live == nil {
		return err
	}
	rules, err := ch.Rules(t, name)
	if err != nil || int(live.use)-len(rules) > ch.gone[name] {
		return err
	}
	ch.settled[name] = true
	ch.DeleteChain(t, name)
	for _, r := range rules {
		ch.gone[r.Target]++
		if err := ch.dropUnused(r.Target); err != nil {
			return err
		}
	}
	return nil
}
