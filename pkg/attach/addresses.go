package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// AssignAddresses runs the IPAM plugin, if there is one, and configures the container's interface with the result. The
// interface must be up, because some IPAM plugins use it. For a device without an interface, t.Index is 0, and
// AssignAddresses only returns the result.
func (c *Call) AssignAddresses(ctx context.Context, link LinkConfig, t iface.Target) (*cni.Result, error) {
	c.ipam.OnlyRoutes = len(link.OwnAddrs) > 0
	if err := c.StartIPAM(ctx); err != nil {
		return nil, err
	}
	answer, err := c.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	if c.Req.IPAM == "" && link.Fallback != nil {
		answer = link.Fallback
	}
	res, err := link.Result(answer, 0)
	if err != nil {
		return nil, err
	}
	for _, ip := range res.IPs {
		if gw := ip.Gateway; gw.IsValid() && gw.Is4() != ip.Address.Addr().Is4() {
			return nil, cni.Errorf(cni.CodeIPAM, "IPAM gave address %s and gateway %s of the other family", ip.Address,
				gw)
		}
	}
	isDevice := c.Child.New.Kind == ""
	if isDevice || c.Child.Master != nil { // packets of a child without a master stay in the container
		uplink := c.Master
		if c.Child.isMasterInside() {
			uplink = rtnl.Link{} // the master is not a link of the host
		}
		if err := c.RefuseHostAddresses(res, uplink, false); err != nil {
			return nil, err
		}
		if c.Child.TakesPackets && !c.Child.isMasterInside() {
			for _, ip := range res.IPs {
				if err := c.RefuseUsedAddress(ip.Address.Addr()); err != nil {
					return nil, err
				}
			}
		}
	}
	res.Interfaces = c.Interfaces()
	if t.Index == 0 {
		return res, nil
	}
	for _, own := range link.OwnAddrs {
		t.Existing = append(t.Existing, own.Address.Addr())
		isAssigned := func(ip cni.IP) bool { return ip.Address.Addr() == own.Address.Addr() }
		res.IPs = append(slices.DeleteFunc(res.IPs, isAssigned), own)
	}
	c.Req.Step("configure the interface")
	return res, iface.Configure(ctx, t, res)
}

// StartIPAM starts the ADD of the IPAM plugin, if the configuration names one. The plugin runs concurrently, and
// IPAMResult waits for it. The interface must exist, and this Call must have created it, because the undo releases all
// addresses of the attachment, and an interface of another ADD would still use them.
func (c *Call) StartIPAM(ctx context.Context) error {
	if c.Req.IPAM == "" {
		return nil
	}
	var err error
	if c.ipamAdd, err = c.ipam.Start(ctx, "ADD"); err != nil {
		return err
	}
	c.Req.OnFail("release the addresses", func(ctx context.Context) error {
		if err := c.removeAddresses(); err != nil {
			return fmt.Errorf("%w: %w", notReleased(c.ipam), err)
		}
		return c.ipam.Release(ctx, c.ipamAdd)
	})
	return nil
}

// removeAddresses deletes the pair, so that no interface answers to the addresses that are released next. If IPAM's DEL
// needs the interface, or if the interface is not an end of a pair, the interface stays and loses only its addresses.
func (c *Call) removeAddresses() error {
	switch {
	case c.ContEnd.Index == 0: // a device with a userspace driver has no interface
		return nil
	case c.ipam.NeedsInterface() || c.HostEnd.Index == 0:
		return Flush(c.Cont, c.ContEnd)
	}
	return c.Host.DelLink(c.HostEnd.Index)
}

// IPAMResult waits for the result of the IPAM plugin. It returns an empty result if there is no IPAM plugin.
func (c *Call) IPAMResult(ctx context.Context) (*cni.Result, error) {
	if c.ipamAdd == nil {
		return &cni.Result{}, nil
	}
	c.Req.Step("wait for IPAM")
	ipamAdd := c.ipamAdd
	c.ipamAdd = nil
	answer, err := c.ipam.Result(ctx, ipamAdd)
	if err != nil {
		return nil, err
	}
	return answer, requireIPv6(answer)
}

// requireIPv6 returns code 2 for an IPv6 address on a kernel that was started without IPv6.
func requireIPv6(answer *cni.Result) error {
	i := slices.IndexFunc(answer.IPs, func(ip cni.IP) bool { return ip.Address.Addr().Is6() })
	// If the directory cannot be read for another reason, the kernel decides when the address is added.
	if i < 0 || !errors.Is(unix.Access("/proc/sys/net/ipv6", unix.F_OK), unix.ENOENT) {
		return nil
	}
	return cni.Errorf(cni.CodeUnsupportedField,
		"address %s: IPv6 is not supported by this kernel, which may have been started with ipv6.disable=1",
		answer.IPs[i].Address)
}

// RefuseHostAddresses returns code 103 if the host itself has one of the result's addresses. link is the host's link on
// which the container's packets arrive; zero = none. If link is in a VRF, only the VRF's addresses are compared. If the
// host is not the container's router and has no address of the family on link, RefuseHostAddresses only warns of an
// address that is not a loopback address. IPv6 link-local addresses are not checked, because each link has its own.
func (c *Call) RefuseHostAddresses(res *cni.Result, link rtnl.Link, isRouter bool) error {
	var vrf rtnl.Link
	if link.Master != 0 {
		master, err := c.Host.LinkByIndex(link.Master)
		if err != nil {
			return err
		}
		if master.Kind == "vrf" {
			vrf = master
		}
	}
	for _, ip := range res.IPs {
		addr := ip.Address.Addr()
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			continue
		}
		local, err := c.Host.IsLocal(addr, vrf)
		if err != nil {
			return err
		}
		if !local {
			continue
		}
		isConflict := isRouter || addr.IsLoopback()
		if !isConflict {
			if isConflict, err = c.hostHasAddress(link, addr.Is4()); err != nil {
				return err
			}
		}
		if isConflict {
			return cni.Errorf(cni.CodeConflict,
				"address %s: the host has it; exclude it from the addresses that IPAM assigns", addr)
		}
		c.Req.Warn("address %s: the host also has it, on another network", addr)
	}
	return nil
}

// hostHasAddress reports whether the host has an address of a family on the link. Link-local addresses are ignored.
func (c *Call) hostHasAddress(link rtnl.Link, is4 bool) (bool, error) {
	if link.Index == 0 {
		return false, nil
	}
	addrs, err := c.Host.Addrs(link.Index)
	return slices.ContainsFunc(addrs, func(a rtnl.Addr) bool {
		return a.Prefix.Addr().Is4() == is4 && !a.Prefix.Addr().IsLinkLocalUnicast()
	}), err
}

// RefuseRouter returns code 103 if the host, with the new gateway address, could no longer reach the router of its
// default route. This is the case if the router has the same address. It is also the case if the router is in the
// gateway's subnet and the host has no more specific route to the router. A router is not checked if the host reaches
// it through one of links, or if it is link-local, because each link has its own link-local addresses. A subnet that is
// larger than the largest private one is also refused, because its route would take packets of the default route.
func (c *Call) RefuseRouter(gateway netip.Prefix, links ...rtnl.Link) error {
	shortest := 7 // fc00::/7
	if gateway.Addr().Is4() {
		shortest = 8 // 10.0.0.0/8
	}
	if gateway.Bits() < shortest {
		return cni.Errorf(cni.CodeConflict, "gateway %s: the prefix is shorter than /%d, and takes packets of the "+
			"host's default route; choose a smaller subnet", gateway, shortest)
	}
	router, index, err := c.Host.DefaultRouter(gateway.Addr().Is4())
	isOwnLink := slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Index == index })
	if err != nil || isOwnLink || !router.IsValid() || router.IsLinkLocalUnicast() || !gateway.Contains(router) {
		return err
	}
	route, err := c.Host.RouteEntry(router)
	if err != nil || router != gateway.Addr() && route.Dst.Bits() > gateway.Bits() {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "gateway %s: the host's own router %s is in this subnet, and the host would "+
		"no longer reach it; choose a subnet that the node does not use", gateway, router)
}

// Flush removes the addresses from a container's interface, except IPv6 link-local addresses, which the kernel added.
func Flush(cont *rtnl.Conn, end rtnl.Link) error {
	addrs, err := cont.Addrs(end.Index)
	errs := []error{err}
	for _, a := range addrs {
		if a.Prefix.Addr().Is4() || !a.Prefix.Addr().IsLinkLocalUnicast() {
			errs = append(errs, cont.DelAddr(end.Index, a.Prefix))
		}
	}
	return errors.Join(errs...)
}
