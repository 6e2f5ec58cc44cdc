package portmap

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// checkTargets refuses addresses to which no host port may forward: addresses of the host or its loopback, addresses
// that the container does not have, and addresses that the host reaches through another container's network. It does
// not trust prevResult, because the author of a configuration may have written it. links has the link by which the host
// reaches each address. An uplink gets no route_localnet.
func (c call) checkTargets(r *record, links []rtnl.Link) error {
	for i, a := range r.Addrs {
		addr, link := a.Addr.Addr(), links[i]
		isUplink, err := c.isUplink(link, addr.Is4())
		if err != nil {
			return err
		}
		reason, err := c.refusalReason(addr, link, isUplink)
		if err != nil {
			return err
		}
		if reason != "" {
			return cni.Refuse("prevResult.ips", addr.String(), reason)
		}
		if isUplink && r.Localnet == link.Name {
			r.Localnet = ""
			c.Req.Warn("host ports of 127.0.0.1 do not work: the host reaches %s through %q, an interface of the node",
				addr, link.Name)
		}
	}
	return nil
}

// refusalReason returns the reason why no host port may forward to the address, or "" if it may.
func (c call) refusalReason(addr netip.Addr, link rtnl.Link, isUplink bool) (reason string, err error) {
	switch {
	case addr.IsLoopback() || addr.IsMulticast() || addr.IsUnspecified():
		return "is not an address that a container can have", nil
	case link.Index == loopbackIndex:
		return "is an address of the host", nil
	}
	if hasAddress, err := c.hasAddress(addr); err != nil || !hasAddress {
		return fmt.Sprintf("is not an address of interface %q in the container", c.Req.IfName), err
	}
	if isUplink || link.Index == 0 || c.isConnected(link) { // Index is 0 if the host has no route to the address
		return "", nil
	}
	if isForeign, err := c.isForeign(link); err != nil || isForeign {
		return fmt.Sprintf("belongs to another network: the host reaches it through %q", link.Name), err
	}
	return "", nil
}

// isForeign reports whether a link to which the container is not connected belongs to other containers, because it is a
// host end, or a bridge with a host end as a port. It is false for a bridge that is joined to another bridge, on which
// the container may be.
func (c call) isForeign(link rtnl.Link) (bool, error) {
	isHostEnd := func(l rtnl.Link) bool { return l.IsPairEnd() && l.PeerNS != -1 }
	if link.Kind != "bridge" {
		return isHostEnd(link), nil
	}
	ports, err := c.Host.Ports(link.Index)
	isJoined := slices.ContainsFunc(ports, func(p rtnl.Link) bool { return p.IsPairEnd() && p.PeerNS == -1 })
	return slices.ContainsFunc(ports, isHostEnd) && !isJoined, err
}

// isUplink reports whether the link connects the node with other machines, and not with the container. Such a link is
// hardware, or the link of the default route.
func (c call) isUplink(link rtnl.Link, is4 bool) (bool, error) {
	if link.Index <= loopbackIndex || c.isConnected(link) {
		return false, nil
	}
	if link.Kind == "" {
		return true, nil
	}
	_, index, err := c.Host.DefaultRouter(is4)
	return index == link.Index, err
}

// hasAddress reports whether the container has the address. A lookup of the kernel's local route saves listing the
// addresses, but fails for an interface in a VRF and for an IPv6 address that is still tentative.
func (c call) hasAddress(addr netip.Addr) (bool, error) {
	if c.ContEnd.Index == 0 {
		return false, nil
	}
	if isLocal(c.Cont, addr) {
		return true, nil
	}
	addrs, err := c.Cont.Addrs(c.ContEnd.Index)
	return slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.Addr() == addr }), err
}

// isConnected reports whether the container is connected to the link of the host: the link is its host end, the bridge
// of its host end, or its interface's parent.
func (c call) isConnected(link rtnl.Link) bool {
	if c.HostEnd.Index != 0 {
		return link.Index == c.HostEnd.Index || link.Index == c.HostEnd.Master
	}
	return c.ContEnd.Peer == link.Index && c.ContEnd.PeerNS != -1
}

// isLocal reports whether the namespace of conn has the address.
func isLocal(conn *rtnl.Conn, addr netip.Addr) bool {
	index, err := conn.RouteTo(addr)
	return err == nil && index == loopbackIndex
}
