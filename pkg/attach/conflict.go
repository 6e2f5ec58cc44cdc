package attach

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// RefuseUsedAddress returns code 103 if the host's router or a live container of another network has the address. The
// host would send their packets to a link of this attachment. An unused address is not refused, even in the subnet of
// another network, because networks may divide a subnet by their ranges.
func (c *Call) RefuseUsedAddress(addr netip.Addr) error {
	route, err := c.Host.RouteEntry(addr)
	isUnicast := route.Type == unix.RTN_UNICAST            // false for the host's own address, for example
	if err != nil || !isUnicast || route.Dst.Bits() == 0 { // other hosts are behind the default route
		if rtnl.IsUnreachable(err) {
			return nil
		}
		return err
	}
	router, _, err := c.Host.DefaultRouter(addr.Is4())
	if err != nil {
		return err
	}
	if router == addr {
		return cni.Errorf(cni.CodeConflict, "address %s: the host's own router has it; choose addresses that the "+
			"node's network does not use", addr)
	}
	return c.refuseHolder(route.OutIndex, netip.PrefixFrom(addr, addr.BitLen()))
}

// RefuseNeighbors returns code 103 if a live container of another network on the same bridge, or in the same VLAN of
// it, has one of the result's addresses. link is the bridge or the VLAN gateway. When the address is announced, the
// neighbors would send that container's packets to this attachment. A container that has exchanged no packets with the
// host is not found.
func (c *Call) RefuseNeighbors(res *cni.Result, link rtnl.Link) error {
	for _, ip := range res.IPs {
		addr := ip.Address.Addr()
		if !c.Host.HasNeighbor(link.Index, addr) { // this saves reading the addresses of all ports
			continue
		}
		if err := c.refuseHolder(link.Index, netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			return err
		}
	}
	return nil
}

// RefuseGateway is RefuseUsedAddress for a new gateway address of a bridge or a VLAN gateway, which are links. With the
// address, the host also gets a route to its subnet, which takes precedence over routes to larger subnets. So the
// address is also refused if its subnet is a part of the subnet of another bridge with containers of another network.
func (c *Call) RefuseGateway(gateway netip.Prefix, links ...rtnl.Link) error {
	routes, err := c.Host.RouteCopies()
	if err != nil {
		return err
	}
	for _, r := range routes {
		dst := r.Route().Dst
		for _, index := range r.Links() {
			isOwn := slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Index == index })
			if isOwn || index <= 1 || dst.Bits() == 0 || !dst.Contains(gateway.Addr()) {
				continue
			}
			prefix := netip.PrefixFrom(gateway.Addr(), gateway.Addr().BitLen())
			if dst.Bits() < gateway.Bits() {
				prefix = gateway.Masked()
			}
			err := c.refuseHolder(index, prefix)
			if err == nil && dst.Bits() < gateway.Bits() {
				err = c.refuseInnerSubnet(index, prefix, dst)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// refuseHolder returns code 103 if a container of another network on this link of the host has an address in prefix.
func (c *Call) refuseHolder(index int, prefix netip.Prefix) error {
	holder, addr, _, err := c.findHolder(index, prefix)
	if err != nil || holder == "" {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "address %s: %s has it, and the host would no longer reach that container; "+
		"choose addresses that no other network of the node uses", addr, holder)
}

// refuseInnerSubnet returns code 103 if a bridge has a container of another network in subnet, which contains inner.
func (c *Call) refuseInnerSubnet(index int, inner, subnet netip.Prefix) error {
	holder, _, isBridge, err := c.findHolder(index, subnet)
	if err != nil || holder == "" || !isBridge {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "address %s: is in subnet %s of %s, and the host would not reach containers "+
		"of that network with such addresses; choose addresses that no other network of the node uses", inner, subnet,
		holder)
}

// findHolder is FindHolder for a link's index. It also reports whether the link is a bridge or its VLAN gateway. There
// is no holder for index 0, which a route through several routers has, and for a link that no longer exists.
func (c *Call) findHolder(index int, dst netip.Prefix) (holder string, addr netip.Addr, isBridge bool, err error) {
	if index == 0 {
		return "", addr, false, nil
	}
	link, err := c.Host.LinkByIndex(index)
	if errors.Is(err, rtnl.ErrNoLink) {
		return "", addr, false, nil
	}
	if err == nil {
		holder, addr, err = c.FindHolder(link, dst)
	}
	return holder, addr, link.Kind == "bridge" || link.IsPairEnd() && link.PeerNS == -1, err
}

// FindHolder returns a description of the first container of another network that is connected to a link of the host,
// or to a port of the link if that is a bridge, and has an address in dst. For a VLAN gateway, only ports in its VLAN
// count. FindHolder returns the empty string if it finds no such container. It cannot find a container whose addresses
// the kernel does not report.
func (c *Call) FindHolder(link rtnl.Link, dst netip.Prefix) (holder string, addr netip.Addr, err error) {
	ends, vlan := []rtnl.Link{link}, ""
	if link.IsPairEnd() && link.PeerNS == -1 { // a VLAN gateway, whose other end is a port
		vlan = link.Name[strings.LastIndex(link.Name, ".")+1:]
		if link, err = c.bridgeOf(link); err != nil {
			return "", addr, err
		}
	}
	if link.Kind == "bridge" {
		if ends, err = c.Host.Ports(link.Index); err != nil {
			return "", addr, err
		}
	}
	for _, end := range ends {
		owner, hasMark := cni.ParseMark(end.Alias)
		isOwn := c.HostEnd.Index != 0 && end.PeerNS == c.HostEnd.PeerNS || owner.Network == c.Req.Network
		if !end.IsPairEnd() || end.PeerNS == -1 || isOwn {
			continue
		}
		addrs, err := c.Host.PeerAddrs(end, rtnl.FamilyOf(dst.Addr()))
		i := slices.IndexFunc(addrs, dst.Contains)
		if err != nil || i < 0 {
			continue
		}
		isIn, err := c.isInVLAN(end, link, vlan)
		if err != nil {
			return "", addr, err
		}
		if isIn {
			holder = "the container behind " + end.Name
			if hasMark {
				holder = owner.String()
			}
			return holder, addrs[i], nil
		}
	}
	return "", addr, nil
}

// bridgeOf returns the bridge of which the other end of a pair is a port, or the zero Link if it is not a port.
func (c *Call) bridgeOf(end rtnl.Link) (bridge rtnl.Link, err error) {
	peer, err := c.Host.LinkByIndex(end.Peer)
	if err == nil && peer.Master != 0 {
		bridge, err = c.Host.LinkByIndex(peer.Master)
	}
	return bridge, netplugin.IgnoreNoLink(err)
}

// isInVLAN reports whether the packets of a port's container without a tag are in a VLAN. The container's address is in
// this VLAN, even if the port also carries others with a tag. All ports are in each VLAN of a bridge that does not
// filter VLANs, and in a vlan that is not a number.
func (c *Call) isInVLAN(port, bridge rtnl.Link, vlan string) (bool, error) {
	if _, err := strconv.Atoi(vlan); err != nil || !bridge.VLANFiltering {
		return true, nil
	}
	vlans, err := c.Host.VLANs(port.Index)
	return slices.ContainsFunc(vlans, func(v rtnl.VLAN) bool { return v.PVID && strconv.Itoa(int(v.ID)) == vlan }), err
}
