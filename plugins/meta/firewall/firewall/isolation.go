package firewall

import (
	"context"
	"errors"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// This file handles the isolated flag of bridge ports. The kernel forwards no packet between two isolated ports, even
// without br_netfilter, when bridged packets do not pass nftables or iptables. A port without the flag still reaches an
// isolated one. Therefore, while a network has an isolated container on a bridge, the network's other ports on that
// bridge are also isolated.

// isolatePorts isolates the network's other ports on the bridge if the record's container is the network's first
// isolated container there. If only another container is isolated, it records that ADD must isolate this port.
func (c call) isolatePorts(ctx context.Context, s *store, r *record) error {
	hasIsolated, err := s.Any(func(o record) bool { return r.isNeighbor(o) && o.Policy == policyIsolated })
	isFirst := r.Policy == policyIsolated && !hasIsolated
	switch {
	case err != nil:
		return err
	case isFirst:
		return c.setNeighborFlags(ctx, s, r)
	case r.Policy == policyIsolated || !hasIsolated:
		return nil
	}
	if err := c.recordFlag(r); err != nil {
		return err
	}
	return s.Put(ctx, *r)
}

func (r *record) isNeighbor(o record) bool {
	return o.Hash() != r.Hash() && o.Network == r.Network && o.Bridge == r.Bridge
}

// setNeighborFlags isolates the network's other ports on the record's bridge.
func (c call) setNeighborFlags(ctx context.Context, s *store, r *record) error {
	all, err := s.All()
	for _, o := range all {
		if err != nil {
			return err
		}
		if o.Bridge == "" && o.Network == r.Network {
			err = c.findMissingBridge(o)
		}
		if err == nil && r.isNeighbor(*o) && o.Policy != policyIsolated {
			err = c.changeFlag(ctx, s, o, true)
		}
	}
	return err
}

// clearNeighborFlags reverts setNeighborFlags if the record's container is the last isolated container on the bridge.
func (c call) clearNeighborFlags(ctx context.Context, s *store, r *record) error {
	all, err := s.All()
	isLast := !slices.ContainsFunc(all, func(o *record) bool {
		return o.Hash() != r.Hash() && o.Bridge == r.Bridge && o.Policy == policyIsolated
	})
	for _, o := range all {
		if err == nil && isLast && o.Hash() != r.Hash() && o.Bridge == r.Bridge && o.SetFlag {
			err = c.changeFlag(ctx, s, o, false)
		}
	}
	return err
}

// changeFlag sets or clears the flag of a port and writes its record. A missing port is not an error.
func (c call) changeFlag(ctx context.Context, s *store, o *record, on bool) error {
	if err := c.setFlag(o, on); err != nil && !isPortMissing(err) {
		return err
	}
	return s.Put(ctx, *o)
}

// setFlag sets or clears the flag of the record's port. It does not clear a flag that the bridge plugin set.
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

// recordFlag sets SetFlag if the port does not have the flag yet, so that ADD sets the flag.
func (c call) recordFlag(r *record) error {
	port, err := c.Host.Port(r.Port)
	r.SetFlag = !port.Isolated
	return err
}

// isPortMissing reports whether an error means that a link does not exist or is not a bridge port.
func isPortMissing(err error) bool {
	return errors.Is(err, rtnl.ErrNoLink) || errors.Is(err, rtnl.ErrNotPort)
}

// verifyFlag verifies that the port of an isolated container has the flag.
func (c call) verifyFlag(r *record) error {
	if r.Policy != policyIsolated {
		return nil
	}
	port, err := c.Host.Port(r.Port)
	if err != nil && !isPortMissing(err) {
		return err
	}
	if err != nil || !port.Isolated {
		return cni.Drift("host interface with index %d: is not an isolated port of bridge %q", r.Port, r.Bridge)
	}
	return nil
}
