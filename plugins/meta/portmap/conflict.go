package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// holder is somebody who has a host port that conflicts with a wanted one.
type holder struct {
	wanted hostPort
	owner  *record // nil: there is no record
	name   string  // for people
	// leftover removes the holder's rules. It is nil unless they are the reference's and lead to an address that
	// our attachment has: IPAM gives an address once, so the other container is gone.
	leftover func(context.Context) error
}

// portTaken is the error of a host port that somebody else has.
func portTaken(wanted hostPort, holder string) error {
	return cni.Errorf(cni.CodePortTaken, "host port %s: held %s", wanted, holder)
}

// makeRoom looks for those who have the host ports that the attachment wants. An owner that is there is an
// error before anything changes. An attachment of the same container keeps its port, and the record notes it
// as yielded. makeRoom returns the records of the owners that are gone, for apply to replace; the leftovers of
// the reference it removes itself.
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
			return nil, cni.Errorf(cni.CodeExists,
				"host ports: this attachment has them already (%s); DEL removes them", r.attachment())
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
			return nil, portTaken(h.wanted, h.name)
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
			return nil, portTaken(h.wanted, h.name)
		}
	}
	r.trimLocalnet()
	for _, remove := range leftovers {
		err = errors.Join(err, remove(ctx))
	}
	return gone, err
}

// isGone says whether an owner has its host ports no more: its home is gone, or the reference's DEL, which
// leaves our record alone, removed its chain.
func (c *call) isGone(ctx context.Context, r *record) (bool, error) {
	gone, err := r.Home.gone(c.host)
	if err != nil || gone || r.Backend == nftables {
		return gone, err
	}
	return c.chainRemoved(ctx, r)
}

// search looks for those who have host ports that an attachment wants.
type search struct {
	*call
	store *store
	r     *record
	wants map[uint16][]hostPort
	found []holder
}

// holders are first the attachments that have a wanted host port, and then the reference's containers.
func (c *call) holders(ctx context.Context, s *store, r *record) ([]holder, error) {
	x := &search{call: c, store: s, r: r, wants: map[uint16][]hostPort{}}
	for _, p := range r.hostPorts() {
		x.wants[p.Port] = append(x.wants[p.Port], p)
	}
	if err := nft.IfSupported(x.inNFTables()); err != nil {
		return nil, err
	}
	used, err := c.usesIPTables(ctx, r)
	if err == nil && (used || r.Backend == iptables) {
		err = x.inIPTables(ctx)
	}
	if err == nil {
		err = nft.IfSupported(x.inReferenceTables())
	}
	return x.found, err
}

// add notes that somebody has a host port, if it conflicts with a wanted one.
func (x *search) add(held hostPort, h holder) {
	for _, p := range x.wants[held.Port] {
		if p.conflicts(held) {
			h.wanted = p
			x.found = append(x.found, h)
		}
	}
}

func holderOf(owner *record, held hostPort) holder {
	return holder{owner: owner, name: fmt.Sprintf("on %s by %s", addrName(held.Addr), owner.attachment())}
}

func unrecorded(mark string) string {
	return fmt.Sprintf("by %q, of whom there is no record (DEL or GC of that network removes it)", mark)
}

// inNFTables finds the elements of others that conflict.
func (x *search) inNFTables() error {
	var items []nft.Item
	lists := map[string]bool{} // of the host ports of one address, which are few
	for _, p := range x.r.hostPorts() {
		f := familyOf(p.Addr.Is4())
		items = append(items, nft.Item{Set: f.anyMap(), Element: nft.Element{Key: keyOf(p.Proto, nil, p.Port)}})
		if p.Addr.IsUnspecified() {
			lists[f.atMap()] = true
		} else {
			key := keyOf(p.Proto, nft.AddrKey(p.Addr), p.Port)
			items = append(items, nft.Item{Set: f.atMap(), Element: nft.Element{Key: key}})
		}
	}
	others := func(mark string) bool { return !x.r.attachment().Owns(mark) }
	live, err := owned(x.r.Options.MarkBit).Live(x.nf, items, others)
	if err != nil {
		return err
	}
	for set := range lists {
		more, err := nft.Owned{Layout: nft.Layout{Table: table}, Sets: []string{set}}.All(x.nf, others)
		if err != nil {
			return err
		}
		live = append(live, more...)
	}
	owners := map[string]*record{}
	for _, it := range live {
		hash, _, _ := strings.Cut(it.Comment, " ")
		if _, known := owners[hash]; !known && cni.ValidName(hash) {
			if owners[hash], err = recordOf(x.store, hash); err != nil {
				return err
			}
		}
		held, h := elementPort(it), holder{name: unrecorded(it.Comment)}
		if owner := owners[hash]; owner != nil {
			h = holderOf(owner, held)
		}
		x.add(held, h)
	}
	return nil
}

// inIPTables reads the records of those who are on iptables, and the reference's rules of containers of which
// there is no record.
func (x *search) inIPTables(ctx context.Context) error {
	all, err := records(x.store)
	if err != nil {
		return err
	}
	known := map[string]bool{dnChain(x.r.Network, x.r.ContainerID): true}
	for _, o := range all {
		known[dnChain(o.Network, o.ContainerID)] = true
		if o.Backend == iptables && o.hash() != x.r.hash() {
			for _, held := range o.hostPorts() {
				x.add(held, holderOf(o, held))
			}
		}
	}
	for _, a := range x.r.served() {
		f := familyOf(a.v4())
		entries, err := f.entries(ctx, x.nf, func(chain string) bool { return !known[chain] })
		listed := map[string]bool{}
		for _, entry := range entries {
			if chain := entry.Option("-j"); err == nil && !listed[chain] && x.wantsAny(entry) {
				listed[chain] = true
				err = x.inChain(ctx, f, entry)
			}
		}
		if ipt.NotInstalled(err) {
			x.Warn("chain %q may have rules of other plugins for the same ports: %v", hostportDNAT, err)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inChain reads the chain that a rule of the reference's leads to.
func (x *search) inChain(ctx context.Context, f family, entry ipt.Rule) error {
	chain := ipt.Chain{Family: f.ipt, Table: natTable, Name: entry.Option("-j")}
	where, err := x.variants(ctx, chain)
	if err != nil {
		return err
	}
	var ports []hostPort
	for _, v := range where {
		tool, err := ipt.FindVariant(ctx, f.ipt, v)
		if err != nil {
			return err
		}
		rules, err := tool.List(ctx, natTable, chain.Name)
		if err != nil {
			return err
		}
		for _, rule := range rules {
			if p, ok := hostPortOf(rule); ok {
				ports = append(ports, p)
			}
		}
	}
	network, id, ok := parseComment(entry.Option("--comment"))
	if !ok {
		network, id = "?", entry.Option("--comment")
	}
	h := holder{name: fmt.Sprintf("by network %q, container %q, through the iptables rules of other plugins"+
		" (DEL or GC of that network removes them)", network, id)}
	if slices.ContainsFunc(ports, func(p hostPort) bool { return x.r.hasAddr(p.To.Addr()) }) {
		h.leftover = func(ctx context.Context) error {
			return errors.Join(x.delChains(ctx, f, x.store, &record{Network: network, ContainerID: id})...)
		}
	}
	for _, p := range ports {
		x.add(p, h)
	}
	return nil
}

// wantsAny says whether a wanted host port is among those of an entry rule.
func (x *search) wantsAny(entry ipt.Rule) bool {
	for _, text := range strings.Split(entry.Option("--dports"), ",") {
		port, _ := strconv.ParseUint(text, 10, 16)
		isWanted := func(p hostPort) bool { return p.Proto.String() == entry.Option("-p") }
		if slices.ContainsFunc(x.wants[uint16(port)], isWanted) {
			return true
		}
	}
	return false
}

// inReferenceTables finds rules of the reference's in nftables.
func (x *search) inReferenceTables() error {
	for _, a := range x.r.served() {
		rules, err := familyOf(a.v4()).referenceRules(x.nf, referenceChains[:2]...)
		if err != nil {
			return err
		}
		for _, rule := range rules {
			h := holder{name: fmt.Sprintf(
				"by container %q, through the nftables rules of other plugins (its DEL removes them)", rule.Comment)}
			if x.r.isMentioned(rule) {
				h.leftover = func(ctx context.Context) error {
					return delReference(ctx, x.nf, &record{ContainerID: rule.Comment, Addrs: x.r.Addrs})
				}
			}
			for _, p := range x.r.hostPorts() {
				if p.Addr.Is4() == a.v4() && p.isIn(rule) {
					x.add(p, h)
				}
			}
		}
	}
	return nil
}
