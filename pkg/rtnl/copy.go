package rtnl

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RouteCopy is a route with all that the kernel tells of it. It can be made again, also in another table, and kept in a
// file.
type RouteCopy struct {
	Header unix.RtMsg       `json:"header"`
	Attrs  []RouteAttribute `json:"attrs"`
}

// RouteAttribute is one attribute of a RouteCopy, as the kernel sends it.
type RouteAttribute struct {
	Kind  uint16 `json:"kind"` // RTA_*
	Value []byte `json:"value"`
}

// hopFlags are the flags of a route or a next hop that somebody asked for; the
// others are states.
const hopFlags = unix.RTNH_F_ONLINK | unix.RTNH_F_PERVASIVE

// RouteCopies lists the routes of all links and tables, of both families. The cost
// grows with their number.
func (c *Conn) RouteCopies() ([]RouteCopy, error) {
	routes, err := c.dumpRoutes(unix.AF_UNSPEC)
	return complete(routes, wrap("list routes", err))
}

// LinkRoutes lists the routes of all tables and types that leave through a link.
func (c *Conn) LinkRoutes(index int) ([]RouteCopy, error) {
	routes, err := c.dumpRoutes(unix.AF_UNSPEC, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	routes = slices.DeleteFunc(routes, func(r RouteCopy) bool {
		_, ok := r.HopsOf(index)
		return !ok
	})
	return complete(routes, c.linkError(index, "list routes", err))
}

// Refusals lists the routes that lead nowhere in the table of a rule: unreachable, blackhole, prohibit and throw. The
// table must have a route of the family.
func (c *Conn) Refusals(rule RouteCopy) ([]RouteCopy, error) {
	table := rule.Table()
	routes, err := c.dumpRoutes(int(rule.Header.Family), nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(table)))
	routes = slices.DeleteFunc(routes, func(r RouteCopy) bool {
		return r.Table() != table || r.Header.Type < unix.RTN_BLACKHOLE || r.Header.Type > unix.RTN_THROW
	})
	return complete(routes, wrap("list routes", err))
}

// dumpRoutes lists the routes of a family or, with unix.AF_UNSPEC, of both. A kernel without it answers with all.
func (c *Conn) dumpRoutes(family int, filter ...*nl.RtAttr) (routes []RouteCopy, err error) {
	if family == unix.AF_UNSPEC {
		v4, err := c.dumpRoutes(unix.AF_INET, filter...)
		if err != nil {
			return nil, err
		}
		v6, err := c.dumpRoutes(unix.AF_INET6, filter...)
		return append(v4, v6...), err
	}
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}}
	answers, err := c.send(unix.RTM_GETROUTE, unix.NLM_F_DUMP, header, filter...)
	for _, answer := range answers {
		r := readCopy(answer)
		const cached = unix.RTM_F_CLONED // what the kernel keeps about single destinations
		if int(r.Header.Family) == family && r.Header.Flags&cached == 0 {
			routes = append(routes, r)
		}
	}
	return routes, err
}

func readCopy(message []byte) (r RouteCopy) {
	r.Header = nl.DeserializeRtMsg(message).RtMsg
	r.Header.Flags &= unix.RTM_F_CLONED | hopFlags
	r.Attrs = readAttributes(message[unix.SizeofRtMsg:])
	// A next hop object is beside the hops that it stands for, and goes with its link.
	r = r.without(unix.RTA_CACHEINFO, netlink.RTA_NH_ID)
	for _, hop := range r.nextHops() {
		hop[2] &= hopFlags
	}
	return r
}

// readAttributes reads the attributes of a message of the kernel, which are whole.
func readAttributes(b []byte) (list []RouteAttribute) {
	attrs, _ := nl.ParseRouteAttr(b)
	for _, a := range attrs {
		list = append(list, RouteAttribute{a.Attr.Type, a.Value})
	}
	return list
}

// valueOf returns the value of an attribute; nil where there is none.
func valueOf(attrs []RouteAttribute, kind uint16) []byte {
	i := slices.IndexFunc(attrs, func(a RouteAttribute) bool { return a.Kind == kind })
	if i < 0 {
		return nil
	}
	return attrs[i].Value
}

func (r RouteCopy) value(kind uint16) []byte { return valueOf(r.Attrs, kind) }

// without is the route without the attributes of these kinds.
func (r RouteCopy) without(kinds ...uint16) RouteCopy {
	r.Attrs = without(r.Attrs, kinds...)
	return r
}

func without(attrs []RouteAttribute, kinds ...uint16) []RouteAttribute {
	listed := func(a RouteAttribute) bool { return slices.Contains(kinds, a.Kind) }
	return slices.DeleteFunc(slices.Clone(attrs), listed)
}

// with is the route with an attribute of that value.
func (r RouteCopy) with(kind uint16, value []byte) RouteCopy {
	r = r.without(kind)
	r.Attrs = append(r.Attrs, RouteAttribute{kind, value})
	return r
}

// Table is the table that the route is in.
func (r RouteCopy) Table() uint32 {
	if table := r.value(unix.RTA_TABLE); table != nil {
		return number(table)
	}
	return uint32(r.Header.Table)
}

// number reads the value of a numeric attribute; 0 where there is none.
func number(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

// InTable is the route in another table.
func (r RouteCopy) InTable(table uint32) RouteCopy {
	r.Header.Table = unix.RT_TABLE_UNSPEC // the attribute says it
	return r.with(unix.RTA_TABLE, nl.Uint32Attr(table))
}

// WithSource is the route with another preferred source; the zero Addr is none.
func (r RouteCopy) WithSource(src netip.Addr) RouteCopy {
	if !src.IsValid() {
		return r.without(unix.RTA_PREFSRC)
	}
	return r.with(unix.RTA_PREFSRC, src.AsSlice())
}

// HasGateway says whether the route leads through a gateway, to which another route must lead first.
func (r RouteCopy) HasGateway() bool {
	return r.value(unix.RTA_GATEWAY) != nil || r.value(unix.RTA_VIA) != nil || r.value(unix.RTA_MULTIPATH) != nil
}

// GatewaysLast compares routes for an order in which the kernel takes them: those through a gateway come last.
func GatewaysLast(a, b RouteCopy) int {
	last := map[bool]int{true: 1}
	return last[a.HasGateway()] - last[b.HasGateway()]
}

// nextHops splits the list of next hops (struct rtnexthop, each with its attributes); nil where
// the route has no list.
func (r RouteCopy) nextHops() (hops [][]byte) {
	for list := r.value(unix.RTA_MULTIPATH); len(list) >= unix.SizeofRtNexthop; {
		length := int(binary.NativeEndian.Uint16(list))
		size := (length + 3) &^ 3
		if length < unix.SizeofRtNexthop || size > len(list) {
			break
		}
		hops, list = append(hops, list[:size]), list[size:]
	}
	return hops
}

// through is the route through one next hop of its list alone.
func (r RouteCopy) through(hop []byte) RouteCopy {
	r = r.without(unix.RTA_MULTIPATH)
	r.Header.Flags |= uint32(hop[2])
	r.Attrs = append(r.Attrs, RouteAttribute{unix.RTA_OIF, hop[4:8]})
	attrs, _ := nl.ParseRouteAttr(hop[unix.SizeofRtNexthop:binary.NativeEndian.Uint16(hop)])
	for _, a := range attrs {
		r.Attrs = append(r.Attrs, RouteAttribute{a.Attr.Type, a.Value})
	}
	return r
}

// singleHops is the route once for each of its next hops, through that one alone.
func (r RouteCopy) singleHops() (routes []RouteCopy) {
	for _, hop := range r.nextHops() {
		routes = append(routes, r.through(hop))
	}
	if routes == nil {
		return []RouteCopy{r}
	}
	return routes
}

// Links are the indexes of the links by which the route's packets leave, one for each next hop.
func (r RouteCopy) Links() (all []int) {
	for _, hop := range r.singleHops() {
		all = append(all, int(number(hop.value(unix.RTA_OIF))))
	}
	return all
}

// withHops is the route with those next hops alone whose link is wanted; ok is false when there
// is none. A single one is no list: so the kernel tells of such a route.
func (r RouteCopy) withHops(wanted func(link int) bool) (_ RouteCopy, ok bool) {
	hops := r.nextHops()
	if hops == nil {
		return r, wanted(int(number(r.value(unix.RTA_OIF))))
	}
	hops = slices.DeleteFunc(hops, func(hop []byte) bool { return !wanted(int(number(hop[4:8]))) })
	switch len(hops) {
	case 0:
		return r, false
	case 1:
		return r.through(hops[0]), true
	}
	return r.with(unix.RTA_MULTIPATH, slices.Concat(hops...)), true
}

// HopsOf is the route with the next hops of a link alone; ok is false when it has none.
func (r RouteCopy) HopsOf(link int) (own RouteCopy, ok bool) {
	return r.withHops(func(index int) bool { return index == link })
}

// OtherHops is the route with the next hops of all other links; ok is false when there are none.
func (r RouteCopy) OtherHops(link int) (others RouteCopy, ok bool) {
	return r.withHops(func(index int) bool { return index != link })
}

// MoveTo returns the route with the next hops of one link on another one.
func (r RouteCopy) MoveTo(link, other int) RouteCopy {
	moved := nl.Uint32Attr(uint32(other))
	if number(r.value(unix.RTA_OIF)) == uint32(link) {
		r = r.with(unix.RTA_OIF, moved)
	}
	if r.value(unix.RTA_MULTIPATH) != nil {
		r = r.with(unix.RTA_MULTIPATH, slices.Clone(r.value(unix.RTA_MULTIPATH)))
	}
	for _, hop := range r.nextHops() {
		if number(hop[4:8]) == uint32(link) {
			copy(hop[4:8], moved)
		}
	}
	return r
}

// Competes reports whether both routes have the same table, destination, type of service and metric, so that the kernel
// does not choose between them by one of these.
func (r RouteCopy) Competes(o RouteCopy) bool {
	return r.Table() == o.Table() && r.dst() == o.dst() && r.Header.Tos == o.Header.Tos &&
		number(r.value(unix.RTA_PRIORITY)) == number(o.value(unix.RTA_PRIORITY))
}

// Equal says whether the routes are the same, whatever the order of their attributes.
func (r RouteCopy) Equal(o RouteCopy) bool {
	r, o = r.InTable(r.Table()), o.InTable(o.Table())
	return r.Header == o.Header && len(r.Attrs) == len(o.Attrs) &&
		!slices.ContainsFunc(r.Attrs, func(a RouteAttribute) bool { return !bytes.Equal(a.Value, o.value(a.Kind)) })
}

// ViaGateway is the route through this gateway alone; the zero Addr is none. What leads there, or
// onLink, lets the kernel take it.
func (r RouteCopy) ViaGateway(gw netip.Addr, onLink bool) RouteCopy {
	r = r.singleHops()[0].without(unix.RTA_GATEWAY, unix.RTA_VIA)
	r.Header.Scope = unix.RT_SCOPE_UNIVERSE // nothing else is behind a gateway
	r.Header.Flags &^= unix.RTNH_F_ONLINK
	if onLink {
		r.Header.Flags |= unix.RTNH_F_ONLINK
	}
	if gw.IsValid() {
		r = r.with(unix.RTA_GATEWAY, gw.AsSlice())
	}
	return r
}

// Hops returns the route once for each of its next hops.
func (r RouteCopy) Hops() (routes []Route) {
	for _, hop := range r.singleHops() {
		routes = append(routes, hop.Route())
	}
	return routes
}

// Route is what the route says; of several next hops the first.
func (r RouteCopy) Route() Route {
	r = r.singleHops()[0]
	h, metrics := r.Header, attributes(r.value(unix.RTA_METRICS))
	out := Route{Dst: r.dst(), GW: addrOf(r.value(unix.RTA_GATEWAY)), Src: addrOf(r.value(unix.RTA_PREFSRC)),
		OutIndex: int(number(r.value(unix.RTA_OIF))), Priority: number(r.value(unix.RTA_PRIORITY)), Table: r.Table(),
		MTU: int(number(metrics[unix.RTAX_MTU])), AdvMSS: int(number(metrics[unix.RTAX_ADVMSS])),
		Scope: int(h.Scope), Type: int(h.Type), Protocol: int(h.Protocol), OnLink: h.Flags&unix.RTNH_F_ONLINK != 0}
	if via := r.value(unix.RTA_VIA); len(via) > 2 {
		out.GW = addrOf(via[2:]) // after its family
	}
	return out
}

func (r RouteCopy) dst() netip.Prefix {
	if addr := addrOf(r.value(unix.RTA_DST)); addr.IsValid() {
		return netip.PrefixFrom(addr, int(r.Header.Dst_len))
	}
	return everything(int(r.Header.Family))
}

// everything are all addresses of a family.
func everything(family int) netip.Prefix {
	if family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// String is the route as messages name it.
func (r RouteCopy) String() string { return r.dst().String() }

// AddCopy adds the route beside those that are there, as AddRoute does.
func (c *Conn) AddCopy(r RouteCopy) error {
	return wrap("route "+r.String(), c.sendCopy(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, r))
}

// RestoreCopy is AddCopy for a route that a link had. It is no error that the route is there, or that the link can have
// none such by now: it is down, or the source or the way to the gateway is gone.
func (c *Conn) RestoreCopy(r RouteCopy) error {
	return unless(c.AddCopy(r),
		unix.EEXIST, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, ErrNoLink)
}

// Rejoin makes room for a route that a link shared with other links: it deletes the route with the next hops of the
// others only. It reports whether the whole route can be there, which it cannot if both are gone.
func (c *Conn) Rejoin(link int, r RouteCopy) (bool, error) {
	others, shared := r.OtherHops(link)
	if !shared {
		return true, nil
	}
	routes, err := c.RouteCopies()
	switch {
	case err != nil || slices.ContainsFunc(routes, r.Equal):
		return true, err
	case slices.ContainsFunc(routes, others.Equal):
		return true, c.DelCopy(others)
	}
	return false, nil
}

// DelCopy deletes the route with all its next hops. That there is none is no error.
func (c *Conn) DelCopy(r RouteCopy) error {
	return wrap("delete route "+r.String(), unless(c.sendCopy(unix.RTM_DELROUTE, 0, r), unix.ESRCH))
}

func (c *Conn) sendCopy(kind, flags int, r RouteCopy) error {
	attrs := make([]*nl.RtAttr, len(r.Attrs))
	for i, a := range r.Attrs {
		attrs[i] = nl.NewRtAttr(int(a.Kind), a.Value)
	}
	_, err := c.send(kind, unix.NLM_F_ACK|flags, &nl.RtMsg{RtMsg: r.Header}, attrs...)
	return err
}
