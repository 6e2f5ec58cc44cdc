package netplugin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// MarkedHostEnd returns the host end that a Hawser plugin created for an attachment: the link that has one of the
// attachment's names, and the attachment's mark as its alias. Until ADD writes the mark, IsUnmarkedHostEnd recognizes
// the link. Another program's link can have one of the names.
func MarkedHostEnd(host *rtnl.Conn, a cni.Attachment) (rtnl.Link, error) {
	for _, name := range iface.HostNames(a) {
		l, err := host.Link(name)
		isOurs := IsUnmarkedHostEnd(l, a.Network) || l.IsPairEnd() && a.Owns(l.Alias)
		if err == nil && !isOurs {
			err = rtnl.ErrNoLink
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	return rtnl.Link{}, fmt.Errorf("host end of %s: %w", a, rtnl.ErrNoLink)
}

// IsUnmarkedHostEnd reports whether l is a host end on the network that has no mark yet, because its ADD is in progress
// or was killed. The kernel does not accept an alias for a new link. Until ADD writes the mark, the link's group
// identifies the network.
func IsUnmarkedHostEnd(l rtnl.Link, network string) bool {
	return l.IsPairEnd() && l.Alias == "" && l.Group == cni.NetworkHash(network)
}

// HostEndInResult returns the container's host end by the name and MAC address in prev, for a container whose interface
// no longer exists. cont is the socket in the container's namespace. The author of a configuration may write prev, so
// the kernel must report that the link is connected to that namespace, and isCandidate must accept the link.
func HostEndInResult(host, cont *rtnl.Conn, prev *cni.Result, isCandidate func(rtnl.Link) bool) (rtnl.Link, error) {
	if prev == nil {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	for _, i := range prev.Interfaces {
		if i.Sandbox != "" || i.MAC == "" {
			continue
		}
		l, err := host.Link(i.Name)
		isHostEnd := err == nil && isCandidate(l) && strings.EqualFold(i.MAC, l.MAC.String())
		if isHostEnd {
			isHostEnd, err = host.ConnectsTo(l, cont)
		}
		if err == nil && !isHostEnd {
			err = rtnl.ErrNoLink
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	return rtnl.Link{}, rtnl.ErrNoLink
}

// RefuseOwned returns code 103 if a link of the host belongs to an attachment. key is the key that names the link.
func RefuseOwned(key string, l rtnl.Link) error {
	if owner, ok := cni.ParseMark(l.Alias); ok {
		return cni.Errorf(cni.CodeConflict, "%s: %q: belongs to %s", key, l.Name, owner)
	}
	return nil
}

// RefuseVLANGateway returns code 103 if a link of the host is an end of a VLAN gateway: a pair on the host with one end
// that is called <bridge>.<vlan>, and another end that is a port of that bridge.
func RefuseVLANGateway(host *rtnl.Conn, key string, l rtnl.Link) error {
	if !l.IsPairEnd() || l.PeerNS != -1 {
		return nil
	}
	peer, err := host.LinkByIndex(l.Peer)
	if err != nil {
		return IgnoreNoLink(err)
	}
	for _, pair := range [][2]rtnl.Link{{l, peer}, {peer, l}} {
		gateway, port := pair[0], pair[1]
		if port.Master == 0 {
			continue
		}
		bridge, err := host.LinkByIndex(port.Master)
		if err != nil {
			return IgnoreNoLink(err)
		}
		vlan, isGateway := strings.CutPrefix(gateway.Name, bridge.Name+".")
		if _, err := strconv.ParseUint(vlan, 10, 12); isGateway && err == nil {
			return cni.Errorf(cni.CodeConflict, "%s: %q: belongs to the VLAN gateway %q of bridge %q", key, l.Name,
				gateway.Name, bridge.Name)
		}
	}
	return nil
}

// RefuseForeign returns code 103 if a link of the host is the host end of a container that another network plugin
// attached. The other end of such a link is in another network namespace. In addition, either the link is a port, or
// the host has a route through it to a single address of the other end. If the host's router has that address, the link
// is an uplink and is accepted.
func RefuseForeign(host *rtnl.Conn, key string, l rtnl.Link) error {
	if !l.IsPairEnd() || l.PeerNS == -1 {
		return nil
	}
	refusal := cni.Errorf(cni.CodeConflict, "%s: %q: connects a container of another network plugin", key, l.Name)
	if l.Master != 0 {
		return refusal
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		addrs, err := host.PeerAddrs(l, family)
		if err != nil {
			continue // the container's namespace does not let the host read it
		}
		for _, a := range addrs {
			if a.IsLinkLocalUnicast() && a.Is6() { // each link has its own
				continue
			}
			route, err := host.RouteEntry(a)
			if err != nil || route.OutIndex != l.Index || !route.Dst.IsSingleIP() || route.GW.IsValid() {
				continue
			}
			if router, _, err := host.DefaultRouter(a.Is4()); err != nil || router != a {
				return refusal
			}
		}
	}
	return nil
}
