package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findBridge finds the bridge of the attachment's host end, and notes the interface that packets of the bridge come
// from and go to: the bridge, or "BRIDGE.VLAN" for a container in a VLAN with a gateway. A policy needs the port's
// isolated flag too where it is not set.
func (c *call) findBridge(r *record, link rtnl.Link) error {
	end, err := c.host.OtherEnd(link)
	if errors.Is(err, rtnl.ErrNoLink) || err == nil && end.Master == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	bridge, err := c.host.LinkByIndex(end.Master)
	if err != nil || bridge.Kind != "bridge" {
		return err
	}
	r.Bridge, r.Port = bridge.Name, end.Index
	for _, a := range r.Addrs {
		if index, _, err := c.host.RouteTo(a); err == nil {
			link, err := c.host.LinkByIndex(index)
			if err == nil && strings.HasPrefix(link.Name, bridge.Name+".") {
				r.Bridge = link.Name
			}
		}
	}
	if r.Policy == isolated {
		port, err := c.host.Port(r.Port)
		if err != nil {
			return err
		}
		r.SetFlag = !port.Isolated
	}
	return nil
}

// isUnused says whether a bridge does not exist, or has no port.
func (c *call) isUnused(bridge string) (bool, error) {
	link, err := c.host.Link(bridge)
	if errors.Is(err, rtnl.ErrNoLink) || err != nil || link.Kind != "bridge" {
		return errors.Is(err, rtnl.ErrNoLink), nil
	}
	ports, err := c.host.Ports(link.Index)
	return len(ports) == 0, err
}

// settle gives the network's other attachments on the bridge the policy of this one; an ADD that fails gives theirs
// back. It returns the policy that the bridge is to have: the strictest that one of its networks wants. Where nftables
// have this policy for the bridge already, and the network's others too, nothing changes.
func (c *call) settle(s *store, r *record) (policy, error) {
	if r.Bridge == "" {
		return open, nil
	}
	was, err := r.otherPolicy(s)
	if err != nil {
		return open, err
	}
	p, err := c.policyOf(r.Bridge)
	isSettled := p == r.Policy && was == r.Policy && r.Backend != iptables
	if err != nil || isSettled {
		return p, err
	}
	if was != r.Policy {
		c.OnFail("give the bridge its policy back", func(ctx context.Context) error { return c.giveBack(ctx, *r, was) })
	}
	return c.align(s, r)
}

// align gives the network's other attachments on the bridge the policy of the record. It changes the first one last, at
// which otherPolicy looks. It returns the policy that the bridge is to have.
func (c *call) align(s *store, r *record) (policy, error) {
	p := r.Policy
	all, err := s.All()
	for _, o := range slices.Backward(all) {
		differs := o.Network == r.Network && o.Policy != r.Policy
		if differs && o.Bridge == "" && err == nil {
			err = c.findBridgeLater(o)
		}
		if o.Bridge != r.Bridge || o.Hash() == r.Hash() {
			continue
		}
		if differs && err == nil {
			err = c.change(s, o, r.Policy)
		}
		if (o.Backend == iptables) == (r.Backend == iptables) { // each has its own rules of the bridge
			p = stricter(p, o.Policy)
		}
	}
	return p, err
}

// findBridgeLater finds the bridge of a container for which ADD did not look for it; none where the container is gone,
// or where its namespace cannot be entered for a reason that will last.
func (c *call) findBridgeLater(r *record) error {
	cont, err := attach.Enter(r.Path, r.Netns)
	defer func() { _ = cont.Close() }()
	var link rtnl.Link
	if err == nil {
		link, err = cont.Link(r.IfName)
	}
	if err == nil {
		err = c.findBridge(r, link)
	}
	if cni.Transient(err) {
		return err
	}
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		c.Warn("ingressPolicy: %s keeps the policy that it has: %v", r.Attachment, err)
	}
	return nil
}

// giveBack gives the network of an attachment, and its bridge, the policy that they had before it.
func (c *call) giveBack(ctx context.Context, r record, was policy) (err error) {
	s, err := openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r.Policy = was
	p, err := c.align(s, &r)
	if err != nil {
		return err
	}
	return c.police(ctx, &r, p)
}

// police gives the record's bridge the policy, in the record's backend.
func (c *call) police(ctx context.Context, r *record, p policy) error {
	if r.Backend == iptables {
		families, err := c.policyFamilies(ctx, r)
		return errors.Join(err, changeIPTables(ctx, families, func(e *edit, _ nft.Family) { e.police(r.Bridge, p) }))
	}
	return elements().Update(ctx, c.nf, func(ch *nft.Change) error { return police(ch, r.Bridge, p) })
}

// policyFamilies are the families in whose iptables the bridge's policy is: first those of the record's addresses, then
// those in which another container's rules name the bridge.
func (c *call) policyFamilies(ctx context.Context, r *record) (families []nft.Family, err error) {
	families = r.families()
	for _, f := range nft.Families() {
		if r.Bridge == "" || len(r.of(f)) > 0 {
			continue
		}
		have, lost := c.named(ctx, f, stage2)
		if err = errors.Join(err, r.ignoreOtherVariant(lost)); have[r.Bridge+"\x00"] {
			families = append(families, f)
		}
	}
	return families, err
}

// change gives an attachment another policy: the port's flag and the record.
func (c *call) change(s *store, r *record, p policy) error {
	r.Policy = p
	port, err := c.host.Port(r.Port)
	if err == nil && (p == isolated && !port.Isolated || p != isolated && r.SetFlag) {
		r.SetFlag = p == isolated
		err = c.isolate(r, r.SetFlag)
	}
	if err != nil && !isGone(err) { // its container may be
		return err
	}
	return s.Put(*r)
}

// isolate sets or clears the isolated flag of the attachment's port, which keeps ports apart without br_netfilter too.
// To clear that of a port that is gone is no error.
func (c *call) isolate(r *record, on bool) error {
	port, err := c.host.Port(r.Port)
	if err == nil {
		port.Isolated = on
		err = c.host.SetPort(r.Port, port)
	}
	if !on && isGone(err) {
		return nil
	}
	return err
}

// isGone tells errors about a port that is none any more.
func isGone(err error) bool { return errors.Is(err, rtnl.ErrNoLink) || errors.Is(err, rtnl.ErrNotPort) }

// checkFlag looks whether the port of an isolated container is isolated.
func (c *call) checkFlag(r *record) error {
	if r.Policy != isolated {
		return nil
	}
	port, err := c.host.Port(r.Port)
	if isGone(err) || err == nil && !port.Isolated {
		return drift("host interface with index %d: is no isolated port of bridge %q", r.Port, r.Bridge)
	}
	return err
}
