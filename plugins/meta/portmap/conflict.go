package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// holder is somebody who has a host port that conflicts with one that is wanted.
type holder struct {
	wanted hostPort
	owner  *record // nil: there is no record
	name   string  // for people
	// leftover removes it. It is nil unless the rules of the reference lead to an address that is the
	// attachment's by now: IPAM gives an address once, so the other container is gone.
	leftover func(context.Context) error
}

// conflict is the error of a host port that somebody else has.
func conflict(wanted hostPort, holder string) error {
	return cni.Errorf(cni.CodePortTaken, "host port %s: held %s", wanted, holder)
}

// makeRoom looks for those who have the host ports that the attachment wants. An owner that is there is an
// error before anything changes; an attachment of the same container keeps its port, which the record
// notes. It returns the records of the owners that are gone.
func (c *call) makeRoom(ctx context.Context, s *store, r *record) (gone []*record, err error) {
	own, err := recordOf(s, r.hash())
	if err != nil {
		return nil, err
	}
	if own != nil {
		isGone, err := c.isGone(ctx, own)
		if err != nil {
			return nil, err
		}
		if !isGone {
			return nil, cni.Errorf(cni.CodeExists, "host ports: this attachment has them already (%s); DEL removes them", r.attachment())
		}
		gone = append(gone, own)
	}
	holders, err := c.holders(ctx, s, r)
	if err != nil {
		return nil, err
	}
	var leftovers []func(context.Context) error
	seen := map[string]bool{} // owner: whether it is gone
	for _, h := range holders {
		switch {
		case slices.Contains(r.Yielded, h.wanted):
			continue
		case h.leftover != nil:
			leftovers = append(leftovers, h.leftover)
			continue
		case h.owner == nil:
			return nil, conflict(h.wanted, h.name)
		}
		isGone, known := seen[h.owner.hash()]
		if !known {
			if isGone, err = c.isGone(ctx, h.owner); err != nil {
				return nil, err
			}
			seen[h.owner.hash()] = isGone
			if isGone {
				gone = append(gone, h.owner)
			}
		}
		switch {
		case isGone:
		case h.owner.sharesContainer(r):
			c.Warn("host port %s: left to %s, which is the same container", h.wanted, h.owner.attachment())
			r.Yielded = append(r.Yielded, h.wanted)
		default:
			return nil, conflict(h.wanted, h.name)
		}
	}
	if !slices.ContainsFunc(r.served(), address.v4) {
		r.Localnet = ""
	}
	for _, remove := range leftovers {
		err = errors.Join(err, remove(ctx))
	}
	return gone, err
}

// isGone says whether an owner has its host ports no more: its namespace is gone, or the reference, whose
// DEL leaves our record alone, removed its chain.
func (c *call) isGone(ctx context.Context, r *record) (bool, error) {
	gone, err := r.Owner.gone(c.host)
	if err != nil || gone || r.Backend == nftables {
		return gone, err
	}
	return c.chainRemoved(ctx, r)
}

// wanted are host ports by their number.
type wanted map[uint16][]hostPort

func wantedBy(r *record) wanted {
	w := wanted{}
	for _, p := range r.hostPorts() {
		w[p.Port] = append(w[p.Port], p)
	}
	return w
}

// holders are first the attachments that have a wanted host port, and then the reference's containers.
func (c *call) holders(ctx context.Context, s *store, r *record) ([]holder, error) {
	w := wantedBy(r)
	out, err := c.holdersInNFTables(s, r, w)
	if err != nil {
		return nil, err
	}
	shared, err := c.usesIPTables(ctx, r)
	if err != nil {
		return nil, err
	}
	if shared || r.Backend == iptables {
		all, err := records(s)
		if err != nil {
			return nil, err
		}
		out = append(out, holdersOnIPTables(all, r, w)...)
		reference, err := c.referenceInIPTables(ctx, s, r, w)
		if err != nil {
			return nil, err
		}
		out = append(out, reference...)
	}
	reference, err := c.referenceInNFTables(r)
	return append(out, reference...), nft.IfSupported(err)
}

// holdersInNFTables finds the elements of others under the wanted keys, and those of one address beside all.
func (c *call) holdersInNFTables(s *store, r *record, w wanted) ([]holder, error) {
	live, err := c.published(r)
	if err != nil {
		return nil, nft.IfSupported(err)
	}
	var out []holder
	owners := map[string]*record{}
	for _, it := range live {
		hash, _, _ := strings.Cut(it.Comment, " ")
		if _, known := owners[hash]; !known && cni.ValidName(hash) {
			if owners[hash], err = recordOf(s, hash); err != nil {
				return nil, err
			}
		}
		held := elementPort(it)
		for _, p := range w[held.Port] {
			if p.conflicts(held) {
				out = append(out, holderOf(p, held, owners[hash], it.Comment))
			}
		}
	}
	return out, nil
}

func holderOf(p, held hostPort, owner *record, mark string) holder {
	if owner == nil {
		return holder{wanted: p, name: unrecorded(mark)}
	}
	return holder{wanted: p, owner: owner, name: fmt.Sprintf("on %s by %s", addrName(held.Addr), owner.attachment())}
}

func unrecorded(mark string) string {
	return fmt.Sprintf("by %q, of whom there is no record (DEL or GC of that network removes it)", mark)
}

// published are the elements of others that may conflict with the attachment's host ports.
func (c *call) published(r *record) ([]nft.Item, error) {
	var items []nft.Item
	lists := map[string]bool{} // of the host ports of one address, which are few
	for _, p := range r.hostPorts() {
		f := familyOf(p.Addr.Is4())
		items = append(items, nft.Item{Set: f.anyMap(), Element: nft.Element{Key: keyOf(p.Proto, nil, p.Port)}})
		if p.Addr.IsUnspecified() {
			lists[f.atMap()] = true
		} else {
			items = append(items, nft.Item{Set: f.atMap(), Element: nft.Element{Key: keyOf(p.Proto, nft.AddrKey(p.Addr), p.Port)}})
		}
	}
	others := func(mark string) bool { return !r.attachment().Owns(mark) }
	out, err := owned(r.Options.MarkBit).Live(c.nf, items, others)
	if err != nil {
		return nil, err
	}
	for set := range lists {
		live, err := nft.Owned{Layout: nft.Layout{Table: table}, Sets: []string{set}}.All(c.nf, others)
		if err != nil {
			return nil, err
		}
		out = append(out, live...)
	}
	return out, nil
}

// holdersOnIPTables compares with the records of the attachments that are on iptables.
func holdersOnIPTables(all []*record, r *record, w wanted) []holder {
	var out []holder
	for _, o := range all {
		if o.Backend != iptables || o.hash() == r.hash() {
			continue
		}
		for _, held := range o.hostPorts() {
			for _, p := range w[held.Port] {
				if p.conflicts(held) {
					out = append(out, holderOf(p, held, o, ""))
				}
			}
		}
	}
	return out
}
