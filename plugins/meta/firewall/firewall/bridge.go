package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findBridge finds the bridge of the attachment's host end, and notes the interface that packets of the bridge come
// from and go to: the bridge, or "BRIDGE.VLAN" for a container in a VLAN with a gateway. With the policy isolated it
// notes whether ADD has to set the port's isolated flag.
func (c call) findBridge(r *record, hostEnd rtnl.Link) error {
	if hostEnd.Master == 0 {
		return nil
	}
	bridge, err := c.Host.LinkByIndex(hostEnd.Master)
	if err != nil || bridge.Kind != "bridge" {
		return err
	}
	name := bridge.Name
	for _, a := range r.Addrs {
		index, err := c.Host.RouteTo(a)
		if rtnl.IsUnreachable(err) {
			if err = c.explainUnreachable(bridge, err); err == nil { // the host is not on the network
				continue
			}
		}
		var link rtnl.Link
		if err == nil {
			link, err = c.Host.LinkByIndex(index)
		}
		if err != nil { // a policy on another interface would have no effect
			return fmt.Errorf("bridge %q: interface of address %s: %w", bridge.Name, a, err)
		}
		if strings.HasPrefix(link.Name, bridge.Name+".") {
			name = link.Name
		}
	}
	r.Bridge, r.Port = name, hostEnd.Index
	if r.Policy == policyIsolated {
		return c.wantFlag(r)
	}
	return nil
}

// explainUnreachable returns nil if packets to an address that RouteTo does not find can only pass the bridge. The host
// may forward packets to it and send none itself, as a rule may want, and then also through "BRIDGE.VLAN".
func (c call) explainUnreachable(bridge rtnl.Link, unreachable error) error {
	if errors.Is(unreachable, unix.ENETUNREACH) { // no route
		return nil
	}
	links, err := c.Host.Links()
	if err != nil {
		return err
	}
	isVLAN := func(l rtnl.Link) bool { return strings.HasPrefix(l.Name, bridge.Name+".") }
	if !slices.ContainsFunc(links, isVLAN) {
		return nil
	}
	return fmt.Errorf("%w; remove the rule or route, or the other interfaces of the bridge (%s.VLAN)", unreachable,
		bridge.Name)
}

// sweepPolicies removes the policies of bridges that are gone or have no port. The reference never removes its own.
func (c call) sweepPolicies(ctx context.Context) error {
	live, err := c.NF.Elements(table, policedSet)
	errs := []error{nft.IfSupported(err)}
	for _, e := range live {
		end := func(bridge string) error { return c.enforce(ctx, bridge, policyOpen) }
		errs = append(errs, c.ifUnused(string(e.Key), end))
	}
	for _, f := range nft.Families() {
		names, err := c.namesInRules(ctx, f, stage2)
		for key := range names {
			err = errors.Join(err, c.ifUnused(key, func(bridge string) error {
				return c.editFilter(ctx, "", f, func(e *ipt.Edit) { ensurePolicy(e, bridge, policyOpen) })
			}))
		}
		errs = append(errs, ipt.WarnIfMissing(c.Req.Warn, othersRules, err))
	}
	return errors.Join(errs...)
}

// ifUnused calls end for the name in a key of nf_tables, if no interface, or a bridge without ports, has the name.
func (c call) ifUnused(key string, end func(bridge string) error) error {
	name := strings.TrimRight(key, "\x00")
	link, err := c.Host.Link(name)
	if errors.Is(err, rtnl.ErrNoLink) {
		return end(name)
	}
	if err != nil || link.Kind != "bridge" {
		return err
	}
	ports, err := c.Host.Ports(link.Index)
	if err != nil || len(ports) > 0 {
		return err
	}
	return end(name)
}

// settlePolicy returns the policy that the bridge of an added attachment is to have: the strictest that an attachment
// there wants. Nobody's is lowered. As long as the network has an isolated container there, so are its ports.
func (c call) settlePolicy(s *store, r *record) (p policy, err error) {
	if r.Bridge == "" {
		return policyOpen, nil
	}
	if r.Backend != iptables { // where the kernel has it, not all records have to be read
		if p, err = c.policyOf(r.Bridge); err != nil {
			return p, err
		}
	}
	if p == "" || stricter(p, r.Policy) != p {
		if p, err = r.bridgePolicy(s); err != nil {
			return p, err
		}
	}
	if p != r.Policy {
		c.Req.Warn("ingressPolicy: bridge %q stays %s for its other containers, as long as they live; this one is %s",
			r.Bridge, p, r.Policy)
	}
	if p != policyIsolated {
		return p, nil
	}
	isIsolated, err := r.hasIsolated(s)
	if err == nil && r.Policy == policyIsolated && !isIsolated {
		err = c.setNeighborFlags(s, r)
	}
	if err == nil && r.Policy != policyIsolated && isIsolated {
		if err = c.wantFlag(r); err == nil {
			err = s.Put(*r)
		}
	}
	return p, err
}

// wantFlag notes whether ADD has to set the port's isolated flag.
func (c call) wantFlag(r *record) error {
	port, err := c.Host.Port(r.Port)
	r.SetFlag = !port.Isolated
	return err
}

// setNeighborFlags isolates the network's other ports on the bridge. Otherwise their containers would reach an isolated
// one through the bridge.
func (c call) setNeighborFlags(s *store, r *record) error {
	all, err := s.All()
	for _, o := range all {
		if err != nil {
			return err
		}
		if o.Bridge == "" && o.Network == r.Network {
			err = c.findBridgeLater(o)
		}
		if err == nil && r.isNeighbor(*o) && o.Policy != policyIsolated {
			err = c.changeFlag(s, o, true)
		}
	}
	return err
}

// clearNeighborFlags undoes setNeighborFlags when the last isolated container of the bridge ends.
func (c call) clearNeighborFlags(s *store, r *record) error {
	all, err := s.All()
	isLast := !slices.ContainsFunc(all, func(o *record) bool {
		return o.Hash() != r.Hash() && o.Bridge == r.Bridge && o.Policy == policyIsolated
	})
	for _, o := range all {
		if err == nil && isLast && o.Hash() != r.Hash() && o.Bridge == r.Bridge && o.SetFlag {
			err = c.changeFlag(s, o, false)
		}
	}
	return err
}

// changeFlag sets or clears the isolated flag of a port, which may be gone, and notes that.
func (c call) changeFlag(s *store, o *record, on bool) error {
	if err := c.setFlag(o, on); err != nil && !isGone(err) {
		return err
	}
	return s.Put(*o)
}

// enforce gives a bridge the policy, in nftables.
func (c call) enforce(ctx context.Context, bridge string, want policy) error {
	return elements().Update(ctx, c.NF, func(tx *nft.Tx) error { return stagePolicy(tx, bridge, want) })
}

// findBridgeLater finds the bridge of a container for which ADD did not look for it. It finds none if the container is
// gone. Of errors it returns only those that may pass, and warns of others.
func (c call) findBridgeLater(r *record) error {
	cont, err := netplugin.DialNetns(ns.OpenAs, r.Path, r.Netns)
	defer func() { _ = cont.Close() }()
	var link rtnl.Link
	if err == nil {
		link, err = cont.Link(r.IfName)
	}
	if err == nil {
		link, err = c.Host.OtherEnd(link, cont)
	}
	if err == nil {
		err = c.findBridge(r, link)
	}
	if cni.Transient(err) {
		return err
	}
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		c.Req.Warn("ingressPolicy: %s keeps the policy that it has: %v", r.Attachment, err)
	}
	return nil
}

// setFlag sets or clears the isolated flag of the attachment's port, which keeps ports apart also without br_netfilter.
// It clears no flag that the bridge plugin set.
func (c call) setFlag(r *record, on bool) error {
	if !on && !r.SetFlag {
		return nil
	}
	port, err := c.Host.Port(r.Port)
	if err != nil {
		return err
	}
	if on && port.Isolated {
		return nil
	}
	r.SetFlag, port.Isolated = on, on
	return c.Host.SetPort(r.Port, port)
}

// isGone says whether the error means that the link is gone, or is no port any more.
func isGone(err error) bool { return errors.Is(err, rtnl.ErrNoLink) || errors.Is(err, rtnl.ErrNotPort) }

// verifyFlag looks whether the port of an isolated container is isolated.
func (c call) verifyFlag(r *record) error {
	if r.Policy != policyIsolated {
		return nil
	}
	port, err := c.Host.Port(r.Port)
	if err != nil && !isGone(err) {
		return err
	}
	if err != nil || !port.Isolated {
		return cni.Drift("host interface with index %d: is no isolated port of bridge %q", r.Port, r.Bridge)
	}
	return nil
}
