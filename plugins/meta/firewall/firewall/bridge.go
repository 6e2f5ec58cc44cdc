package firewall

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findBridge records the bridge of the container's host end. For a container in a VLAN with a gateway, it records the
// VLAN interface "BRIDGE.VLAN" instead, because the host's rules see that interface. With the policy isolated, it also
// records whether ADD must set the port's isolated flag.
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
			if err = c.checkUnreachable(bridge, err); err == nil { // the host is not on the network
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
		return c.recordFlag(r)
	}
	return nil
}

// readContainer returns the addresses of the container's interface, and the names of its host end and of the host end's
// bridge. Without the interface, addrs is nil; without a host end, links is nil.
func (c call) readContainer() (addrs []netip.Addr, links []string, err error) {
	err = netplugin.IgnoreNoLink(c.FindHostEnd())
	var live []rtnl.Addr
	if err == nil && c.ContEnd.Index != 0 {
		live, err = c.Cont.Addrs(c.ContEnd.Index)
	}
	for _, a := range live {
		addrs = append(addrs, a.Prefix.Addr())
	}
	if err != nil || c.HostEnd.Index == 0 {
		return addrs, nil, netplugin.IgnoreNoLink(err)
	}
	bridge, err := c.Host.LinkByIndex(cmp.Or(c.HostEnd.Master, c.HostEnd.Index))
	return addrs, []string{c.HostEnd.Name, bridge.Name}, netplugin.IgnoreNoLink(err)
}

// checkUnreachable decides about an address for which RouteTo returned the error unreachable. It returns nil if the
// host has no route to the address, or if the bridge has no interface "BRIDGE.VLAN". Otherwise it returns an error,
// because a routing rule can forbid the host's own packets and still let the host forward packets through either
// interface.
func (c call) checkUnreachable(bridge rtnl.Link, unreachable error) error {
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

// findMissingBridge finds the bridge of a container whose ADD did not need it. If the container no longer exists, the
// record does not change. findMissingBridge returns only transient errors, and warns of others.
func (c call) findMissingBridge(r *record) error {
	cont, err := netplugin.DialNetns(ns.OpenAs, r.NetnsPath, r.Netns)
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
