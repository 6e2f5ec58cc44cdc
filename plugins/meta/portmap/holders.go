package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// search looks for those who have host ports that an attachment wants.
type search struct {
	*call
	store *store
	r     *record
	wants map[uint16][]hostPort
	gone  map[string]bool // by hashes of owners
	found []holder
}

// holders are first the attachments that have a wanted host port, and then the reference's containers.
func (c *call) holders(ctx context.Context, s *store, r *record) ([]holder, error) {
	x := &search{call: c, store: s, r: r, wants: map[uint16][]hostPort{}, gone: map[string]bool{}}
	for _, p := range r.hostPorts() {
		x.wants[p.Port] = append(x.wants[p.Port], p)
	}
	if err := nft.IfSupported(x.inNFTables(ctx)); err != nil {
		return nil, err
	}
	used, err := c.usesIPTables(ctx, r)
	if err == nil && (used || r.Backend == iptables) {
		err = x.inIPTables(ctx)
	}
	if err == nil {
		err = nft.IfSupported(x.inReferenceTables(ctx))
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

// addOwner is add for an attachment with a record. It looks once whether that is gone.
func (x *search) addOwner(ctx context.Context, held hostPort, owner *record) error {
	before := len(x.found)
	x.add(held, holder{owner: owner, name: fmt.Sprintf("on %s by %s", addrName(held.Addr), owner.Attachment)})
	if len(x.found) == before {
		return nil
	}
	gone, known := x.gone[owner.Hash()]
	if !known {
		var err error
		if gone, err = x.isGone(ctx, owner); err != nil {
			return err
		}
		x.gone[owner.Hash()] = gone
	}
	for i := range x.found[before:] {
		x.found[before+i].gone = gone
	}
	return nil
}

func unrecorded(mark string) string {
	return fmt.Sprintf("by %q, of whom there is no record (DEL or GC of that network removes it)", mark)
}

// inNFTables finds the elements of others that conflict.
func (x *search) inNFTables(ctx context.Context) error {
	var items []nft.Item
	lists := map[string]bool{} // of the host ports of one address, which are few
	for _, p := range x.r.hostPorts() {
		f := familyOf(p.Addr.Is4())
		at := []hostPort{p}
		if p.Addr.IsUnspecified() {
			lists[f.atMap()] = true
		} else {
			at = append(at, hostPort{Proto: p.Proto, Addr: f.all, Port: p.Port})
		}
		for _, p := range at {
			set, _, key := p.place()
			items = append(items, nft.Item{Set: set, Element: nft.Element{Key: key}})
		}
	}
	others := func(mark string) bool { return !x.r.Owns(mark) }
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
			owner, ok, err := x.store.Get(hash)
			if err != nil {
				return err
			}
			owners[hash] = nil
			if ok {
				owners[hash] = &owner
			}
		}
		if owner := owners[hash]; owner == nil {
			x.add(elementPort(it), holder{name: unrecorded(it.Comment)})
		} else if err := x.addOwner(ctx, elementPort(it), owner); err != nil {
			return err
		}
	}
	return nil
}

// inIPTables reads the records of those who are on iptables, and the reference's rules of containers of which
// there is no record.
func (x *search) inIPTables(ctx context.Context) error {
	all, err := x.store.All()
	if err != nil {
		return err
	}
	known := map[string]bool{x.r.chain(): true}
	for _, o := range all {
		known[o.chain()] = true
		if o.Backend != iptables || o.Hash() == x.r.Hash() {
			continue
		}
		for _, held := range o.hostPorts() {
			if err := x.addOwner(ctx, held, o); err != nil {
				return err
			}
		}
	}
	for _, a := range x.r.served() {
		err := x.inReferenceChains(ctx, familyOf(a.v4()), known)
		if ipt.NotInstalled(err) {
			x.warnOfOthers(err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// inReferenceChains finds the containers of the reference's that have chains other than the known ones.
func (x *search) inReferenceChains(ctx context.Context, f family, known map[string]bool) error {
	entries, err := f.entries(ctx, x.nf, func(chain string) bool { return !known[chain] })
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for _, entry := range entries {
		chain := entry.Option("-j")
		if listed[chain] || !slices.ContainsFunc(entryPorts(entry), x.wantsPort) {
			continue
		}
		listed[chain] = true
		ports, err := x.portsOf(ctx, f, chain)
		if err != nil {
			return err
		}
		network, id, ok := ipt.ParseOwner(entryPrefix, entry.Option("--comment"))
		if !ok {
			network, id = "?", entry.Option("--comment")
		}
		h := holder{name: fmt.Sprintf("by network %q, container %q, through the iptables rules of other plugins"+
			" (DEL or GC of that network removes them)", network, id)}
		// IPAM gives an address once: the container that had it is gone.
		h.gone = slices.ContainsFunc(ports, func(p hostPort) bool { return x.r.hasAddr(p.To.Addr()) })
		h.remove = func() error {
			left := &record{Attachment: cni.Attachment{Network: network, ContainerID: id}}
			return errors.Join(x.delChains(ctx, left, siblings(x.store, left), f)...)
		}
		for _, p := range ports {
			x.add(p, h)
		}
	}
	return nil
}

// wantsPort says whether a host port is wanted, at any address.
func (x *search) wantsPort(p hostPort) bool {
	return slices.ContainsFunc(x.wants[p.Port], func(w hostPort) bool { return w.Proto == p.Proto })
}

// inReferenceTables finds rules of the reference's in nftables.
func (x *search) inReferenceTables(ctx context.Context) error {
	for _, a := range x.r.served() {
		rules, err := x.nf.Rules(familyOf(a.v4()).referenceTable(), "")
		if err != nil {
			return err
		}
		for _, rule := range rules {
			if rule.Chain == "masquerading" || !isReference(rule) {
				continue
			}
			h := holder{gone: x.r.isMentioned(rule), name: fmt.Sprintf(
				"by container %q, through the nftables rules of other plugins (its DEL removes them)", rule.Comment)}
			h.remove = func() error {
				left := record{Attachment: cni.Attachment{ContainerID: rule.Comment}, Addrs: x.r.Addrs}
				return delReference(ctx, x.nf, left.isReferenceRule)
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
