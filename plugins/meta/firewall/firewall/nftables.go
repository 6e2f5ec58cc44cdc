package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// table is the table that all plugins share. Names in it end in the version of the layout.
var table = nft.Table{Family: nft.INet, Name: nft.TableName}

const (
	chainPrefix  = "firewall_" // of all chains of this plugin
	policyChain  = chainPrefix + "policy_v2"
	formerPolicy = chainPrefix + "policy_v1"
	policedSet   = "firewall_policed_v1"
	sameSet      = "firewall_same_v1"

	forwardPriority = -1  // before FORWARD of iptables, which has priority 0
	clearPriority   = 300 // after all filters, and before postrouting, where fwmarks are saved in connmarks
)

func fwmarkOf(bit int) uint32 { return 1 << bit }

// bitChain returns the name of a chain that sets or clears this fwmark bit. The role is "forward" or "clear".
func bitChain(role string, bit int) string { return fmt.Sprintf("%s%s%d_v2", chainPrefix, role, bit) }

// addrSet and publishedSet name the sets of all containers' addresses, and of those with acceptPublished.
func addrSet(f nft.Family) string      { return "firewall" + f.Digit() + "_v1" }
func publishedSet(f nft.Family) string { return "firewall" + f.Digit() + "_published_v1" }

// layout returns the layout that all attachments share. An accept here is not final, because chains of other tables
// also see the packet, so accepted packets get the fwmark bit. The first chain in hook forward sets the bit on accepted
// packets and clears it on all others, so that in FORWARD of iptables, at priority 0, only accepted packets have it.
// The second chain in the hook clears it on all packets.
//
// Each forwarded packet of the host passes these chains. A packet that a container sends meets one rule with one lookup
// in the first chain, and an answer to it two, because the first rule that accepts a packet ends the chain.
func layout(bit int) nft.Layout {
	l := nft.Layout{Table: table, Sets: policySets()}
	fwmark := fwmarkOf(bit)
	var sent, answers, published []nft.Rule
	for _, f := range nft.Families() {
		l.Sets = append(l.Sets,
			nft.Set{Name: addrSet(f), Key: []nft.Type{f.Addr()}, Comment: "containers"},
			nft.Set{Name: publishedSet(f), Key: []nft.Type{f.Addr()}, Comment: "containers, for host ports"})
		withBit := nft.Rule{nft.FwmarkWith(fwmark), nft.Accept()}
		sent = append(sent, append(nft.Rule{nft.InSet(addrSet(f), f.Saddr())}, withBit...))
		answers = append(answers,
			append(nft.Rule{nft.InSet(addrSet(f), f.Daddr()), nft.CtEstablished()}, withBit...))
		published = append(published,
			append(nft.Rule{nft.InSet(publishedSet(f), f.Daddr()), nft.CtTranslated()}, withBit...))
	}
	former := formerChains(bit)
	l.Chains = []nft.Chain{
		{Name: bitChain("forward", bit), Comment: "what containers send, its answers, and their host ports",
			Hook:   &nft.Hook{Type: "filter", Point: nft.Forward, Priority: forwardPriority},
			Rules:  append(slices.Concat(sent, answers, published), withoutBit(fwmark)),
			Former: former[1:]},
		{Name: bitChain("clear", bit), Comment: "the fwmark bit leaves nobody",
			Hook:   &nft.Hook{Type: "filter", Point: nft.Forward, Priority: clearPriority},
			Rules:  []nft.Rule{{nft.FwmarkWithout(fwmark)}},
			Former: former[:1]},
	}
	return l
}

// withoutBit returns a rule that clears the bits of the fwmark if they are set.
func withoutBit(fwmark uint32) nft.Rule {
	return nft.Rule{nft.FwmarkHas(fwmark), nft.FwmarkWithout(fwmark)}
}

func policySets() []nft.Set {
	return []nft.Set{
		{Name: policedSet, Key: []nft.Type{nft.IfName}, Comment: "bridges that are kept apart"},
		{Name: sameSet, Key: []nft.Type{nft.IfName, nft.IfName},
			Comment: "bridges whose own containers reach each other"},
	}
}

// policyLayout returns the chain that drops packets between bridges with a policy, of all connections. It exists only
// while there is such a bridge, because each forwarded packet of the host passes it.
func policyLayout() nft.Layout {
	return nft.Layout{Table: table, Sets: policySets(), Chains: []nft.Chain{{
		Name: policyChain, Comment: "between bridges with an ingress policy",
		Hook: &nft.Hook{Type: "filter", Point: nft.Forward, Priority: forwardPriority},
		Rules: []nft.Rule{{nft.InSet(policedSet, nft.IIFName), nft.InSet(policedSet, nft.OIFName),
			nft.NotInSet(sameSet, nft.IIFName, nft.OIFName), nft.Drop()}},
	}}}
}

// formerChains returns the chains of the first layout. The chain that clears the bit is the first one.
func formerChains(bit int) []nft.Chain {
	name := func(role string) string { return fmt.Sprintf("%s%s%d_v1", chainPrefix, role, bit) }
	fwmark, accept := fwmarkOf(bit), nft.Goto(name("accept"))
	forward := []nft.Rule{withoutBit(fwmark),
		{nft.InSet(policedSet, nft.IIFName), nft.InSet(policedSet, nft.OIFName), nft.Jump(formerPolicy)}}
	for _, f := range nft.Families() {
		forward = append(forward,
			nft.Rule{nft.InSet(addrSet(f), f.Saddr()), accept},
			nft.Rule{nft.InSet(addrSet(f), f.Daddr()), nft.CtEstablished(), accept},
			nft.Rule{nft.InSet(publishedSet(f), f.Daddr()), nft.CtTranslated(), accept})
	}
	hook := func(priority int32) *nft.Hook {
		return &nft.Hook{Type: "filter", Point: nft.Forward, Priority: priority}
	}
	return []nft.Chain{
		{Name: name("clear"), Hook: hook(clearPriority), Rules: []nft.Rule{withoutBit(fwmark)}},
		{Name: name("forward"), Hook: hook(forwardPriority), Rules: forward},
		{Name: name("accept"), Rules: []nft.Rule{{nft.FwmarkWith(fwmark)}}},
		{Name: formerPolicy, Rules: []nft.Rule{
			{nft.InSet(sameSet, nft.IIFName, nft.OIFName), nft.Return()}, {nft.Drop()}}},
	}
}

func isOurs(chain string) bool { return strings.HasPrefix(chain, chainPrefix) }

// owned returns the layout for a bit, and the sets with the attachments' elements.
func owned(bit int) nft.Owned {
	o := elements()
	o.Layout = layout(bit)
	return o
}

// elements returns only the sets with the attachments' elements, for changes that need no chain. Several attachments
// can have the same address and share its element, because the rules that use it do not depend on the interface.
func elements() nft.Owned {
	o := nft.Owned{Layout: nft.Layout{Table: table}, Shared: true}
	for _, f := range nft.Families() {
		o.Sets = append(o.Sets, addrSet(f), publishedSet(f))
	}
	return o
}

func (r *record) items() []nft.Item {
	var out []nft.Item
	if r.Backend == firewalld {
		return nil
	}
	for _, a := range r.Addrs {
		it := nft.Item{Set: addrSet(nft.FamilyOf(a)), Name: "address " + a.String(),
			Element: nft.Element{Key: nft.AddrKey(a), Comment: r.Mark()}}
		out = append(out, it)
		if r.Published {
			it.Set = publishedSet(nft.FamilyOf(a))
			out = append(out, it)
		}
	}
	return out
}

// addNFTables adds the attachment's elements, the policy of its bridge and the rules in FORWARD, in one batch. If it
// has to create the layout, it deletes the chains for another bit.
func (c call) addNFTables(ctx context.Context, r *record, p policy) error {
	var tables []*forwardTable
	own := owned(r.Bit)
	isForOtherBit := func(name string) bool {
		isNamed := func(c nft.Chain) bool { return c.Name == name }
		return isOurs(name) && name != policyChain && !slices.ContainsFunc(own.Layout.Chains, isNamed)
	}
	update := func(withForward bool) error {
		return own.Update(ctx, c.NF, func(tx *nft.Tx) (err error) {
			err = tx.Put(r.items(), func(others []nft.Item) ([]nft.Item, error) {
				err := c.keepUnpublished(ctx, r, others)
				return r.items(), err
			})
			if err == nil && tx.LayoutStaged {
				err = tx.DeleteChains(table, isForOtherBit)
			}
			if err == nil {
				tables, err = c.forwardTables(ctx, r, tx.LayoutStaged)
			}
			for _, ft := range tables {
				if err == nil && withForward {
					err = ft.stage(tx)
				}
			}
			if err != nil {
				return err
			}
			return stagePolicy(tx, r.Bridge, p)
		})
	}
	err := update(true)
	if len(tables) > 0 && errors.Is(err, nft.ErrUnsupported) { // the kernel may lack the matches of iptables-nft
		unsupported := err
		if err = update(false); err == nil {
			c.Req.Warn("what FORWARD of iptables-nft drops stays dropped: %v", unsupported)
		}
	}
	for _, ft := range tables {
		if err == nil {
			err = ft.ensureLegacy(ctx)
		}
	}
	return err
}

// keepUnpublished clears Published in the record if another attachment without acceptPublished owns the element of one
// of the record's addresses. So an ADD cannot open the host ports of an address that are closed for its owner.
func (c call) keepUnpublished(ctx context.Context, r *record, others []nft.Item) error {
	for _, it := range others {
		hash, _, _ := strings.Cut(it.Comment, " ")
		if c.adding == nil || !r.Published || !cni.ValidName(hash) {
			continue
		}
		owner, ok, err := c.adding.Get(hash)
		if err != nil {
			return err
		}
		if ok && !owner.Published {
			c.Req.Warn("acceptPublished: host ports of %s stay closed, as they are for %s", it.Name, owner.Attachment)
			r.Published = false
			return c.adding.Put(ctx, *r)
		}
	}
	return nil
}

// restore restores elements and shared chains from the records, but neither lost policies nor rules in FORWARD. Like
// DEL, it holds the lock of the records.
func restore(ctx context.Context, all []*skel.Request) map[string]error {
	nf := nft.New()
	defer nf.Close()
	missing := map[string]error{}
	_ = records().Locked(ctx, func(s *store) error { // best effort: CHECK reports what is still missing
		byBit := map[int][]nft.Item{}
		for _, req := range all {
			r, ok, err := s.Get(req.Hash())
			if err == nil && r.restorable(ok, req) == nil && r.Backend == nftables {
				byBit[r.Bit] = append(byBit[r.Bit], r.items()...)
			}
		}
		if len(byBit) == 0 {
			return nil
		}
		// Restore replaces the first layout, which has a chain for policies.
		if err := nf.Update(ctx, ensurePolicyChain); err != nil {
			return err
		}
		for bit, items := range byBit {
			some, _ := owned(bit).Restore(ctx, nf, items, netplugin.AttachedFunc(all))
			maps.Copy(missing, some)
		}
		return nil
	})
	return missing
}

// delNFTables removes the attachment's elements, and sets the policy of its bridge to remaining.
func (c call) delNFTables(ctx context.Context, r *record, remaining policy) error {
	found, err := elements().Live(c.NF, r.items(), r.Owns)
	if err != nil || len(found) == 0 && remaining == r.Policy {
		return err
	}
	return elements().Update(ctx, c.NF, func(tx *nft.Tx) error {
		if err := tx.Remove(found, r.Owns); err != nil || remaining == r.Policy {
			return err
		}
		return stagePolicy(tx, r.Bridge, remaining)
	})
}

// warnOfDrops warns of base chains that drop packets by their policy and have no rule about the fwmark bit. FORWARD of
// iptables is not checked, because ADD adds the rule there.
func (c call) warnOfDrops(bit int) error {
	chains, err := c.NF.Chains(nft.Table{})
	if err != nil {
		return err
	}
	for _, chain := range chains {
		routed := slices.Contains([]nft.Family{nft.INet, nft.IPv4, nft.IPv6}, chain.Table.Family)
		isIPTables := chain.Table.Family != nft.INet && chain.Table.Name == filterTable && chain.Name == forwardHook
		if !chain.Drops || chain.Hook.Point != nft.Forward || !routed || isIPTables {
			continue
		}
		rules, err := c.NF.Rules(chain.Table, chain.Name)
		if err == nil {
			bit, err = hostBit(records().Any, bit)
		}
		if err != nil {
			return err
		}
		fwmark := fwmarkOf(bit)
		fwmarkBytes := binary.NativeEndian.AppendUint32(nil, fwmark)
		if !slices.ContainsFunc(rules, func(r nft.LiveRule) bool { return r.Mentions(fwmarkBytes) }) {
			c.Req.Warn("table %s: chain %q drops what it does not accept itself; for what this plugin accepts: "+
				"nft insert rule %[1]s %[2]s meta mark and %#[3]x == %#[3]x accept", chain.Table, chain.Name, fwmark)
		}
	}
	return nil
}

// stagePolicy stages a bridge's policy in nftables: elements without an owner, because they belong to all attachments
// on the bridge, and the chain that uses them. Without a bridge, it stages only the chain, and only if the layout is
// created, because the first layout had another chain for policies.
func stagePolicy(tx *nft.Tx, bridge string, p policy) error {
	if bridge == "" && !tx.LayoutStaged {
		return nil
	}
	if bridge == "" {
		return ensurePolicyChain(tx)
	}
	name := nft.IfNameKey(bridge)
	items := []nft.Item{{Set: policedSet, Element: nft.Element{Key: name}},
		{Set: sameSet, Element: nft.Element{Key: nft.Key(name, name)}}}
	wanted := 0 // items of the policy: none, the first, or both
	switch p {
	case policyIsolated:
		wanted = 1
	case policySameBridge:
		wanted = 2
	}
	anyOwner := func(string) bool { return true }
	if err := errors.Join(tx.Put(items[:wanted], nil), tx.Remove(items[wanted:], anyOwner)); err != nil {
		return err
	}
	live, err := tx.Elements(table, policedSet)
	isOther := func(e nft.Element) bool { return !bytes.Equal(e.Key, name) }
	if err != nil {
		return err
	}
	if wanted > 0 || slices.ContainsFunc(live, isOther) {
		return tx.EnsureLayout(policyLayout())
	}
	return tx.DeleteChains(table, func(chain string) bool { return chain == policyChain })
}

// ensurePolicyChain stages the chain for policies if a bridge has one.
func ensurePolicyChain(tx *nft.Tx) error {
	live, err := tx.Elements(table, policedSet)
	if err != nil || len(live) == 0 {
		return err
	}
	return tx.EnsureLayout(policyLayout())
}

// nftablesPolicy returns the policy that nftables has for the bridge.
func (c call) nftablesPolicy(bridge string) (policy, error) {
	name := nft.IfNameKey(bridge)
	policed, err := c.NF.Get(table, policedSet, name)
	if err != nil || policed[0] == nil {
		return policyOpen, nft.IfSupported(err)
	}
	same, err := c.NF.Get(table, sameSet, nft.Key(name, name))
	if err == nil && same[0] != nil {
		return policySameBridge, nil
	}
	return policyIsolated, err
}

// verifyNFTables compares the kernel's state with the attachment's elements, layout, policy and rules in FORWARD.
func (c call) verifyNFTables(ctx context.Context, r *record) error {
	diffs := []error{owned(r.Bit).Verify(c.NF, r.items())}
	p, err := c.nftablesPolicy(r.Bridge)
	if err != nil {
		return err
	}
	if !p.isAtLeast(r.Policy) {
		diffs = append(diffs, cni.Drift("bridge %q: ingress policy is %s, not %s", r.Bridge, p, r.Policy))
	}
	if r.Policy != policyOpen {
		l := policyLayout()
		l.Chains[0].Former = formerChains(r.Bit)[1:]
		diffs = append(diffs, c.NF.Verify(l))
	}
	tables, err := c.forwardTables(ctx, r, false)
	diffs = append(diffs, err)
	for _, ft := range tables {
		diffs = append(diffs, ft.verify(ctx))
	}
	return errors.Join(diffs...)
}
