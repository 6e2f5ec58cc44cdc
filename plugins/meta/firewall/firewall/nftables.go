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
	chainPrefix     = "firewall_" // prefix of the names of all chains of this plugin
	policyChain     = chainPrefix + "policy_v2"
	formerPolicy    = chainPrefix + "policy_v1"
	policyBridgeSet = "firewall_policed_v1"
	sameBridgeSet   = "firewall_same_v1"

	forwardPriority = -1  // before FORWARD of iptables, which has priority 0
	clearPriority   = 300 // after all filters, and before postrouting, where fwmarks are saved in connmarks
)

func fwmarkOf(bit int) uint32 { return 1 << bit }

// bitChain returns the name of a chain that sets or clears this fwmark bit. The role is "forward" or "clear".
func bitChain(role string, bit int) string { return fmt.Sprintf("%s%s%d_v2", chainPrefix, role, bit) }

// addrSet returns the name of the set of all containers' addresses, and publishedSet the name of the set of addresses
// of containers with acceptPublished.
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
		accept := nft.Rule{nft.SetFwmark(fwmark), nft.Accept()}
		sent = append(sent, append(nft.Rule{nft.InSet(addrSet(f), f.Saddr())}, accept...))
		answers = append(answers,
			append(nft.Rule{nft.InSet(addrSet(f), f.Daddr()), nft.CtEstablished()}, accept...))
		published = append(published,
			append(nft.Rule{nft.InSet(publishedSet(f), f.Daddr()), nft.CtTranslated()}, accept...))
	}
	former := formerChains(bit)
	l.Chains = []nft.Chain{
		{Name: bitChain("forward", bit), Comment: "packets of containers, answers to them, and host ports",
			Hook:   &nft.Hook{Type: "filter", Point: nft.Forward, Priority: forwardPriority},
			Rules:  append(slices.Concat(sent, answers, published), clearRule(fwmark)),
			Former: former[1:]},
		{Name: bitChain("clear", bit), Comment: "clears the fwmark bit",
			Hook:   &nft.Hook{Type: "filter", Point: nft.Forward, Priority: clearPriority},
			Rules:  []nft.Rule{{nft.ClearFwmark(fwmark)}},
			Former: former[:1]},
	}
	return l
}

// clearRule returns a rule that clears the bits of the fwmark if they are set.
func clearRule(fwmark uint32) nft.Rule {
	return nft.Rule{nft.FwmarkHas(fwmark), nft.ClearFwmark(fwmark)}
}

func policySets() []nft.Set {
	return []nft.Set{
		{Name: policyBridgeSet, Key: []nft.Type{nft.IfName}, Comment: "bridges with an ingress policy"},
		{Name: sameBridgeSet, Key: []nft.Type{nft.IfName, nft.IfName},
			Comment: "bridges with the policy same-bridge, twice"},
	}
}

// policyLayout returns the chain that drops packets between bridges with a policy, even of established connections. The
// chain exists only while there is such a bridge, because each forwarded packet of the host passes it.
func policyLayout() nft.Layout {
	return nft.Layout{Table: table, Sets: policySets(), Chains: []nft.Chain{{
		Name: policyChain, Comment: "packets between bridges with an ingress policy",
		Hook: &nft.Hook{Type: "filter", Point: nft.Forward, Priority: forwardPriority},
		Rules: []nft.Rule{{nft.InSet(policyBridgeSet, nft.IIFName), nft.InSet(policyBridgeSet, nft.OIFName),
			nft.NotInSet(sameBridgeSet, nft.IIFName, nft.OIFName), nft.Drop()}},
	}}}
}

// formerChains returns the chains of the first layout, in which the chain that clears the bit is the first.
func formerChains(bit int) []nft.Chain {
	name := func(role string) string { return fmt.Sprintf("%s%s%d_v1", chainPrefix, role, bit) }
	fwmark, accept := fwmarkOf(bit), nft.Goto(name("accept"))
	forward := []nft.Rule{clearRule(fwmark),
		{nft.InSet(policyBridgeSet, nft.IIFName), nft.InSet(policyBridgeSet, nft.OIFName), nft.Jump(formerPolicy)}}
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
		{Name: name("clear"), Hook: hook(clearPriority), Rules: []nft.Rule{clearRule(fwmark)}},
		{Name: name("forward"), Hook: hook(forwardPriority), Rules: forward},
		{Name: name("accept"), Rules: []nft.Rule{{nft.SetFwmark(fwmark)}}},
		{Name: formerPolicy, Rules: []nft.Rule{
			{nft.InSet(sameBridgeSet, nft.IIFName, nft.OIFName), nft.Return()}, {nft.Drop()}}},
	}
}

func isOwnChain(chain string) bool { return strings.HasPrefix(chain, chainPrefix) }

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
// creates the layout, it deletes the chains for another bit.
func (c call) addNFTables(ctx context.Context, r *record, p policy) error {
	var tables []*forwardTable
	own := owned(r.Bit)
	isOtherBitChain := func(name string) bool {
		hasName := func(c nft.Chain) bool { return c.Name == name }
		return isOwnChain(name) && name != policyChain && !slices.ContainsFunc(own.Layout.Chains, hasName)
	}
	update := func(needsForward bool) error {
		return own.Update(ctx, c.NF, func(tx *nft.Tx) (err error) {
			err = tx.Put(r.items(), func(others []nft.Item) ([]nft.Item, error) {
				err := c.keepUnpublished(ctx, r, others)
				return r.items(), err
			})
			if err == nil && tx.LayoutStaged {
				err = tx.DeleteChains(table, isOtherBitChain)
			}
			if err == nil {
				tables, err = c.forwardTables(ctx, r, tx.LayoutStaged)
			}
			for _, ft := range tables {
				if err == nil && needsForward {
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
			c.Req.Warn("chain FORWARD of iptables-nft may drop the container's packets: %v", unsupported)
		}
	}
	for _, ft := range tables {
		if err == nil {
			err = ft.ensureLegacy(ctx)
		}
	}
	return err
}

// keepUnpublished clears Published in the record if another attachment without Published owns the element of one of the
// record's addresses. ADD would otherwise open host ports that are closed for that owner.
func (c call) keepUnpublished(ctx context.Context, r *record, others []nft.Item) error {
	for _, it := range others {
		hash, _, _ := strings.Cut(it.Comment, " ")
		if c.addStore == nil || !r.Published || !cni.ValidName(hash) {
			continue
		}
		owner, ok, err := c.addStore.Get(hash)
		if err != nil {
			return err
		}
		if ok && !owner.Published {
			c.Req.Warn("acceptPublished: host ports of %s stay closed, as they are for %s", it.Name, owner.Attachment)
			r.Published, r.KeptClosed = false, true
			return c.addStore.Put(ctx, *r)
		}
	}
	return nil
}

// restore restores elements and shared chains from the records, but neither lost policies nor rules in FORWARD. Like
// DEL, it holds the lock of the records. It reads the containers' namespaces before it locks.
func restore(ctx context.Context, all []*skel.Request) map[string]error {
	nf := nft.New()
	defer nf.Close()
	var lacking []string
	for bit, items := range restorable(records(), all) {
		owners, _ := owned(bit).Lacking(nf, items) // Restore returns the error
		lacking = append(lacking, owners...)
	}
	attached, missing := netplugin.Attached(all, lacking), map[string]error{}
	_ = records().Locked(ctx, func(s *store) error { // best effort: CHECK reports what is still missing
		byBit := restorable(s, all)
		if len(byBit) == 0 {
			return nil
		}
		// Restore deletes the first layout with its chain for policies, so the current one must exist before.
		if err := nf.Update(ctx, ensurePolicyChain); err != nil {
			return err
		}
		for bit, items := range byBit {
			part, _ := owned(bit).Restore(ctx, nf, items, attached)
			maps.Copy(missing, part)
		}
		return nil
	})
	return missing
}

// restorable returns the items of the records from which restore restores, by the bit of the fwmark.
func restorable(s *store, all []*skel.Request) map[int][]nft.Item {
	byBit := map[int][]nft.Item{}
	for _, req := range all {
		r, ok, err := s.Get(req.Hash())
		if err == nil && r.checkRestorable(ok, req) == nil && r.Backend == nftables {
			byBit[r.Bit] = append(byBit[r.Bit], r.items()...)
		}
	}
	return byBit
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

// warnDrops warns of base chains that drop packets by their policy and have no rule about the fwmark bit. FORWARD of
// iptables is not checked, because ADD adds the rule there.
func (c call) warnDrops(bit int) error {
	chains, err := c.NF.Chains(nft.Table{})
	if err != nil {
		return err
	}
	for _, chain := range chains {
		isRouted := slices.Contains([]nft.Family{nft.INet, nft.IPv4, nft.IPv6}, chain.Table.Family)
		isIPTables := chain.Table.Family != nft.INet && chain.Table.Name == filterTable && chain.Name == forwardHook
		if !chain.Drops || chain.Hook.Point != nft.Forward || !isRouted || isIPTables {
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
			c.Req.Warn("table %s: chain %q drops all packets that it does not accept; to accept containers' packets: "+
				"nft insert rule %[1]s %[2]s meta mark and %#[3]x == %#[3]x accept", chain.Table, chain.Name, fwmark)
		}
	}
	return nil
}

// stagePolicy stages a bridge's policy in nftables: elements without an owner, because they belong to all attachments
// on the bridge, and the chain that uses them. Without a bridge, it stages the chain only when the layout is created,
// because the first layout had another chain for policies.
func stagePolicy(tx *nft.Tx, bridge string, p policy) error {
	if bridge == "" && !tx.LayoutStaged {
		return nil
	}
	if bridge == "" {
		return ensurePolicyChain(tx)
	}
	name := nft.IfNameKey(bridge)
	items := []nft.Item{{Set: policyBridgeSet, Element: nft.Element{Key: name}},
		{Set: sameBridgeSet, Element: nft.Element{Key: nft.Key(name, name)}}}
	count := 0 // of the items that the policy needs
	switch p {
	case policyIsolated:
		count = 1
	case policySameBridge:
		count = 2
	}
	anyOwner := func(string) bool { return true }
	if err := errors.Join(tx.Put(items[:count], nil), tx.Remove(items[count:], anyOwner)); err != nil {
		return err
	}
	live, err := tx.Elements(table, policyBridgeSet)
	isOther := func(e nft.Element) bool { return !bytes.Equal(e.Key, name) }
	if err != nil {
		return err
	}
	if count > 0 || slices.ContainsFunc(live, isOther) {
		return tx.EnsureLayout(policyLayout())
	}
	return tx.DeleteChains(table, func(chain string) bool { return chain == policyChain })
}

// ensurePolicyChain stages the chain for policies if a bridge has one.
func ensurePolicyChain(tx *nft.Tx) error {
	live, err := tx.Elements(table, policyBridgeSet)
	if err != nil || len(live) == 0 {
		return err
	}
	return tx.EnsureLayout(policyLayout())
}

// nftablesPolicy returns the policy that nftables has for the bridge.
func (c call) nftablesPolicy(bridge string) (policy, error) {
	name := nft.IfNameKey(bridge)
	elems, err := c.NF.Get(table, policyBridgeSet, name)
	if err != nil || elems[0] == nil {
		return policyOpen, err
	}
	elems, err = c.NF.Get(table, sameBridgeSet, nft.Key(name, name))
	if err == nil && elems[0] != nil {
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
