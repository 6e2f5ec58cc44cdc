package masq

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

func addNFTables(ctx context.Context, nf *nft.Conn, c Config) error {
	addrs := distinct(c.Addrs)
	return nf.Update(ctx, func(tx *nft.Tx) error {
		if err := ensure(tx, addrs); err != nil {
			return err
		}
		ch := changes{tx: tx, gone: map[string]int{}, kept: map[string]bool{}}
		for _, p := range addrs {
			if err := ch.put(c.Attachment, p); err != nil {
				return err
			}
		}
		return ch.dropUnused()
	})
}

// ensure stages what is missing of the shared layout and of the chains of the prefixes. Where the
// shared rules were lost, those of the other networks' chains probably were, too.
func ensure(tx *nft.Tx, addrs []netip.Prefix) error {
	lacking, err := tx.Ensure(sharedLayout())
	if err != nil {
		return err
	}
	if lacking {
		live, err := tx.Chains(table)
		if err != nil {
			return err
		}
		for _, l := range live {
			if p, ok := parseChainName(l.Name); ok {
				addrs = append(addrs[:len(addrs):len(addrs)], p)
			}
		}
	}
	_, err = tx.Ensure(chains(addrs))
	return err
}

// changes collects what happens to elements, and so to the number of references to their chains.
type changes struct {
	tx   *nft.Tx
	gone map[string]int  // chain: elements that are deleted
	kept map[string]bool // chains that get an element
}

// put stages the element of an address unless it is there. Another attachment's is replaced.
func (ch *changes) put(a cni.Attachment, p netip.Prefix) error {
	mapName, want := element(a, p)
	live, err := ch.tx.Get(table, mapName, want.Key)
	if err != nil {
		return err
	}
	if old := live[0]; old != nil {
		if a.Owns(old.Comment) && old.Goto == want.Goto {
			return nil
		}
		ch.remove(mapName, *old)
	}
	ch.kept[want.Goto] = true
	ch.tx.Add(table, mapName, want)
	return nil
}

func (ch *changes) remove(mapName string, e nft.Element) {
	ch.tx.Delete(table, mapName, e)
	ch.gone[e.Goto]++
}

// dropUnused stages the deletion of the chains that lose their last element.
func (ch *changes) dropUnused() error {
	for name, n := range ch.gone {
		if _, ours := parseChainName(name); !ours || ch.kept[name] {
			continue
		}
		left, err := ch.tx.References(table, name)
		if err != nil {
			return err
		}
		if left <= n {
			ch.tx.DeleteChain(table, name)
		}
	}
	return nil
}

func delNFTables(ctx context.Context, nf *nft.Conn, c Config) error {
	a := c.Attachment
	found, err := hinted(nf, a, c.Addrs)
	if err == nil && found == nil {
		found, err = owned(nf, a.Owns)
	}
	if err != nil {
		return err
	}
	return remove(ctx, nf, found, a.Owns)
}

func gcNFTables(ctx context.Context, nf *nft.Conn, valid cni.Set) error {
	found, err := owned(nf, valid.Garbage)
	if err != nil {
		return err
	}
	return remove(ctx, nf, found, valid.Garbage)
}

// elements are those of each map.
type elements map[string][]nft.Element

// remove deletes the elements that still are somebody's whose they may be. They were found without the
// lock, which a host where there is nothing does not need.
func remove(ctx context.Context, nf *nft.Conn, found elements, mine func(mark string) bool) error {
	if len(found) == 0 {
		return nil
	}
	return nf.Update(ctx, func(tx *nft.Tx) error {
		ch := changes{tx: tx, gone: map[string]int{}}
		for _, mapName := range []string{map4, map6} {
			var keys [][]byte
			for _, e := range found[mapName] {
				keys = append(keys, e.Key)
			}
			live, err := tx.Get(table, mapName, keys...)
			if err != nil {
				return err
			}
			for _, e := range live {
				if e != nil && mine(e.Comment) {
					ch.remove(mapName, *e)
				}
			}
		}
		return ch.dropUnused()
	})
}

// hinted finds the attachment's elements by their addresses. It returns nil unless there is one for
// each: then the hint is not the whole truth.
func hinted(nf *nft.Conn, a cni.Attachment, addrs []netip.Prefix) (elements, error) {
	found := elements{}
	for _, p := range distinct(addrs) {
		mapName, e := element(a, p)
		live, err := nf.Get(table, mapName, e.Key)
		if err != nil || live[0] == nil || !a.Owns(live[0].Comment) {
			return nil, err
		}
		found[mapName] = append(found[mapName], *live[0])
	}
	if len(found) == 0 {
		return nil, nil
	}
	return found, nil
}

// owned finds elements by their owner, which means to look at all.
func owned(nf *nft.Conn, mine func(mark string) bool) (elements, error) {
	found := elements{}
	for _, mapName := range []string{map4, map6} {
		live, err := nf.Elements(table, mapName)
		if err != nil {
			return nil, err
		}
		for _, e := range live {
			if mine(e.Comment) {
				found[mapName] = append(found[mapName], e)
			}
		}
	}
	return found, nil
}

func checkNFTables(_ context.Context, nf *nft.Conn, c Config) error {
	var diffs []error
	addrs := distinct(c.Addrs)
	for _, p := range addrs {
		mapName, want := element(c.Attachment, p)
		live, err := nf.Get(table, mapName, want.Key)
		if err != nil {
			return err
		}
		if what := difference(c.Attachment, want, live[0]); what != "" {
			diffs = append(diffs, fmt.Errorf("nftables map %q, address %s: %w: %s", mapName, p.Addr(), ErrMissing, what))
		}
	}
	for _, l := range []nft.Layout{sharedLayout(), chains(addrs)} {
		err := nf.Verify(l)
		if err != nil && !errors.Is(err, nft.ErrDrift) {
			return err
		}
		if err != nil {
			diffs = append(diffs, fmt.Errorf("%w: %w", ErrMissing, err))
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
	}
	return ""
}
