package rtnl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
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
	Protocol int  // RTPROT_*; 0 = boot, what ip(8) uses
	Type     int  // RTN_*; 0 = unicast
	OnLink   bool // the gateway is reached through OutIndex without a route to it
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
	header := r.header()
	header.protocol = uint8(cmp.Or(r.Protocol, unix.RTPROT_BOOT))
	header.kind = uint8(cmp.Or(r.Type, unix.RTN_UNICAST))
	header.scope = uint8(r.Scope)
	if r.OnLink {
		header.flags |= unix.RTNH_F_ONLINK
	}
	body := r.body(header)
	if r.Src.IsValid() {
		addAddr(&body, unix.RTA_PREFSRC, r.Src)
	}
	if metrics := r.metrics(); metrics != nil {
		body.Nest(unix.RTA_METRICS, metrics)
	}
	// Without NLM_F_EXCL, which would refuse a second next hop as well.
	return r.wrap(c.change(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, body))
}

// DelRoute deletes a route. Fields left zero match every value, except Table.
// That no such route is there, or the link is gone, is no error.
func (c *Conn) DelRoute(r Route) error {
	header := r.header()
	header.protocol = uint8(r.Protocol)
	header.kind = uint8(r.Type)
	header.scope = uint8(cmp.Or(r.Scope, unix.RT_SCOPE_NOWHERE))
	err := c.change(unix.RTM_DELROUTE, 0, r.body(header))
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("route %s: delete: %w", r, err)
	}
	return nil
}

func (r Route) wrap(err error) error {
	if errors.Is(err, unix.ENODEV) {
		err = ErrNoLink
	}
	if err != nil {
		return fmt.Errorf("route %s: %w", r, err)
	}
	return nil
}

func (r Route) header() routeHeader {
	header := routeHeader{family: family(r.Dst.Addr()), dstLen: uint8(max(r.Dst.Bits(), 0)), table: unix.RT_TABLE_MAIN}
	if r.Table > 0 && r.Table <= 255 {
		header.table = uint8(r.Table)
	}
	return header
}

// body has the attributes by which a route is also found.
func (r Route) body(header routeHeader) netlink.Body {
	body := header.body()
	if r.Dst.Bits() > 0 {
		addAddr(&body, unix.RTA_DST, r.Dst.Masked().Addr())
	}
	switch {
	case !r.GW.IsValid():
	case r.GW.Is4() == r.Dst.Addr().Is4():
		addAddr(&body, unix.RTA_GATEWAY, r.GW)
	default: // struct rtvia: the gateway is of the other family
		via := binary.NativeEndian.AppendUint16(nil, uint16(family(r.GW)))
		body.Bytes(unix.RTA_VIA, append(via, r.GW.AsSlice()...))
	}
	if r.OutIndex != 0 {
		body.Uint32(unix.RTA_OIF, uint32(r.OutIndex))
	}
	if r.Priority != 0 {
		body.Uint32(unix.RTA_PRIORITY, r.Priority)
	}
	// The header has one byte for it.
	if r.Table > 255 {
		body.Uint32(unix.RTA_TABLE, r.Table)
	}
	return body
}

func (r Route) metrics() netlink.Body {
	var metrics netlink.Body
	if r.MTU != 0 {
		metrics.Uint32(unix.RTAX_MTU, uint32(r.MTU))
	}
	if r.AdvMSS != 0 {
		metrics.Uint32(unix.RTAX_ADVMSS, uint32(r.AdvMSS))
	}
	return metrics
}

// Routes lists the routes that leave through a link, of all tables and types:
// unix.AF_INET, unix.AF_INET6 or, with unix.AF_UNSPEC, both. A route with
// several next hops appears once for each that uses the link.
func (c *Conn) Routes(index, family int) ([]Route, error) {
	if family == unix.AF_UNSPEC {
		v4, err := c.Routes(index, unix.AF_INET)
		if err != nil {
			return nil, err
		}
		v6, err := c.Routes(index, unix.AF_INET6)
		return append(v4, v6...), err
	}
	body := routeHeader{family: uint8(family)}.body()
	body.Uint32(unix.RTA_OIF, uint32(index))
	var routes []Route
	err := c.dump(netlink.Request{Type: unix.RTM_GETROUTE, Body: body}, func() { routes = routes[:0] }, func(data []byte) {
		for _, r := range parseRoute(data) {
			// Kernels before 4.20 do not filter; also, a kernel without IPv6
			// answers for all families it has.
			if r.OutIndex == index && r.family() == family {
				routes = append(routes, r)
			}
		}
	})
	if err != nil {
		return nil, c.linkError(index, "list routes", err)
	}
	return routes, nil
}

func (r Route) family() int { return int(family(r.Dst.Addr())) }

// RouteTo asks the kernel which link it would send to addr through, and from
// which address.
func (c *Conn) RouteTo(addr netip.Addr) (outIndex int, src netip.Addr, err error) {
	err = c.get(routeQuery(addr), func(data []byte) {
		for _, r := range parseRoute(data) {
			outIndex, src = r.OutIndex, r.Src
		}
	})
	if err != nil {
		return 0, netip.Addr{}, fmt.Errorf("route to %s: %w", addr, err)
	}
	return outIndex, src, nil
}
