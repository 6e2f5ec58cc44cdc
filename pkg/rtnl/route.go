package rtnl

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Route is a route with one next hop.
type Route struct {
	Dst      netip.Prefix // 0.0.0.0/0 or ::/0 = default route; host bits are ignored
	GW       netip.Addr   // zero = the destination is on the link
	Src      netip.Addr   // preferred source, which must not be tentative; zero = the kernel's choice
	OutIndex int
	MTU      int    // 0 = the link's
	AdvMSS   int    // 0 = from the MTU
	Priority uint32 // metric; 0 = the kernel's default: 0 for IPv4, 1024 for IPv6
	Table    uint32 // 0 = main
	Scope    int    // RT_SCOPE_*, for IPv4 only. 0 is universe, even for a route without a gateway
	Type     int    // RTN_*; 0 = unicast
	Protocol int    // RTPROT_*, the origin of the route; 0 = RTPROT_BOOT
	OnLink   bool   // no other route needs to reach the gateway
}

// String returns the destination and the gateway, for messages.
func (r Route) String() string {
	s := r.Dst.Masked().String()
	if r.GW.IsValid() {
		s += " via " + r.GW.String()
	}
	return s
}

// AddRoute adds a route without replacing an existing one. The error matches EEXIST only if there is a route with the
// same destination, next hop, priority and table and, for IPv4, the same other fields.
func (c *Conn) AddRoute(r Route) error {
	out := r.encode()
	out.Header.Type = uint8(cmp.Or(r.Type, unix.RTN_UNICAST))
	out.Header.Protocol = uint8(cmp.Or(r.Protocol, unix.RTPROT_BOOT))
	return wrap("route "+r.String(), c.sendCopy(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, out))
}

// encode returns the route as the content of a message. It omits zero values.
func (r Route) encode() RouteCopy {
	dst := r.Dst.Masked()
	out := RouteCopy{Header: unix.RtMsg{Family: uint8(FamilyOf(dst.Addr())), Dst_len: uint8(dst.Bits()),
		Scope: uint8(r.Scope), Type: uint8(r.Type), Protocol: uint8(r.Protocol)}}
	if r.OnLink {
		out.Header.Flags = unix.RTNH_F_ONLINK
	}
	add := func(isSet bool, kind uint16, value []byte) {
		if isSet {
			out.Attrs = append(out.Attrs, attribute{kind, value})
		}
	}
	var metrics []byte
	for kind, value := range map[int]int{unix.RTAX_MTU: r.MTU, unix.RTAX_ADVMSS: r.AdvMSS} {
		if value != 0 {
			metrics = append(metrics, nl.NewRtAttr(kind, nl.Uint32Attr(uint32(value))).Serialize()...)
		}
	}
	isOther := r.GW.IsValid() && FamilyOf(r.GW) != FamilyOf(dst.Addr())
	add(true, unix.RTA_DST, dst.Addr().AsSlice())
	add(r.Src.IsValid(), unix.RTA_PREFSRC, r.Src.AsSlice())
	add(r.GW.IsValid() && !isOther, unix.RTA_GATEWAY, r.GW.AsSlice())
	add(isOther, unix.RTA_VIA, append(nl.Uint16Attr(uint16(FamilyOf(r.GW))), r.GW.AsSlice()...))
	add(r.OutIndex != 0, unix.RTA_OIF, nl.Uint32Attr(uint32(r.OutIndex)))
	add(r.Priority != 0, unix.RTA_PRIORITY, nl.Uint32Attr(r.Priority))
	add(metrics != nil, unix.RTA_METRICS, metrics)
	add(true, unix.RTA_TABLE, nl.Uint32Attr(cmp.Or(r.Table, unix.RT_TABLE_MAIN)))
	return out
}

// FamilyOf returns the address family of ip: unix.AF_INET or unix.AF_INET6.
func FamilyOf(ip netip.Addr) int {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// DelRoute deletes the route of r.Table that has all non-zero values of r. An IPv4 route must also have r's Scope.
func (c *Conn) DelRoute(r Route) error {
	return wrap("delete route "+r.String(), ignore(c.sendCopy(unix.RTM_DELROUTE, 0, r.encode()), unix.ESRCH))
}

// Routes lists the routes through a link, of all tables and types. family is unix.AF_INET, unix.AF_INET6 or, for both,
// unix.AF_UNSPEC. A route with several next hops appears once for each next hop through the link.
func (c *Conn) Routes(index, family int) (routes []Route, err error) {
	copies, err := c.dumpRoutes(family, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	for _, r := range copies {
		if through, ok := r.HopsThrough(index); ok {
			routes = append(routes, through.Hops()...)
		}
	}
	return wholeList(routes, c.linkError(index, "list routes", err))
}

// RouteTo returns the index of the link through which the kernel would send packets to addr.
func (c *Conn) RouteTo(addr netip.Addr) (link int, err error) {
	found, err := c.lookupRoute(addr, 0)
	return found.OutIndex, wrap("route to "+addr.String(), err)
}

// IsUnreachable reports whether err of a route lookup means that the namespace sends no packet to the address, because
// it has no route, has a route of type unreachable, prohibit or blackhole, or lacks the family. It also returns true if
// a rule of the routing policy forbids only the namespace's own packets.
func IsUnreachable(err error) bool { return err != nil && ignoreUnreachable(err) == nil }

func ignoreUnreachable(err error) error {
	return ignore(err, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EACCES, unix.EINVAL,
		unix.EAFNOSUPPORT, unix.EOPNOTSUPP)
}

// DefaultRouter returns the next hop of a family's default route, and the index of the route's link. It returns the
// zero Addr if there is no default route, or if the default route has no next hop.
func (c *Conn) DefaultRouter(is4 bool) (router netip.Addr, link int, err error) {
	unused := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8}) // RFC 3849
	if is4 {
		unused = netip.AddrFrom4([4]byte{198, 51, 100, 1}) // RFC 5737
	}
	found, err := c.lookupRoute(unused, 0)
	return found.GW, found.OutIndex, wrap("default route", ignoreUnreachable(err))
}

// RouteEntry returns the route that the kernel would take to addr, with Dst, GW, Type, Table and OutIndex. GW and
// OutIndex are zero for a route with several next hops.
func (c *Conn) RouteEntry(addr netip.Addr) (Route, error) {
	found, err := c.lookupRoute(addr, unix.RTM_F_FIB_MATCH)
	return found, wrap("route to "+addr.String(), err)
}

// IsLocal reports whether the namespace itself receives packets to addr that arrive in the VRF or, if vrf is the zero
// Link, outside of VRFs.
func (c *Conn) IsLocal(addr netip.Addr, vrf Link) (bool, error) {
	var attrs []*nl.RtAttr
	if vrf.Index != 0 {
		attrs = append(attrs, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(vrf.Index))))
	}
	found, err := c.lookupRoute(addr, 0, attrs...)
	// The kernel searches other tables if the VRF has no route to addr.
	isInVRF := vrf.Index == 0 || found.Table == vrf.Table
	return found.Type == unix.RTN_LOCAL && isInVRF, wrap("route to "+addr.String(), ignoreUnreachable(err))
}

// lookupRoute returns the link, the next hop, the type and the table of the route to addr that the kernel would use.
// With the flag RTM_F_FIB_MATCH it also returns the route's prefix.
func (c *Conn) lookupRoute(addr netip.Addr, flags uint32, attrs ...*nl.RtAttr) (r Route, err error) {
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(FamilyOf(addr)), Dst_len: uint8(addr.BitLen())}}
	header.Flags = flags
	if addr.Is4() { // IPv6 always reports the table, and strict checking refuses the flag
		header.Flags |= unix.RTM_F_LOOKUP_TABLE
	}
	attrs = append(attrs, nl.NewRtAttr(unix.RTA_DST, addr.AsSlice()))
	answers, err := c.send(unix.RTM_GETROUTE, 0, header, attrs...)
	if err != nil || len(answers) == 0 {
		return r, err
	}
	found := attributes(answers[0][unix.SizeofRtMsg:])
	r.OutIndex, r.Table = int(number(found[unix.RTA_OIF])), number(found[unix.RTA_TABLE])
	r.GW = addrOf(found[unix.RTA_GATEWAY])
	r.Dst, _ = addr.Prefix(int(nl.DeserializeRtMsg(answers[0]).Dst_len))
	r.Type = int(nl.DeserializeRtMsg(answers[0]).Type)
	return r, nil
}

// Rule is a rule of the routing policy that selects a table by the source of packets. Other selectors are not read.
type Rule struct {
	Src      netip.Prefix `json:"src"` // 0.0.0.0/0 or ::/0 = packets of any source
	Table    uint32       `json:"table"`
	Priority uint32       `json:"priority"`
}

// String returns the rule in the notation of ip(8), for messages.
func (r Rule) String() string { return fmt.Sprintf("from %s lookup %d", r.Src, r.Table) }

// Rules lists the rules of both families in their order. Without routing policy, the error matches EOPNOTSUPP.
func (c *Conn) Rules() (rules []Rule, err error) {
	copies, err := c.dumpRules()
	for _, r := range copies {
		src := cmp.Or(r.RuleSrc(), defaultDst(int(r.Header.Family)))
		rules = append(rules, Rule{Src: src, Table: r.Table(), Priority: number(r.value(nl.FRA_PRIORITY))})
	}
	return wholeList(rules, wrap("list rules", err))
}

// FreeTable returns the lowest table number, at least first, that neither the kernel, taken, a rule nor a route uses.
func FreeTable(first uint32, rules []Rule, routes []RouteCopy, taken ...uint32) uint32 {
	isUsed := map[uint32]bool{} // a container can have 100,000 tables
	for _, table := range taken {
		isUsed[table] = true
	}
	for _, r := range rules {
		isUsed[r.Table] = true
	}
	for _, r := range routes {
		isUsed[r.Table()] = true
	}
	for isUsed[first] || IsKernelTable(first) {
		first++
	}
	return first
}

// IsKernelTable reports whether the table is one of the kernel's own (default, main, local) or 0.
func IsKernelTable(table uint32) bool {
	return table == unix.RT_TABLE_UNSPEC || (table >= unix.RT_TABLE_DEFAULT && table <= unix.RT_TABLE_LOCAL)
}

// AddRule adds a rule with a source.
func (c *Conn) AddRule(r Rule) error {
	out := r.encode()
	out.Header.Type = nl.FR_ACT_TO_TBL
	return wrap("add rule "+r.String(), c.sendCopy(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, out))
}

// DelRule deletes a rule with a source.
func (c *Conn) DelRule(r Rule) error {
	return c.DelRuleCopy(r.encode())
}

func (r Rule) encode() RouteCopy {
	header := unix.RtMsg{Family: uint8(FamilyOf(r.Src.Addr())), Src_len: uint8(r.Src.Bits())}
	return RouteCopy{Header: header, Attrs: attrList{{nl.FRA_SRC, r.Src.Addr().AsSlice()},
		{nl.FRA_TABLE, nl.Uint32Attr(r.Table)}, {nl.FRA_PRIORITY, nl.Uint32Attr(r.Priority)}}}
}
