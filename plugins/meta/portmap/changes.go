package main

import (
	"maps"
	"slices"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// changes collects what happens to elements, and so to the number of
// references to the chains that they lead to.
type changes struct {
	tx     *nft.Tx
	gone   map[string]int  // chain: elements that are deleted
	kept   map[string]bool // chains that get an element
	staged map[string]bool // elements that are deleted, by set and key
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
			if !ch.staged[set+string(old.Key)] && !st.attachment().Owns(old.Comment) {
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

// delete stages the deletion of an element once.
func (ch *changes) delete(set string, e nft.Element) {
	at := set + string(e.Key)
	if ch.staged[at] {
		return
	}
	if ch.staged == nil {
		ch.staged = map[string]bool{}
	}
	ch.staged[at] = true
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
