package main

import (
	"context"
	"maps"
	"strings"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// delNFTables takes away what the attachment has in our table. Without its
// record everything there has to be looked at.
func delNFTables(ctx context.Context, nf *nft.Conn, st *state, free string) error {
	items := st.items()
	own := st.attachment()
	return removeNFTables(ctx, nf, freed{free, st.LocalnetWas}, func() ([]item, error) {
		left, err := present(nf, items, own.Owns)
		return left, err
	})
}

// sweepNFTables takes away every element whose mark is garbage.
func sweepNFTables(ctx context.Context, nf *nft.Conn, garbage func(mark string) bool) error {
	return removeNFTables(ctx, nf, freed{}, func() ([]item, error) { return owned(nf, garbage) })
}

// freed is a link that nobody needs any more, and what its last user recorded
// of it.
type freed struct{ link, was string }

// removeNFTables deletes the elements that find returns, and takes the link
// that is free now out of the guard. The first look costs no lock.
func removeNFTables(ctx context.Context, nf *nft.Conn, free freed, find func() ([]item, error)) error {
	if found, err := find(); err != nil || len(found) == 0 && free.link == "" {
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
		if err := unguard(tx, free.link, free.was); err != nil {
			return err
		}
		return ch.dropUnused()
	})
}

// unguard takes route_localnet back where we set it, and then stages the end of
// the interface's guard. Where the guard was flushed the record says what it
// was: without it containers would keep the way to the host's loopback.
func unguard(tx *nft.Tx, link, recorded string) error {
	if link == "" {
		return nil
	}
	live, err := tx.Get(table, localnetSet, nft.IfNameKey(link))
	if err != nil {
		return err
	}
	if live[0] != nil {
		recorded = strings.TrimPrefix(live[0].Comment, localnetWas)
	}
	if recorded == "0" {
		if err := writeLocalnet(link, "0"); err != nil {
			return err
		}
	}
	if live[0] != nil {
		tx.Delete(table, localnetSet, *live[0])
	}
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
