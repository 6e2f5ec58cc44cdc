package main

import (
	"errors"
	"strings"

	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findBridge finds the bridge of the attachment's host end, and notes the interface that packets of the bridge come
// from and go to: the bridge, or "BRIDGE.VLAN" for a container in a VLAN with a gateway. A policy needs the port's
// isolated flag too where it is not set.
func (c *call) findBridge(r *record) error {
	cont, err := rtnl.Dial(c.NS)
	if err != nil {
		return err
	}
	defer cont.Close()
	inside, err := cont.Link(c.IfName)
	if errors.Is(err, rtnl.ErrNoLink) || err == nil && (inside.Kind != "veth" || inside.Peer == 0) {
		return nil
	}
	if err != nil {
		return err
	}
	end, err := c.host.LinkByIndex(inside.Peer)
	// The index may be another namespace's.
	if errors.Is(err, rtnl.ErrNoLink) || err == nil && (end.Peer != inside.Index || end.Master == 0) {
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
	if r.Policy == open {
		return nil
	}
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

// settle gives the network's other attachments on the bridge the policy of this one, and returns the policy of the
// bridge: the strictest that one of its networks wants. Where the bridge has this policy nothing has to be settled.
func (c *call) settle(s *store, r *record) (policy, error) {
	if r.Bridge == "" {
		return open, nil
	}
	p, err := c.policyOf(r.Bridge)
	if err != nil || p == r.Policy && r.Backend != iptables {
		return p, err
	}
	all, err := records(s)
	if err != nil {
		return p, err
	}
	p = r.Policy
	for _, o := range all {
		if o.Bridge != r.Bridge || o.hash() == r.hash() {
			continue
		}
		if o.Network == r.Network && o.Policy != r.Policy {
			if err := c.change(s, o, r.Policy); err != nil {
				return p, err
			}
		}
		p = stricter(p, o.Policy)
	}
	return p, nil
}

// change gives an attachment another policy: the port's flag and the record.
func (c *call) change(s *store, r *record, p policy) error {
	r.Policy = p
	port, err := c.host.Port(r.Port)
	switch {
	case errors.Is(err, rtnl.ErrNoLink) || errors.Is(err, rtnl.ErrNotPort):
		// its container is gone
	case err != nil:
		return err
	case p == isolated && !port.Isolated, p != isolated && r.SetFlag:
		r.SetFlag = p == isolated
		if err := c.isolate(r, r.SetFlag); err != nil {
			return err
		}
	}
	return s.Put(r.hash(), *r)
}

// isolate sets or clears the isolated flag of the attachment's port, which keeps ports apart without br_netfilter too.
// A port that is gone is no error.
func (c *call) isolate(r *record, on bool) error {
	port, err := c.host.Port(r.Port)
	if err == nil {
		port.Isolated = on
		err = c.host.SetPort(r.Port, port)
	}
	if !on && (errors.Is(err, rtnl.ErrNoLink) || errors.Is(err, rtnl.ErrNotPort)) {
		return nil
	}
	return err
}

// checkFlag looks whether the port of an isolated container is isolated.
func (c *call) checkFlag(r *record) error {
	if r.Policy != isolated {
		return nil
	}
	port, err := c.host.Port(r.Port)
	if errors.Is(err, rtnl.ErrNoLink) || errors.Is(err, rtnl.ErrNotPort) || err == nil && !port.Isolated {
		return drift("host interface with index %d: is no isolated port of bridge %q", r.Port, r.Bridge)
	}
	return err
}
