package rtnl

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// parseRoute returns one Route for each next hop.
func parseRoute(b []byte) []Route {
	if len(b) < unix.SizeofRtMsg {
		return nil
	}
	header := parseRouteHeader(b)
	if header.family != unix.AF_INET && header.family != unix.AF_INET6 {
		return nil
	}
	r := Route{
		Dst:      netip.PrefixFrom(unspecified(header.family), int(header.dstLen)),
		Table:    uint32(header.table),
		Scope:    int(header.scope),
		Protocol: int(header.protocol),
		Type:     int(header.kind),
		OnLink:   header.flags&unix.RTNH_F_ONLINK != 0,
	}
	var hops []byte
	for kind, value := range netlink.Attributes(b[unix.SizeofRtMsg:]) {
		if kind == unix.RTA_MULTIPATH {
			hops = value
			continue
		}
		r.set(kind, value)
	}
	if hops == nil {
		return []Route{r}
	}
	return r.perHop(hops)
}

func unspecified(family uint8) netip.Addr {
	if family == unix.AF_INET {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (r *Route) set(kind uint16, value []byte) {
	switch kind {
	case unix.RTA_DST:
		if ip, ok := netip.AddrFromSlice(value); ok {
			r.Dst = netip.PrefixFrom(ip, r.Dst.Bits())
		}
	case unix.RTA_GATEWAY:
		r.GW, _ = netip.AddrFromSlice(value)
	case unix.RTA_VIA:
		if len(value) > 2 {
			r.GW, _ = netip.AddrFromSlice(value[2:])
		}
	case unix.RTA_PREFSRC:
		r.Src, _ = netip.AddrFromSlice(value)
	case unix.RTA_OIF:
		r.OutIndex = int(number(value))
	case unix.RTA_PRIORITY:
		r.Priority = number(value)
	case unix.RTA_TABLE:
		r.Table = number(value)
	case unix.RTA_METRICS:
		for metric, v := range netlink.Attributes(value) {
			switch metric {
			case unix.RTAX_MTU:
				r.MTU = int(number(v))
			case unix.RTAX_ADVMSS:
				r.AdvMSS = int(number(v))
			}
		}
	}
}

// perHop reads struct rtnexthop: length, flags, hops, index, attributes.
func (r Route) perHop(b []byte) []Route {
	var routes []Route
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		hop := r
		hop.OnLink = b[2]&unix.RTNH_F_ONLINK != 0
		hop.OutIndex = int(binary.NativeEndian.Uint32(b[4:]))
		for kind, value := range netlink.Attributes(b[unix.SizeofRtNexthop:size]) {
			hop.set(kind, value)
		}
		routes = append(routes, hop)
		b = b[min((size+unix.RTNH_ALIGNTO-1)&^(unix.RTNH_ALIGNTO-1), len(b)):]
	}
	return routes
}
