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

// Several attachments can own one key if Owned.Shared is set. The kernel accepts only one element of a key, which stays
// as its first owner added it. As soon as a key has a second owner, all owners of the key have entries in a set of
// owners, whose key is the shared key and the hash of the owner:
//
//	set addrs_v1:         10.1.0.2 comment "A"
//	set addrs_owners_v1:  10.1.0.2 . hash(A) comment "A", 10.1.0.2 . hash(B) comment "B"
//
// When A leaves, its entry is deleted, and the element becomes B's: it is replaced by the data and the comment of B's
// entry. The element is deleted with its last owner, and the set of owners with its last entry.

const ownersInfix = "_owners_v" // part of the name of each set of owners, but not of other sets' names

// ownersName returns the name of the set of owners for a set: "x_owners_v1" for "x_v1".
func ownersName(set string) string {
	i := strings.LastIndex(set, "_v")
	return set[:i] + "_owners" + set[i:]
}

func isOwnersSet(set string) bool { return strings.Contains(set, ownersInfix) }

// ownersSet returns the set of owners for one of the layout's sets. No rule uses it. The owner's hash has 8 bytes, so
// its part of the key is two fields of the type Mark, which has 4 bytes.
func (o Owned) ownersSet(name string) Set {
	i := slices.IndexFunc(o.Layout.Sets, func(s Set) bool { return s.Name == name })
	s := o.Layout.Sets[i]
	return Set{Name: ownersName(name), Key: append(slices.Clone(s.Key), Mark, Mark), Data: s.Data,
		Comment: "all owners of keys that several attachments have"}
}

// ownerEntry returns the item's entry in the set of owners: the key with the owner's hash, and the same data.
func (it Item) ownerEntry() Item {
	hash, _, _ := strings.Cut(it.Comment, " ")
	owner, err := hex.DecodeString(hash)
	if err != nil || len(owner) != 8 { // the comment is not an attachment's mark
		owner, _ = hex.DecodeString(cni.Digest(it.Comment, 16))
	}
	out := it
	out.Set, out.Key = ownersName(it.Set), Key(it.Key, owner[:4], owner[4:])
	return out
}

// withoutOwner returns the item with its shared key, without the owner's hash, and in the set of that key.
func (it Item) withoutOwner() Item {
	if isOwnersSet(it.Set) {
		it.Set, it.Key = strings.Replace(it.Set, ownersInfix, "_v", 1), it.Key[:len(it.Key)-8]
	}
	return it
}

// ownerEntries returns the entries of the items.
func ownerEntries(items []Item) []Item {
	out := make([]Item, len(items))
	for i, it := range items {
		out[i] = it.ownerEntry()
	}
	return out
}

// elementSets returns the sets that can have elements of attachments: the layout's sets and, if they exist, the former
// sets and the sets of owners.
func (o Owned) elementSets(c *Conn) ([]string, error) {
	optional := slices.Clone(o.FormerSets)
	if o.Shared {
		for _, set := range o.Sets {
			optional = append(optional, ownersName(set))
		}
	}
	if len(optional) == 0 {
		return o.Sets, nil
	}
	existing, err := c.existingSets(o.Layout.Table, optional)
	return append(slices.Clone(o.Sets), existing...), err
}

// existingSets returns the named sets that exist.
func (c *Conn) existingSets(t Table, sets []string) (existing []string, err error) {
	msgs := make([]message, len(sets))
	for i, set := range sets {
		msgs[i] = t.message(unix.NFT_MSG_GETSET, "", nlattr.String(unix.NFTA_SET_NAME, set))
	}
	replies, err := c.query(msgs...)
	for i, r := range replies {
		if r != nil {
			existing = append(existing, sets[i])
		}
	}
	return existing, err
}

// liveElements returns the kernel's element for each item, or nil. If keys are shared and the element belongs to
// another owner, it returns the item's own entry in the set of owners, if that exists.
func (o Owned) liveElements(c *Conn, items []Item) ([]*Element, error) {
	live, err := c.get(o.Layout.Table, items)
	if err != nil || !o.Shared {
		return live, err
	}
	var indexes []int
	var entries []Item
	for i, e := range live {
		if e != nil && !sameOwner(e.Comment, items[i].Comment) {
			indexes, entries = append(indexes, i), append(entries, items[i].ownerEntry())
		}
	}
	liveEntries, err := c.get(o.Layout.Table, entries)
	for i, e := range liveEntries {
		if e != nil {
			live[indexes[i]] = e
		}
	}
	return live, err
}

// splitShared divides items into own and shared. shared has the items whose key already has another owner's element:
// one in found, or an earlier item of own. firsts[i] is that element for shared[i]. All other items are in own.
func splitShared(items []Item, found map[string]Element) (own, shared, firsts []Item) {
	elements := map[string]Item{} // by set and key
	for _, it := range items {
		key := it.Set + string(it.Key)
		first, exists := elements[key]
		if e, isLive := found[key]; isLive && !exists {
			first, exists = Item{Set: it.Set, Element: e, Name: it.Name}, true
		}
		if exists && !sameOwner(first.Comment, it.Comment) {
			shared, firsts = append(shared, it), append(firsts, first)
			continue
		}
		elements[key] = it
		own = append(own, it)
	}
	return own, shared, firsts
}

// addOwners stages entries in the sets of owners for two results of splitShared: the shared items, and firsts, the
// elements that the same keys already have.
func (tx *Tx) addOwners(shared, firsts []Item) error {
	if len(shared) == 0 {
		return nil
	}
	t := tx.owned.Layout.Table
	wanted := ownerEntries(slices.Concat(firsts, shared))
	live, err := tx.get(t, wanted)
	if err != nil {
		return err
	}
	staged := map[string]bool{} // entries, by set and key, and sets of owners
	for i, it := range wanted {
		key := it.Set + string(it.Key)
		switch e := live[i]; {
		case staged[key], e != nil && difference(it, e) == "":
			continue
		case e != nil:
			tx.deleteOwned(it.Set, *e)
		}
		if !staged[it.Set] { // no effect if the set exists; most hosts never need it, so the layout omits it
			staged[it.Set] = true
			i := slices.IndexFunc(tx.owned.Sets, func(set string) bool { return ownersName(set) == it.Set })
			tx.msgs = append(tx.msgs, newSet(t, tx.owned.ownersSet(tx.owned.Sets[i]), uint32(len(tx.msgs))))
		}
		staged[key] = true
		tx.Add(t, it.Set, it.Element)
	}
	for i, it := range shared {
		if firsts[i].Goto != it.Goto {
			tx.Prevailing = append(tx.Prevailing, firsts[i])
		}
	}
	return nil
}

// removeOwners stages the deletion of the items' elements and entries with a matching mark. If the key of a deleted
// element has another owner, it stages the element of that owner.
func (tx *Tx) removeOwners(items []Item, matches func(mark string) bool) error {
	t := tx.owned.Layout.Table
	shared := make([]Item, len(items)) // after an entry was found, its owner may have become the first owner
	for i, it := range items {
		shared[i] = it.withoutOwner()
	}
	all := slices.Concat(ownerEntries(shared), shared) // entries first, for hadEntry
	live, err := tx.get(t, all)
	if err != nil {
		return err
	}
	hadEntry := map[string]bool{} // deleted entries, by set and key
	for i, it := range all {
		e := live[i]
		if e == nil || !matches(e.Comment) || tx.deletedElems[it.Set+string(e.Key)] {
			continue
		}
		tx.deleteOwned(it.Set, *e)
		tx.checkFormer = tx.checkFormer || slices.Contains(tx.owned.FormerSets, it.Set)
		if isOwnersSet(it.Set) {
			hadEntry[it.Set+string(e.Key)], tx.shrunkSets[it.Set] = true, true
			continue
		}
		if entry := it.ownerEntry(); !hadEntry[entry.Set+string(entry.Key)] {
			continue // an owner without an entry is the only owner of the key
		}
		next, err := tx.nextOwner(it, matches)
		if err != nil {
			return err
		}
		if next != nil {
			tx.Add(t, it.Set, *next)
		}
	}
	return nil
}

// nextOwner returns the element for another owner of the item's key, or nil if no other owner has an entry. Its cost
// grows with the number of entries in the set of owners.
func (tx *Tx) nextOwner(it Item, matches func(mark string) bool) (*Element, error) {
	owners, err := tx.Elements(tx.owned.Layout.Table, ownersName(it.Set))
	for _, e := range owners {
		if bytes.HasPrefix(e.Key, it.Key) && !matches(e.Comment) {
			e.Key = it.Key
			return &e, nil
		}
	}
	return nil, err
}

// dropEmpty stages the deletion of sets of owners without entries, and of the former layout without elements.
func (tx *Tx) dropEmpty() error {
	for _, set := range slices.Sorted(maps.Keys(tx.shrunkSets)) {
		if err := tx.dropIfEmpty([]string{set}, nil); err != nil {
			return err
		}
	}
	if !tx.checkFormer || len(tx.owned.FormerSets) == 0 {
		return nil
	}
	sets, err := tx.existingSets(tx.owned.Layout.Table, tx.owned.FormerSets)
	if err != nil || len(sets) == 0 {
		return err
	}
	return tx.dropIfEmpty(sets, tx.owned.FormerChains)
}

// dropIfEmpty stages the deletion of the sets, and of the chains that use them, unless a set keeps an element.
func (tx *Tx) dropIfEmpty(sets, chains []string) error {
	t := tx.owned.Layout.Table
	for _, set := range sets {
		elements, err := tx.Elements(t, set)
		stays := func(e Element) bool { return !tx.deletedElems[set+string(e.Key)] }
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
