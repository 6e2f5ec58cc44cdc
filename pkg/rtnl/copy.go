package rtnl

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RouteCopy is a route as the kernel reports it, with all attributes, including attributes that Route does not have. It
// can be changed, moved to another table, stored in a file and added again without loss. It is immutable: methods such
// as WithTable return a changed copy.
//
// A route with several next hops has the attribute RTA_MULTIPATH, a list of struct rtnexthop, each followed by
// attributes of its own. A route with one next hop has RTA_OIF and RTA_GATEWAY or RTA_VIA instead.
type RouteCopy struct {
	Header unix.RtMsg `json:"header"`
	Attrs  attrList   `json:"attrs"` // RTA_*, or FRA_* of a rule

	usesObject bool // the listed route uses a nexthop object (ip nexthop), which a record does not contain
}

// attrList contains the attributes of a RouteCopy or an AddrCopy. Like these, it is immutable.
type attrList []attribute

// attribute is an attribute in the kernel's encoding.
type attribute struct {
	Kind  uint16 `json:"kind"`
	Value []byte `json:"value"`
}

func readAttrs(b []byte) (list attrList) {
	attrs, _ := nl.ParseRouteAttr(b) // the kernel's are well-formed
	for _, a := range attrs {
		list = append(list, attribute{a.Attr.Type, a.Value})
	}
	return list
}

// value returns the value of an attribute, or nil if it is missing.
func (list attrList) value(kind uint16) []byte {
	i := slices.IndexFunc(list, func(a attribute) bool { return a.Kind == kind })
	if i < 0 {
		return nil
	}
	return list[i].Value
}

func (list attrList) without(kinds ...uint16) attrList {
	isListed := func(a attribute) bool { return slices.Contains(kinds, a.Kind) }
	return slices.DeleteFunc(slices.Clone(list), isListed)
}

func (list attrList) with(kind uint16, value []byte) attrList {
	return append(list.without(kind), attribute{kind, value})
}

// encode returns the attributes as parts of a message.
func (list attrList) encode() []*nl.RtAttr {
	attrs := make([]*nl.RtAttr, len(list))
	for i, a := range list {
		attrs[i] = nl.NewRtAttr(int(a.Kind), a.Value)
	}
	return attrs
}

// Offsets in struct rtnexthop.
const (
	hopFlagsOffset = 2 // rtnh_flags, one byte
	hopLinkOffset  = 4 // rtnh_ifindex, four bytes
)

// hopFlags are the flags with which a route or a next hop can be created. The other flags are states.
const hopFlags = unix.RTNH_F_ONLINK | unix.RTNH_F_PERVASIVE

// RouteCopies lists the routes of both families in all tables. The cost grows with their number.
func (c *Conn) RouteCopies() ([]RouteCopy, error) {
	routes, err := c.dumpRoutes(unix.AF_UNSPEC)
	return wholeList(routes, wrap("list routes", err))
}

// LinkRoutes lists the routes of both families, all tables and all types that have a next hop through a link.
func (c *Conn) LinkRoutes(index int) ([]RouteCopy, error) {
	routes, err := c.dumpRoutes(unix.AF_UNSPEC, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	routes = slices.DeleteFunc(routes, func(r RouteCopy) bool {
		_, ok := r.HopsThrough(index)
		return !ok
	})
	return wholeList(routes, c.linkError(index, "list routes", err))
}

// Refusals lists the routes in the table of a rule that forward no packets: unreachable, blackhole, prohibit and throw.
// For IPv4, the error matches ENOENT if the kernel has no such table, because it never had a route.
func (c *Conn) Refusals(rule RouteCopy) ([]RouteCopy, error) {
	table := rule.Table()
	routes, err := c.dumpRoutes(int(rule.Header.Family), nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(table)))
	routes = slices.DeleteFunc(routes, func(r RouteCopy) bool {
		return r.Table() != table || r.Header.Type < unix.RTN_BLACKHOLE || r.Header.Type > unix.RTN_THROW
	})
	return wholeList(routes, wrap("list routes", err))
}

// dumpRoutes lists the routes of a family or, with unix.AF_UNSPEC, of both. A kernel without the family returns the
// routes of another one, which are dropped.
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
		const cached = unix.RTM_F_CLONED // an entry for a single destination
		if int(r.Header.Family) == family && r.Header.Flags&cached == 0 {
			routes = append(routes, r)
		}
	}
	return routes, err
}

// readCopy decodes the kernel's message about a route.
func readCopy(message []byte) (r RouteCopy) {
	r.Header = nl.DeserializeRtMsg(message).RtMsg
	r.Header.Flags &= unix.RTM_F_CLONED | hopFlags
	r.Attrs = readAttrs(message[unix.SizeofRtMsg:])
	r.usesObject = r.value(netlink.RTA_NH_ID) != nil
	// RTA_NH_ID is omitted because the kernel deletes the object with its link. The route also has the object's hops.
	r = r.without(unix.RTA_CACHEINFO, netlink.RTA_NH_ID)
	for _, hop := range r.nextHops() {
		hop[hopFlagsOffset] &= hopFlags
	}
	return r
}

func (r RouteCopy) value(kind uint16) []byte { return r.Attrs.value(kind) }

func (r RouteCopy) without(kinds ...uint16) RouteCopy {
	r.Attrs = r.Attrs.without(kinds...)
	return r
}

func (r RouteCopy) with(kind uint16, value []byte) RouteCopy {
	r.Attrs = r.Attrs.with(kind, value)
	return r
}

// Table returns the number of the route's table.
func (r RouteCopy) Table() uint32 {
	if table := r.value(unix.RTA_TABLE); table != nil {
		return number(table)
	}
	return uint32(r.Header.Table)
}

// number decodes a 32-bit attribute. It returns 0 for nil.
func number(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

// WithTable returns r in another table.
func (r RouteCopy) WithTable(table uint32) RouteCopy {
	r.Header.Table = unix.RT_TABLE_UNSPEC // the attribute has the number
	return r.with(unix.RTA_TABLE, nl.Uint32Attr(table))
}

// WithSource returns r with another preferred source, or without one if src is the zero Addr.
func (r RouteCopy) WithSource(src netip.Addr) RouteCopy {
	if !src.IsValid() {
		return r.without(unix.RTA_PREFSRC)
	}
	return r.with(unix.RTA_PREFSRC, src.AsSlice())
}

// HasGateway reports whether a next hop may have a gateway, which another route must reach before r can be added. It
// returns true for every route with several next hops.
func (r RouteCopy) HasGateway() bool {
	return r.value(unix.RTA_GATEWAY) != nil || r.value(unix.RTA_VIA) != nil || r.value(unix.RTA_MULTIPATH) != nil
}

// GatewaysLast returns routes in an order in which the kernel accepts them: routes with a gateway come last.
func GatewaysLast(routes []RouteCopy) []RouteCopy {
	var direct, viaGateway []RouteCopy
	for _, r := range routes {
		if r.HasGateway() {
			viaGateway = append(viaGateway, r)
		} else {
			direct = append(direct, r)
		}
	}
	return append(direct, viaGateway...)
}

// nextHops splits the value of RTA_MULTIPATH into the next hops. It returns nil if the route has no list.
func (r RouteCopy) nextHops() (hops [][]byte) {
	for list := r.value(unix.RTA_MULTIPATH); len(list) >= unix.SizeofRtNexthop; {
		length := int(binary.NativeEndian.Uint16(list))
		size := (length + 3) &^ 3 // rtnh_len is not aligned
		if length < unix.SizeofRtNexthop || size > len(list) {
			break
		}
		hops, list = append(hops, list[:size]), list[size:]
	}
	return hops
}

// singleHop returns r with only one next hop of its list.
func (r RouteCopy) singleHop(hop []byte) RouteCopy {
	r = r.without(unix.RTA_MULTIPATH).with(unix.RTA_OIF, hopLink(hop))
	r.Header.Flags |= uint32(hop[hopFlagsOffset])
	r.Attrs = append(r.Attrs, readAttrs(hop[unix.SizeofRtNexthop:binary.NativeEndian.Uint16(hop)])...)
	return r
}

// hopLink returns the encoded index of a next hop's link.
func hopLink(hop []byte) []byte { return hop[hopLinkOffset : hopLinkOffset+4] }

// singleHops returns a route for each next hop of r, with only that next hop.
func (r RouteCopy) singleHops() (routes []RouteCopy) {
	for _, hop := range r.nextHops() {
		routes = append(routes, r.singleHop(hop))
	}
	if routes == nil {
		return []RouteCopy{r}
	}
	return routes
}

// Links returns the index of the outgoing link of each next hop.
func (r RouteCopy) Links() (all []int) {
	for _, hop := range r.singleHops() {
		all = append(all, int(number(hop.value(unix.RTA_OIF))))
	}
	return all
}

// withHops returns r with only the next hops for whose link isWanted returns true. ok is false if no next hop remains.
// A single next hop is not encoded as a list, so that the route equals the kernel's.
func (r RouteCopy) withHops(isWanted func(link int) bool) (_ RouteCopy, ok bool) {
	hops := r.nextHops()
	if hops == nil {
		return r, isWanted(int(number(r.value(unix.RTA_OIF))))
	}
	hops = slices.DeleteFunc(hops, func(hop []byte) bool { return !isWanted(int(number(hopLink(hop)))) })
	switch len(hops) {
	case 0:
		return r, false
	case 1:
		return r.singleHop(hops[0]), true
	}
	return r.with(unix.RTA_MULTIPATH, slices.Concat(hops...)), true
}

// HopsThrough returns r with only the next hops through a link. ok is false if no next hop remains.
func (r RouteCopy) HopsThrough(link int) (_ RouteCopy, ok bool) {
	return r.withHops(func(index int) bool { return index == link })
}

// HopsNotThrough returns r with only the next hops through other links. ok is false if no next hop remains.
func (r RouteCopy) HopsNotThrough(link int) (_ RouteCopy, ok bool) {
	return r.withHops(func(index int) bool { return index != link })
}

// MoveTo returns r with the next hops through link moved to the link other.
func (r RouteCopy) MoveTo(link, other int) RouteCopy {
	target := nl.Uint32Attr(uint32(other))
	if number(r.value(unix.RTA_OIF)) == uint32(link) {
		r = r.with(unix.RTA_OIF, target)
	}
	if r.value(unix.RTA_MULTIPATH) != nil {
		r = r.with(unix.RTA_MULTIPATH, slices.Clone(r.value(unix.RTA_MULTIPATH)))
	}
	for _, hop := range r.nextHops() {
		if number(hopLink(hop)) == uint32(link) {
			copy(hopLink(hop), target)
		}
	}
	return r
}

// HasSameKey reports whether both routes have the same table, destination, type of service and metric, by which the
// kernel chooses between routes.
func (r RouteCopy) HasSameKey(o RouteCopy) bool {
	return r.Table() == o.Table() && r.dst() == o.dst() && r.Header.Tos == o.Header.Tos &&
		number(r.value(unix.RTA_PRIORITY)) == number(o.value(unix.RTA_PRIORITY))
}

// IsAutomatic reports whether the kernel itself adds the route: for one of the link's addresses addrs, or because of a
// router. For an address with the flag noprefixroute, a network manager adds the route to the subnet, not the kernel.
func (r RouteCopy) IsAutomatic(addrs []AddrCopy) bool {
	isSubnet := func(a AddrCopy) bool { return a.Has(unix.IFA_F_NOPREFIXROUTE) && a.Subnet() == r.dst() }
	switch r.Header.Protocol {
	case unix.RTPROT_RA, unix.RTPROT_REDIRECT:
		return true
	case unix.RTPROT_KERNEL:
		return !slices.ContainsFunc(addrs, isSubnet)
	}
	return false
}

// Equal reports whether the routes are the same, regardless of the order of their attributes.
func (r RouteCopy) Equal(o RouteCopy) bool {
	r, o = r.WithTable(r.Table()), o.WithTable(o.Table())
	return r.Header == o.Header && len(r.Attrs) == len(o.Attrs) &&
		!slices.ContainsFunc(r.Attrs, func(a attribute) bool { return !bytes.Equal(a.Value, o.value(a.Kind)) })
}

// WithGateway returns r with one next hop, through gw on r's first link, or without a gateway if gw is the zero Addr.
// The kernel accepts the route if another route reaches gw, or if onLink is set.
func (r RouteCopy) WithGateway(gw netip.Addr, onLink bool) RouteCopy {
	r = r.singleHops()[0].without(unix.RTA_GATEWAY, unix.RTA_VIA)
	r.Header.Scope = unix.RT_SCOPE_UNIVERSE // a route of scope link or host cannot have a gateway
	r.Header.Flags &^= unix.RTNH_F_ONLINK
	if onLink {
		r.Header.Flags |= unix.RTNH_F_ONLINK
	}
	if gw.IsValid() {
		r = r.with(unix.RTA_GATEWAY, gw.AsSlice())
	}
	return r
}

// Hops returns a Route for each next hop of r.
func (r RouteCopy) Hops() (routes []Route) {
	for _, hop := range r.singleHops() {
		routes = append(routes, hop.Route())
	}
	return routes
}

// Route returns the values of the route that a Route has. If there are several next hops, it returns the first.
func (r RouteCopy) Route() Route {
	r = r.singleHops()[0]
	h, metrics := r.Header, attributes(r.value(unix.RTA_METRICS))
	out := Route{Dst: r.dst(), GW: addrOf(r.value(unix.RTA_GATEWAY)), Src: addrOf(r.value(unix.RTA_PREFSRC)),
		OutIndex: int(number(r.value(unix.RTA_OIF))), Priority: number(r.value(unix.RTA_PRIORITY)), Table: r.Table(),
		MTU: int(number(metrics[unix.RTAX_MTU])), AdvMSS: int(number(metrics[unix.RTAX_ADVMSS])),
		Scope: int(h.Scope), Type: int(h.Type), Protocol: int(h.Protocol), OnLink: h.Flags&unix.RTNH_F_ONLINK != 0}
	if via := r.value(unix.RTA_VIA); len(via) > 2 {
		out.GW = addrOf(via[2:]) // struct rtvia: two bytes of family, then the address
	}
	return out
}

// dst returns the destination. The kernel sends no RTA_DST for a default route.
func (r RouteCopy) dst() netip.Prefix {
	if addr := addrOf(r.value(unix.RTA_DST)); addr.IsValid() {
		return netip.PrefixFrom(addr, int(r.Header.Dst_len))
	}
	return defaultDst(int(r.Header.Family))
}

func defaultDst(family int) netip.Prefix {
	if family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// String returns the destination, for messages.
func (r RouteCopy) String() string { return r.dst().String() }

// AddCopy adds the route, as AddRoute does, without replacing an existing one.
func (c *Conn) AddCopy(r RouteCopy) error {
	return wrap("route "+r.String(), c.sendCopy(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, r))
}

// RestoreCopy adds a route that a link had. It returns nil if the route exists. It also returns nil if the link cannot
// have the route now: it is down, IPv6 is disabled on it, or the source or the path to the gateway no longer exists.
func (c *Conn) RestoreCopy(r RouteCopy) error {
	return ignore(ignoreInapplicable(c.AddCopy(r)), unix.EEXIST)
}

// ignoreInapplicable returns nil for the error of a route that a link cannot have in its present state.
func ignoreInapplicable(err error) error {
	return ignore(err, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES, ErrNoLink)
}

// RestoreShared restores a route as RestoreWhole does. If RestoreWhole returns false, RestoreShared adds the route with
// all next hops or, if the kernel refuses a next hop of another link, with only the link's own ones.
func (c *Conn) RestoreShared(link int, r RouteCopy) error {
	if isFound, err := c.RestoreWhole(link, r); isFound || err != nil {
		return err
	}
	err := c.AddCopy(r)
	if own, _ := r.HopsThrough(link); err != nil && ignoreInapplicable(err) == nil {
		return c.RestoreCopy(own)
	}
	return ignore(err, unix.EEXIST)
}

// KeepOtherHops replaces a route that a link shares with other links by the route with only the next hops of the other
// links. It drops next hops whose links are down. It changes nothing if no next hop remains, or if the route uses a
// nexthop object, because the kernel removes only the link's next hop from an object.
func (c *Conn) KeepOtherHops(link int, r RouteCopy) error {
	others, shared := r.HopsNotThrough(link)
	if !shared || r.usesObject {
		return nil
	}
	return c.replaceLive(r, others)
}

// RestoreWhole restores a route as RestoreCopy does, if the link may have shared the route with other links. It
// replaces the route that KeepOtherHops left, unless the kernel refuses the new one. If there is only a route with r's
// key that uses a nexthop object, that route stays, because its program adds the next hop again. RestoreWhole returns
// false and changes nothing if none of these routes exists.
func (c *Conn) RestoreWhole(link int, r RouteCopy) (isFound bool, err error) {
	others, shared := r.HopsNotThrough(link)
	if !shared {
		return true, c.RestoreCopy(r)
	}
	routes, err := c.RouteCopies()
	if err != nil || slices.ContainsFunc(routes, r.Equal) {
		return true, err
	}
	var left []RouteCopy
	hasObject := false
	for _, o := range routes {
		if !o.HasSameKey(r) {
			continue
		}
		hasObject = hasObject || o.usesObject
		isLeft := func(index int) bool { return index != link && slices.Contains(o.Links(), index) }
		if want, ok := r.withHops(isLeft); ok && !o.usesObject && o.Equal(want) {
			left = append(left, o)
		}
	}
	if len(left) == 0 {
		return hasObject, nil
	}
	// The route with the most next hops is the one that KeepOtherHops left, because a backup route has fewer.
	most := slices.MaxFunc(left, func(a, b RouteCopy) int { return cmp.Compare(len(a.Links()), len(b.Links())) })
	if hasObject && !most.Equal(others) {
		return true, nil
	}
	return true, c.replaceLive(most, r)
}

// replaceLive replaces a route as replaceCopy does. If the kernel refuses the new route, replaceLive tries it without
// the next hops whose links are down. It returns nil if the kernel refuses that route also.
func (c *Conn) replaceLive(former, r RouteCopy) error {
	err := c.replaceCopy(former, r)
	if err == nil || ignoreInapplicable(err) != nil {
		return err
	}
	isUp := func(index int) bool {
		l, err := c.LinkByIndex(index)
		return err == nil && l.Up
	}
	if live, ok := r.withHops(isUp); ok {
		err = c.replaceCopy(former, live)
	}
	return ignoreInapplicable(err)
}

// replaceCopy replaces a route by a route with the same key. If the kernel refuses the new route, the former one stays.
// The replacement is one message, so that a killed call leaves one of the routes. An IPv4 route behind another one with
// the key is an exception, because NLM_F_REPLACE would replace the first of them.
func (c *Conn) replaceCopy(former, r RouteCopy) error {
	isFirst, err := c.isFirstOfKey(former)
	if err != nil {
		return err
	}
	flag := unix.NLM_F_REPLACE
	if !isFirst { // r follows the former route, so that DelCopy does not mistake r for it
		flag = unix.NLM_F_APPEND
	}
	err = c.sendCopy(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|flag, r)
	if err == nil && !isFirst {
		return c.DelCopy(former)
	}
	// EEXIST: r may be in front of the former route, and DelCopy could mistake r for it.
	return wrap("route "+r.String(), ignore(err, unix.EEXIST))
}

// isFirstOfKey reports whether no other IPv4 route with r's key is in front of r. For IPv6, it always returns true.
func (c *Conn) isFirstOfKey(r RouteCopy) (bool, error) {
	if r.Header.Family != unix.AF_INET {
		return true, nil
	}
	routes, err := c.dumpRoutes(unix.AF_INET, nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(r.Table())))
	i := slices.IndexFunc(routes, r.HasSameKey)
	return i < 0 || routes[i].Equal(r), wrap("list routes", err)
}

// DelCopy deletes the route with all its next hops.
func (c *Conn) DelCopy(r RouteCopy) error {
	return wrap("delete route "+r.String(), ignore(c.sendCopy(unix.RTM_DELROUTE, 0, r), unix.ESRCH))
}

func (c *Conn) sendCopy(kind, flags int, r RouteCopy) error {
	_, err := c.send(kind, unix.NLM_F_ACK|flags, &nl.RtMsg{RtMsg: r.Header}, r.Attrs.encode()...)
	return err
}
