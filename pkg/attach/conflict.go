package attach

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// RefuseUsedAddress returns code 103 if the host's router or a live container of another network has the address.
// Without the refusal, the host would send packets for the router or container to this attachment. An unused address is
// not refused, even in the subnet of another network, because networks may have separate ranges in one subnet.
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
	link, err := c.linkAt(route.OutIndex)
	if err != nil {
		return err
	}
	return c.refuseHolder(link, netip.PrefixFrom(addr, addr.BitLen()))
}

// RefuseNeighbors returns code 103 if a live container of another network on the same bridge, or in the same VLAN of
// the bridge, has one of the result's addresses. link is the bridge or the VLAN gateway. When the address is announced,
// the neighbors would send that container's packets to this attachment. A container that has exchanged no packets with
// the host is not found.
func (c *Call) RefuseNeighbors(res *cni.Result, link rtnl.Link) error {
	for _, ip := range res.IPs {
		addr := ip.Address.Addr()
		if !c.Host.HasNeighbor(link.Index, addr) { // this saves reading the addresses of all ports
			continue
		}
		if err := c.refuseHolder(link, netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			return err
		}
	}
	return nil
}

// RefuseGateway returns code 103 if a live container of another network has the new gateway address. links, the bridge
// and perhaps its VLAN gateway, are not checked. With the address, the host gets a route to the gateway's subnet, which
// takes precedence over routes to larger subnets. If such a larger subnet contains the address, RefuseGateway also
// returns code 103 for any container in the gateway's subnet. If the larger subnet is behind a bridge or VLAN gateway,
// any container in the larger subnet is enough, because the next one may get an address in the gateway's subnet.
func (c *Call) RefuseGateway(gateway netip.Prefix, links ...rtnl.Link) error {
	routes, err := c.Host.RouteCopies()
	if err != nil {
		return err
	}
	for _, r := range routes {
		dst := r.Route().Dst
		for _, index := range r.Links() {
			isOwn := slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Index == index })
			if isOwn || index <= 1 || dst.Bits() == 0 || !dst.Contains(gateway.Addr()) { // index 1 is lo
				continue
			}
			prefix := netip.PrefixFrom(gateway.Addr(), gateway.Addr().BitLen())
			if dst.Bits() < gateway.Bits() { // the host's new route takes all packets to the gateway's subnet
				prefix = gateway.Masked()
			}
			link, err := c.linkAt(index)
			if err == nil {
				err = c.refuseHolder(link, prefix)
			}
			if err == nil && dst.Bits() < gateway.Bits() {
				err = c.refuseInnerSubnet(link, prefix, dst)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// linkAt returns the host's link with an index. If the link no longer exists, or for the index 0 of a route through
// several routers, it returns the zero Link, which connects no container.
func (c *Call) linkAt(index int) (l rtnl.Link, err error) {
	if index != 0 {
		l, err = c.Host.LinkByIndex(index)
	}
	return l, netplugin.IgnoreNoLink(err)
}

// refuseHolder returns code 103 if a container of another network on this link of the host has an address in prefix.
func (c *Call) refuseHolder(link rtnl.Link, prefix netip.Prefix) error {
	holder, addr, err := c.FindHolder(link, prefix)
	if err != nil || holder == "" {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "address %s: %s has it, and the host would no longer reach that container; "+
		"choose addresses that no other network of the node uses", addr, holder)
}

// refuseInnerSubnet returns code 103 if a bridge or a VLAN gateway has a container of another network in subnet, which
// contains inner.
func (c *Call) refuseInnerSubnet(link rtnl.Link, inner, subnet netip.Prefix) error {
	if link.Kind != "bridge" && !isHostPair(link) {
		return nil
	}
	holder, _, err := c.FindHolder(link, subnet)
	if err != nil || holder == "" {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "address %s: is in subnet %s of %s, and the host would not reach containers "+
		"of that network with such addresses; choose addresses that no other network of the node uses", inner, subnet,
		holder)
}

// isHostPair reports whether both ends of a pair are on the host, as the ends of a VLAN gateway are.
func isHostPair(l rtnl.Link) bool { return l.IsPairEnd() && l.PeerNS == -1 }

// FindHolder describes the first container of another network whose ADD assigned an address in dst, and returns the
// address. The container is connected to the host's link or, if that is a bridge, to a port of it. For a VLAN gateway,
// only ports in its VLAN are searched. FindHolder returns the empty string if it finds no such container. It cannot
// find a container whose addresses the kernel does not report.
func (c *Call) FindHolder(link rtnl.Link, dst netip.Prefix) (holder string, addr netip.Addr, err error) {
	ends, vlan := []rtnl.Link{link}, ""
	if isHostPair(link) {
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
		// Another attachment of the same container, or of the same network, is not in conflict.
		isOwn := c.HostEnd.Index != 0 && end.PeerNS == c.HostEnd.PeerNS || owner.IsOn(c.Req.Network)
		if !end.IsPairEnd() || end.PeerNS == -1 || isOwn {
			continue
		}
		addrs, err := c.Host.PeerAddrs(end, rtnl.FamilyOf(dst.Addr()))
		if slices.ContainsFunc(addrs, dst.Contains) {
			addrs = assigned(addrs, end.Alias)
		}
		addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !dst.Contains(a) })
		if err != nil || len(addrs) == 0 {
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
			return holder, addrs[0], nil
		}
	}
	return "", addr, nil
}

// bridgeOf returns the bridge of which the other end of a pair is a port, or the zero Link if it is not a port.
func (c *Call) bridgeOf(end rtnl.Link) (rtnl.Link, error) {
	peer, err := c.linkAt(end.Peer)
	if err != nil {
		return rtnl.Link{}, err
	}
	return c.linkAt(peer.Master)
}

// isInVLAN reports whether vlan is the VLAN of a port for packets without a tag (PVID). The address of the port's
// container is in that VLAN, so VLANs that the port carries with a tag are ignored. isInVLAN returns true if the bridge
// does not filter VLANs, or if vlan is not a number.
func (c *Call) isInVLAN(port, bridge rtnl.Link, vlan string) (bool, error) {
	if _, err := strconv.Atoi(vlan); err != nil || !bridge.VLANFiltering {
		return true, nil
	}
	vlans, err := c.Host.VLANs(port.Index)
	return slices.ContainsFunc(vlans, func(v rtnl.VLAN) bool { return v.PVID && strconv.Itoa(int(v.ID)) == vlan }), err
}

// assigned returns the addresses that the ADD of the attachment with a mark assigned. A container with CAP_NET_ADMIN
// can give itself any other address, and must not block that address for other networks. For each assigned address that
// the container lacks, assigned returns one other address, because a DHCP server may have replaced it. If the ADD's
// result is unknown, assigned returns all addresses. addrs are all addresses of one family.
func assigned(addrs []netip.Addr, mark string) (out []netip.Addr) {
	result := cachedResult(mark)
	if result == nil {
		return addrs
	}
	lacking := 0
	for _, ip := range result.IPs {
		addr := ip.Address.Addr()
		if slices.Contains(addrs, addr) {
			out = append(out, addr)
		} else if addr.Is4() == addrs[0].Is4() {
			lacking++
		}
	}
	others := slices.DeleteFunc(addrs, func(addr netip.Addr) bool { return slices.Contains(out, addr) })
	return append(out, others[:min(lacking, len(others))]...)
}

// cachedResult returns the result of the ADD of the attachment with a mark, or nil if libcni's cache lacks it.
func cachedResult(mark string) *cni.Result {
	owner, isOwned := cni.ParseMark(mark)
	if !isOwned {
		return nil
	}
	var files []string
	for _, dir := range []string{"", "multus/", "cache/"} { // "cache" is cri-dockerd's
		// The mark may contain only the beginning of the ID, which has no meta characters.
		found, _ := filepath.Glob("/var/lib/cni/" + dir + "results/*-" + owner.ContainerID + "*")
		files = append(files, found...)
	}
	for _, file := range files {
		var cached struct {
			Network     string          `json:"networkName"`
			ContainerID string          `json:"containerId"`
			IfName      string          `json:"ifName"`
			Result      json.RawMessage `json:"result"`
		}
		if data, err := os.ReadFile(file); err != nil || json.Unmarshal(data, &cached) != nil {
			continue
		}
		owner = cni.Attachment{Network: cached.Network, ContainerID: cached.ContainerID, IfName: cached.IfName}
		if result, err := cni.DecodeResult(cached.Result, "0.2.0"); err == nil && owner.Owns(mark) {
			return result
		}
	}
	return nil
}
