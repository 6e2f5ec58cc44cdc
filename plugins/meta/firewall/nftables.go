package main

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// table is shared with other plugins. Names in it carry the version of the layout.
var table = nft.Table{Family: nft.INet, Name: nft.TableName}

const (
	forwardChain = "firewall_forward_v1"
	policyChain  = "firewall_policy_v1"
	acceptChain  = "firewall_accept_v1"
	clearChain   = "firewall_clear_v1"
	policedSet   = "firewall_policed_v1"
	sameSet      = "firewall_same_v1"

	// acceptBit of the fwmark tells the rule in filter FORWARD what is accepted. portmap has 13, kube-proxy 14 and
	// 15, and other networks use those from 16.
	acceptBit = 1 << 12

	forwardPriority = -1  // before filter
	clearPriority   = 300 // behind all that looks at the fwmark
)

// addrSet has the addresses of containers, publishedSet those that may be reached by host ports.
func addrSet(f nft.Family) string      { return "firewall" + f.Digit() + "_v1" }
func publishedSet(f nft.Family) string { return "firewall" + f.Digit() + "_published_v1" }

// layout is what all attachments share. A packet that is accepted gets the fwmark bit, since an accept here ends no
// other table's chain.
func layout() nft.Layout {
	name := []nft.Type{nft.IfName}
	l := nft.Layout{Table: table, Sets: []nft.Set{
		{Name: policedSet, Key: name, Comment: "bridges that are kept apart"},
		{Name: sameSet, Key: append(name, nft.IfName), Comment: "bridges whose own containers reach each other"},
	}}
	policed := nft.Rule{nft.InSet(policedSet, nft.IIFName), nft.InSet(policedSet, nft.OIFName), nft.Jump(policyChain)}
	forward := []nft.Rule{policed}
	for _, f := range nft.Families() {
		l.Sets = append(l.Sets,
			nft.Set{Name: addrSet(f), Key: []nft.Type{f.Addr()}, Comment: "containers"},
			nft.Set{Name: publishedSet(f), Key: []nft.Type{f.Addr()}, Comment: "containers, for host ports"})
		forward = append(forward,
			nft.Rule{nft.InSet(addrSet(f), f.Saddr()), nft.Goto(acceptChain)},
			nft.Rule{nft.InSet(addrSet(f), f.Daddr()), nft.CtEstablished(), nft.Goto(acceptChain)},
			nft.Rule{nft.InSet(publishedSet(f), f.Daddr()), nft.CtTranslated(), nft.Goto(acceptChain)})
	}
	l.Chains = []nft.Chain{
		{Name: policyChain, Comment: "between bridges with an ingress policy", Rules: []nft.Rule{
			{nft.InSet(sameSet, nft.IIFName, nft.OIFName), nft.Return()}, {nft.Drop()}}},
		{Name: acceptChain, Rules: []nft.Rule{{nft.FwmarkWith(acceptBit)}}},
		{Name: forwardChain, Comment: "what containers send, its answers, and their host ports",
			Hook: &nft.Hook{Type: "filter", Point: nft.Forward, Priority: forwardPriority}, Rules: forward},
		{Name: clearChain, Comment: "the fwmark bit leaves nobody",
			Hook:  &nft.Hook{Type: "filter", Point: nft.Postrouting, Priority: clearPriority},
			Rules: []nft.Rule{{nft.FwmarkHas(acceptBit), nft.FwmarkWithout(acceptBit)}}},
	}
	return l
}

// owned is the layout with the elements of all attachments.
func owned() nft.Owned {
	o := nft.Owned{Layout: layout()}
	for _, f := range nft.Families() {
		o.Sets = append(o.Sets, addrSet(f), publishedSet(f))
	}
	return o
}

// items are the elements of the attachment.
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

// addNFTables makes the attachment's elements and those of its bridge, in one batch. It replaces elements of other
// owners: IPAM lends an address once, so they are leftovers.
func (c *call) addNFTables(ctx context.Context, r *record, p policy) error {
	return owned().Update(ctx, c.nf, func(ch *nft.Change) error {
		if err := ch.Put(r.items(), nil); err != nil {
			return err
		}
		return police(ch, r.Bridge, p)
	})
}

// delNFTables removes the attachment's elements, and leaves its bridge the policy that others want.
func (c *call) delNFTables(ctx context.Context, s *store, r *record) error {
	left, err := r.left(s)
	if err != nil {
		return err
	}
	mine := r.Owns
	found, err := owned().Live(c.nf, r.items(), mine)
	if err != nil || len(found) == 0 && left == r.Policy {
		return err
	}
	return owned().Update(ctx, c.nf, func(ch *nft.Change) error {
		if err := ch.Remove(found, mine); err != nil || left == r.Policy {
			return err
		}
		return police(ch, r.Bridge, left)
	})
}

// warnOfDrops warns of chains in which nothing accepts what has the fwmark bit, and whose policy drops it. FORWARD of
// iptables is no such chain: ADD gives it the rule.
func (c *call) warnOfDrops() error {
	chains, err := c.nf.Chains(nft.Table{})
	if err != nil {
		return err
	}
	for _, ch := range chains {
		routed := slices.Contains([]nft.Family{nft.INet, nft.IPv4, nft.IPv6}, ch.Table.Family)
		iptables := ch.Table.Family != nft.INet && ch.Table.Name == filterTable && ch.Name == forwardHook
		if !ch.Drops || ch.Hook.Point != nft.Forward || !routed || iptables {
			continue
		}
		rules, err := c.nf.Rules(ch.Table, ch.Name)
		if err != nil {
			return err
		}
		mark := binary.NativeEndian.AppendUint32(nil, acceptBit)
		if !slices.ContainsFunc(rules, func(r nft.LiveRule) bool { return r.Mentions(mark) }) {
			c.Warn("table %s: chain %q drops what it does not accept itself; for what this plugin accepts: "+
				"nft insert rule %s %s meta mark and %#x == %#x accept", ch.Table, ch.Name, ch.Table, ch.Name,
				acceptBit, acceptBit)
		}
	}
	return nil
}

// police stages what gives the bridge a policy: elements that belong to all attachments on it.
func police(ch *nft.Change, bridge string, p policy) error {
	if bridge == "" {
		return nil
	}
	name := nft.IfNameKey(bridge)
	for _, e := range []struct {
		set  string
		key  []byte
		want bool
	}{
		{policedSet, name, p != open},
		{sameSet, nft.Key(name, name), p == sameBridge},
	} {
		live, err := ch.Get(table, e.set, e.key)
		switch {
		case err != nil:
			return err
		case e.want && live[0] == nil:
			ch.Add(table, e.set, nft.Element{Key: e.key})
		case !e.want && live[0] != nil:
			ch.Delete(table, e.set, nft.Element{Key: e.key})
		}
	}
	return nil
}

// policyOf is the policy that the bridge has in nftables.
func (c *call) policyOf(bridge string) (policy, error) {
	name := nft.IfNameKey(bridge)
	policed, err := c.nf.Get(table, policedSet, name)
	if err != nil || policed[0] == nil {
		return open, nft.IfSupported(err)
	}
	same, err := c.nf.Get(table, sameSet, nft.Key(name, name))
	if err == nil && same[0] != nil {
		return sameBridge, nil
	}
	return isolated, err
}

// sweepPolicies removes the policies of bridges that nobody is on.
func (c *call) sweepPolicies(ctx context.Context) error {
	live, err := c.nf.Elements(table, policedSet)
	for _, e := range live {
		bridge := strings.TrimRight(string(e.Key), "\x00")
		unused, lost := c.isUnused(bridge)
		if unused && lost == nil {
			lost = c.police(ctx, &record{Bridge: bridge}, open)
		}
		err = errors.Join(err, lost)
	}
	return err
}

// checkNFTables compares the attachment's elements, the policy and what it shares with others with the kernel's.
func (c *call) checkNFTables(ctx context.Context, r *record) error {
	diffs := []error{owned().Verify(c.nf, r.items())}
	p, err := c.policyOf(r.Bridge)
	if err != nil {
		return err
	}
	if r.Policy != open && stricter(p, r.Policy) != p {
		diffs = append(diffs, drift("bridge %q: ingress policy is %s, not %s", r.Bridge, p, r.Policy))
	}
	if r.Backend == nftables {
		for _, f := range r.families() {
			diffs = append(diffs, c.checkSkeleton(ctx, f, r.AdminChain))
		}
	}
	return errors.Join(diffs...)
}

func drift(format string, args ...any) error { return cni.Errorf(cni.CodeDrift, format, args...) }
