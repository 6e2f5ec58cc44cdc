package nft

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// ownersMark is the part of a set's name by which the set of the owners differs from the shared set.
const ownersMark = "_owners_v"

// ownersName is the name of the set that has the owners of keys of a set: "x_owners_v1" of "x_v1".
func ownersName(set string) string {
	i := strings.LastIndex(set, "_v")
	return set[:i] + "_owners" + set[i:]
}

func isOwners(set string) bool { return strings.Contains(set, ownersMark) }

// ownersSet is the set of owners of one of the layout's sets. No rule uses it.
func (o Owned) ownersSet(name string) Set {
	i := slices.IndexFunc(o.Layout.Sets, func(s Set) bool { return s.Name == name })
	s := o.Layout.Sets[i]
	return Set{Name: ownersName(name), Key: append(slices.Clone(s.Key), Mark, Mark), Data: s.Data,
		Comment: "all owners of keys that several attachments have"}
}

// entry is the item's element in the set of the owners: its key and its owner's hash, with the same data.
func (it Item) entry() Item {
	hash, _, _ := strings.Cut(it.Comment, " ")
	owner, err := hex.DecodeString(hash)
	if err != nil || len(owner) != 8 { // not an attachment's element
		owner, _ = hex.DecodeString(cni.Digest(it.Comment, 16))
	}
	out := it
	out.Set, out.Key = ownersName(it.Set), Key(it.Key, owner[:4], owner[4:])
	return out
}

// shown is the item as its key's element has it, without the owner's hash.
func (it Item) shown() Item {
	if isOwners(it.Set) {
		it.Key = it.Key[:len(it.Key)-8]
	}
	return it
}

// entries are those of the items that are not entries themselves.
func entries(items []Item) (out []Item) {
	for _, it := range items {
		if !isOwners(it.Set) {
			out = append(out, it.entry())
		}
	}
	return out
}

// searched returns the sets that may have elements of attachments: those of the layout, and of the former ones and the
// owners' sets those that the kernel has.
func (o Owned) searched(c *Conn) ([]string, error) {
	maybe := slices.Clone(o.Former)
	if o.Shared {
		for _, set := range o.Sets {
			maybe = append(maybe, ownersName(set))
		}
	}
	if len(maybe) == 0 {
		return o.Sets, nil
	}
	there, err := c.existing(o.Layout.Table, maybe)
	return append(slices.Clone(o.Sets), there...), err
}

// existing returns the sets of these names that the kernel has.
func (c *Conn) existing(t Table, sets []string) (there []string, err error) {
	msgs := make([]message, len(sets))
	for i, set := range sets {
		msgs[i] = t.message(unix.NFT_MSG_GETSET, "", nlattr.String(unix.NFTA_SET_NAME, set))
	}
	replies, err := c.query(msgs...)
	for i, r := range replies {
		if r != nil {
			there = append(there, sets[i])
		}
	}
	return there, err
}

// standing returns what the kernel has for each item: the element of its key or, where that is another owner's, the
// item's entry among the owners if it has one.
func (o Owned) standing(c *Conn, items []Item) ([]*Element, error) {
	live, err := c.get(o.Layout.Table, items)
	if err != nil || !o.Shared {
		return live, err
	}
	var places []int
	var behind []Item
	for i, e := range live {
		if e != nil && !sameOwner(e.Comment, items[i].Comment) {
			places, behind = append(places, i), append(behind, items[i].entry())
		}
	}
	waiting, err := c.get(o.Layout.Table, behind)
	for i, e := range waiting {
		if e != nil {
			live[places[i]] = e
		}
	}
	return live, err
}

// behind splits items into those that get the element of their key, and those whose key has an element of another
// owner in found, or among the items. That element stays as it is.
func behind(items []Item, found map[string]Element) (first, others []Item, heads []Item) {
	placed := map[string]Item{}
	for _, it := range items {
		key := it.Set + string(it.Key)
		head, is := placed[key]
		if e, live := found[key]; live && !is {
			head, is = Item{Set: it.Set, Element: e, Name: it.Name}, true
		}
		if is && !sameOwner(head.Comment, it.Comment) {
			others, heads = append(others, it), append(heads, head)
			continue
		}
		placed[key] = it
		first = append(first, it)
	}
	return first, others, heads
}

// queue stages entries among the owners for items, and for the elements that stand before them.
func (tx *Tx) queue(items, heads []Item) error {
	if len(items) == 0 {
		return nil
	}
	t := tx.owned.Layout.Table
	wanted := entries(slices.Concat(heads, items))
	live, err := tx.get(t, wanted)
	if err != nil {
		return err
	}
	made := map[string]bool{}
	for i, it := range wanted {
		key := it.Set + string(it.Key)
		switch e := live[i]; {
		case made[key], e != nil && difference(it, e) == "":
			continue
		case e != nil:
			tx.delete(it.Set, *e)
		}
		if !made[it.Set] { // it may exist; it is not part of the layout, since most hosts never need it
			made[it.Set] = true
			shared := slices.IndexFunc(tx.owned.Sets, func(set string) bool { return ownersName(set) == it.Set })
			tx.msgs = append(tx.msgs, newSet(t, tx.owned.ownersSet(tx.owned.Sets[shared]), uint32(len(tx.msgs))))
		}
		made[key] = true
		tx.Add(t, it.Set, it.Element)
	}
	for i, it := range items {
		if heads[i].Goto != it.Goto {
			tx.Behind = append(tx.Behind, heads[i])
		}
	}
	return nil
}

// leave stages the end of ownerships: an element goes with its last owner, otherwise the next owner gets it.
func (tx *Tx) leave(items []Item, matches func(mark string) bool) error {
	t := tx.owned.Layout.Table
	all := slices.Concat(entries(items), items)
	live, err := tx.get(t, all)
	if err != nil {
		return err
	}
	isShared := map[string]bool{} // keys of entries
	for i, it := range all {
		e := live[i]
		if e == nil || !matches(e.Comment) || tx.deleted[it.Set+string(e.Key)] {
			continue
		}
		tx.delete(it.Set, *e)
		tx.leavesFormer = tx.leavesFormer || slices.Contains(tx.owned.Former, it.Set)
		if isOwners(it.Set) {
			isShared[it.Set+string(e.Key)], tx.left[it.Set] = true, true
			continue
		}
		if entry := it.entry(); !isShared[entry.Set+string(entry.Key)] {
			continue
		}
		next, err := tx.next(it, matches)
		if err != nil {
			return err
		}
		if next != nil {
			tx.Add(t, it.Set, *next)
		}
	}
	return nil
}

// next returns the element of an item's key for another owner, nil if there is none. Its cost grows with the owners of
// all keys that are or were shared.
func (tx *Tx) next(it Item, matches func(mark string) bool) (*Element, error) {
	owners, err := tx.Elements(tx.owned.Layout.Table, ownersName(it.Set))
	for _, e := range owners {
		if bytes.HasPrefix(e.Key, it.Key) && !matches(e.Comment) {
			e.Key = it.Key
			return &e, nil
		}
	}
	return nil, err
}

// dropEmpty stages the deletion of the owners' sets that lose their last entry, and of the former layout when its last
// element goes.
func (tx *Tx) dropEmpty() error {
	for _, set := range slices.Sorted(maps.Keys(tx.left)) {
		if err := tx.dropIfEmpty([]string{set}, nil); err != nil {
			return err
		}
	}
	if !tx.leavesFormer || len(tx.owned.Former) == 0 {
		return nil
	}
	sets, err := tx.existing(tx.owned.Layout.Table, tx.owned.Former)
	if err != nil || len(sets) == 0 {
		return err
	}
	return tx.dropIfEmpty(sets, tx.owned.FormerChains)
}

// dropIfEmpty stages the deletion of sets, and of the chains that use them, unless one of the sets keeps an element.
func (tx *Tx) dropIfEmpty(sets, chains []string) error {
	t := tx.owned.Layout.Table
	for _, set := range sets {
		elements, err := tx.Elements(t, set)
		stays := func(e Element) bool { return !tx.deleted[set+string(e.Key)] }
		if err != nil || slices.ContainsFunc(elements, stays) {
			return err
		}
	}
	for _, name := range chains {
		live, err := tx.Chain(t, name)
		if err != nil {
			return err
		}
		if live != nil {
			tx.deleteChain(t, name)
		}
	}
	for _, set := range sets {
		tx.msgs = append(tx.msgs, t.message(unix.NFT_MSG_DELSET, fmt.Sprintf("delete set %q", set),
			nlattr.String(unix.NFTA_SET_NAME, set)))
	}
	return nil
}
