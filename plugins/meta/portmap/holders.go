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
	store  *store
	r      *record
	wanted []hostPort
	found  []holder
}

// holders are first the attachments that have a wanted host port, and then the reference's containers.
func (c *call) holders(ctx context.Context, s *store, r *record) ([]holder, error) {
	x := &search{call: c, store: s, r: r, wanted: r.hostPorts()}
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

// add notes that somebody has these host ports, if one of them is wanted. It looks whether an owner is gone.
func (x *search) add(ctx context.Context, h holder, ports ...hostPort) (err error) {
	byNumber := map[uint16][]hostPort{}
	for _, p := range ports {
		byNumber[p.Port] = append(byNumber[p.Port], p)
	}
	var held []hostPort
	for _, w := range x.wanted {
		same := byNumber[w.Port]
		if i := slices.IndexFunc(same, w.conflicts); i >= 0 {
			h.wanted, held = append(h.wanted, w), append(held, same[i])
		}
	}
	if len(held) == 0 {
		return nil
	}
	if h.owner != nil {
		h.name = fmt.Sprintf("on %s by %s", addrName(held[0].Addr), h.owner.Attachment)
		h.gone, err = x.isGone(ctx, h.owner)
	}
	x.found = append(x.found, h)
	return err
}

func unrecorded(mark string) string {
	return fmt.Sprintf("by %q, of whom there is no record (DEL or GC of that network removes it)", mark)
}

// inNFTables finds those who have elements that conflict.
func (x *search) inNFTables(ctx context.Context) error {
	var items []nft.Item
	lists := map[string]bool{} // of the host ports of one address, which are few
	for _, p := range x.wanted {
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
	seen := map[string]bool{}
	for _, it := range live {
		hash, _, _ := strings.Cut(it.Comment, " ")
		if seen[hash] {
			continue
		}
		owner, ok := record{}, false
		if cni.ValidName(hash) {
			if owner, ok, err = x.store.Get(hash); err != nil {
				return err
			}
		}
		if seen[hash] = ok; ok {
			err = x.add(ctx, holder{owner: &owner}, owner.hostPorts()...)
		} else {
			err = x.add(ctx, holder{name: unrecorded(it.Comment)}, elementPort(it))
		}
		if err != nil {
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
		if err := x.add(ctx, holder{owner: o}, o.hostPorts()...); err != nil {
			return err
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
	rules, err := f.natChain("").Rules(ctx, x.nf, func(chain string) bool {
		return strings.HasPrefix(chain, dnPrefix) && !known[chain]
	})
	if err != nil {
		return err
	}
	inChain := map[string][]hostPort{}
	for _, rule := range rules {
		if p, ok := hostPortOf(rule); ok {
			inChain[rule.Chain] = append(inChain[rule.Chain], p)
		}
	}
	for _, entry := range rules {
		chain := entry.Option("-j")
		ports := inChain[chain]
		delete(inChain, chain) // other entries lead there, too
		network, id, ok := ipt.ParseOwner(entry.Option("--comment"))
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
		if err := x.add(ctx, h, ports...); err != nil {
			return err
		}
	}
	return nil
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
			ports := slices.DeleteFunc(slices.Clone(x.wanted), func(p hostPort) bool {
				return p.Addr.Is4() != a.v4() || !p.isIn(rule)
			})
			if err := x.add(ctx, h, ports...); err != nil {
				return err
			}
		}
	}
	return nil
}
