package rtnl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route is a route with one next hop.
type Route struct {
	Dst      netip.Prefix // 0.0.0.0/0 or ::/0 = default; host bits are cut off
	GW       netip.Addr   // zero = the destination is on the link
	Src      netip.Addr   // preferred source, not tentative; zero = the kernel's choice
	OutIndex int
	MTU      int    // 0 = the link's
	AdvMSS   int    // 0 = from the MTU
	Priority uint32 // metric; 0 = 0 for IPv4, 1024 for IPv6
	Table    uint32 // 0 = main
	// RT_SCOPE_*; IPv4 only, IPv6 knows none. AddRoute takes 0 for universe
	// also where there is no gateway.
	Scope    int
	Type     int  // RTN_*; 0 = unicast
	Protocol int  // RTPROT_*, who made the route; 0 = RTPROT_BOOT
	OnLink   bool // the gateway need not be reachable by another route
}

// String is the route as messages name it.
func (r Route) String() string {
	s := r.Dst.Masked().String()
	if r.GW.IsValid() {
		s += " via " + r.GW.String()
	}
	return s
}

// AddRoute adds a route beside those that are there. The error matches EEXIST
// only when the same route is there: destination, next hop, priority and
// table, for IPv4 all other fields too. Of two IPv4 routes that differ only in
// the next hop the one added last is used; with IPv6 both are (multipath).
func (c *Conn) AddRoute(r Route) error {
	// RouteAdd would refuse a second next hop as well.
	err := c.use(func(h *netlink.Handle) error { return h.RouteAddEcmp(r.encode()) })
	if err != nil {
		return fmt.Errorf("route %s: %w", r, noLink(err))
	}
	return nil
}

func (r Route) encode() *netlink.Route {
	out := &netlink.Route{
		Dst: ipNet(r.Dst.Masked()), Src: r.Src.AsSlice(), LinkIndex: r.OutIndex,
		MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: int(r.Priority), Table: int(r.Table),
		Scope: netlink.Scope(r.Scope), Type: r.Type, Protocol: netlink.RouteProtocol(r.Protocol),
	}
	if r.OnLink {
		out.SetFlag(netlink.FLAG_ONLINK)
	}
	switch {
	case !r.GW.IsValid():
	case r.GW.Is4() == r.Dst.Addr().Is4():
		out.Gw = r.GW.AsSlice()
	default:
		out.Via = &netlink.Via{AddrFamily: family(r.GW), Addr: r.GW.AsSlice()}
	}
	return out
}

func family(ip netip.Addr) int {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// DelRoute deletes the route that has all that r says, in a table. That there is
// none is no error.
func (c *Conn) DelRoute(r Route) error {
	err := c.use(func(h *netlink.Handle) error { return h.RouteDel(r.encode()) })
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete route %s: %w", r, noLink(err))
	}
	return nil
}

// Routes lists the routes that leave through a link, of all tables and types:
// unix.AF_INET, unix.AF_INET6 or, with unix.AF_UNSPEC, both. A route with several
// next hops appears once for each that uses the link.
func (c *Conn) Routes(index, family int) ([]Route, error) {
	if family == unix.AF_UNSPEC {
		v4, err := c.Routes(index, unix.AF_INET)
		if err != nil {
			return nil, err
		}
		v6, err := c.Routes(index, unix.AF_INET6)
		return append(v4, v6...), err
	}
	var routes []Route
	err := c.use(func(h *netlink.Handle) error {
		// The kernel filters by the link, the library by a table that is any.
		list, err := h.RouteListFiltered(family, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_TABLE)
		routes = nil
		for _, r := range list {
			routes = append(routes, readRoute(r, index)...)
		}
		return err
	})
	if err != nil {
		return nil, c.linkError(index, "list routes", err)
	}
	return routes, nil
}

// readRoute returns one Route for each next hop that uses the link.
func readRoute(in netlink.Route, index int) (routes []Route) {
	hops := in.MultiPath
	if hops == nil {
		hops = []*netlink.NexthopInfo{{LinkIndex: in.LinkIndex, Gw: in.Gw, Via: in.Via}}
	}
	for _, hop := range hops {
		if hop.LinkIndex != index {
			continue
		}
		r := Route{
			Dst: prefixOf(in.Dst), GW: addrOf(hop.Gw), Src: addrOf(in.Src), OutIndex: hop.LinkIndex,
			MTU: in.MTU, AdvMSS: in.AdvMSS, Priority: uint32(in.Priority), Table: uint32(in.Table),
			Scope: int(in.Scope), Type: in.Type, Protocol: int(in.Protocol),
			OnLink: (in.Flags|hop.Flags)&int(netlink.FLAG_ONLINK) != 0,
		}
		if via, ok := hop.Via.(*netlink.Via); ok {
			r.GW = addrOf(via.Addr)
		}
		routes = append(routes, r)
	}
	return routes
}

// RouteTo asks the kernel which link it would send to addr through, and from
// which address.
func (c *Conn) RouteTo(addr netip.Addr) (outIndex int, src netip.Addr, err error) {
	r, err := c.lookUp(addr, 0)
	if err != nil {
		return 0, netip.Addr{}, fmt.Errorf("route to %s: %w", addr, err)
	}
	return r.LinkIndex, addrOf(r.Src), nil
}

// lookUp is the route to addr, out of a link if index is not 0.
func (c *Conn) lookUp(addr netip.Addr, index int) (r netlink.Route, err error) {
	// The library sets a flag that a strict kernel refuses with IPv6.
	err = c.useLeniently(func(h *netlink.Handle) error {
		found, err := h.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{OifIndex: index})
		if err == nil && len(found) > 0 {
			r = found[0]
		}
		return err
	})
	return r, err
}
