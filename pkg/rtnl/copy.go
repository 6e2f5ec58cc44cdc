package rtnl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RouteCopy is a route with all that the kernel tells of it: every next hop, metric
// and flag. It can be made again, also in another table, and kept in a file.
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
func (c *Conn) RouteCopies() (routes []RouteCopy, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		of, err := c.copiesOf(family)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		routes = append(routes, of...)
	}
	return routes, nil
}

// copiesOf lists the routes of a family. A kernel that lacks the family answers with the
// routes of all families.
func (c *Conn) copiesOf(family uint8) (routes []RouteCopy, err error) {
	answers, err := c.send(unix.RTM_GETROUTE, unix.NLM_F_DUMP, &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
	for _, answer := range answers {
		r, err := readCopy(answer)
		if err != nil {
			return nil, err
		}
		const cached = unix.RTM_F_CLONED // what the kernel keeps about single destinations
		if r.Header.Family == family && r.Header.Flags&cached == 0 {
			routes = append(routes, r)
		}
	}
	return routes, err
}

func readCopy(message []byte) (r RouteCopy, err error) {
	if len(message) < unix.SizeofRtMsg {
		return r, unix.EBADMSG
	}
	r.Header = nl.DeserializeRtMsg(message).RtMsg
	r.Header.Flags &= unix.RTM_F_CLONED | hopFlags
	attrs, err := nl.ParseRouteAttr(message[unix.SizeofRtMsg:])
	for _, a := range attrs {
		// A next hop object is beside the hops that it stands for, and goes with its link.
		if a.Attr.Type != unix.RTA_CACHEINFO && a.Attr.Type != netlink.RTA_NH_ID {
			r.Attrs = append(r.Attrs, RouteAttribute{a.Attr.Type, a.Value})
		}
	}
	r, _ = r.through(func(int) bool { return true }) // as it can be sent
	return r, err
}

// attr is the place of an attribute in Attrs, -1 where there is none.
func (r RouteCopy) attr(kind uint16) int {
	return slices.IndexFunc(r.Attrs, func(a RouteAttribute) bool { return a.Kind == kind })
}

// number is the value of a numeric attribute; 0 where there is none.
func (r RouteCopy) number(kind uint16) uint32 {
	if i := r.attr(kind); i >= 0 && len(r.Attrs[i].Value) == 4 {
		return binary.NativeEndian.Uint32(r.Attrs[i].Value)
	}
	return 0
}

// with is the route with an attribute of that value.
func (r RouteCopy) with(kind uint16, value []byte) RouteCopy {
	r.Attrs = slices.Clone(r.Attrs)
	if i := r.attr(kind); i >= 0 {
		r.Attrs[i].Value = value
	} else {
		r.Attrs = append(r.Attrs, RouteAttribute{kind, value})
	}
	return r
}

// addr is the value of an attribute that is an address; zero where there is none.
func (r RouteCopy) addr(kind uint16) netip.Addr {
	if i := r.attr(kind); i >= 0 {
		return addrOf(r.Attrs[i].Value)
	}
	return netip.Addr{}
}

// Table is the table that the route is in.
func (r RouteCopy) Table() uint32 {
	if r.attr(unix.RTA_TABLE) < 0 {
		return uint32(r.Header.Table)
	}
	return r.number(unix.RTA_TABLE)
}

// InTable is the route in another table.
func (r RouteCopy) InTable(table uint32) RouteCopy {
	r.Header.Table = unix.RT_TABLE_UNSPEC // the attribute says it
	return r.with(unix.RTA_TABLE, nl.Uint32Attr(table))
}

// WithoutSource is the route without its preferred source.
func (r RouteCopy) WithoutSource() RouteCopy {
	isSource := func(a RouteAttribute) bool { return a.Kind == unix.RTA_PREFSRC }
	r.Attrs = slices.DeleteFunc(slices.Clone(r.Attrs), isSource)
	return r
}

// IsFar says whether the route leads through a gateway, to which another route must
// lead before it can be made.
func (r RouteCopy) IsFar() bool {
	far := []uint16{unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_MULTIPATH}
	return slices.ContainsFunc(far, func(kind uint16) bool { return r.attr(kind) >= 0 })
}

// through is the route with those next hops alone whose link is wanted; ok is false
// when there is none.
func (r RouteCopy) through(wanted func(index int) bool) (_ RouteCopy, ok bool) {
	i := r.attr(unix.RTA_MULTIPATH)
	if i < 0 {
		return r, wanted(int(r.number(unix.RTA_OIF)))
	}
	var kept []byte
	for hops := r.Attrs[i].Value; len(hops) >= unix.SizeofRtNexthop; {
		size := (int(binary.NativeEndian.Uint16(hops)) + 3) &^ 3
		if size < unix.SizeofRtNexthop || size > len(hops) {
			return r, false
		}
		if wanted(int(binary.NativeEndian.Uint32(hops[4:]))) {
			at := len(kept)
			kept = append(kept, hops[:size]...)
			kept[at+2] &= hopFlags
		}
		hops = hops[size:]
	}
	return r.with(unix.RTA_MULTIPATH, kept), kept != nil
}

// HopsOf is the route with the next hops of a link alone; ok is false when it has none.
func (r RouteCopy) HopsOf(link int) (own RouteCopy, ok bool) {
	return r.through(func(index int) bool { return index == link })
}

// OtherHops is the route with the next hops of all other links; ok is false when there are none.
func (r RouteCopy) OtherHops(link int) (others RouteCopy, ok bool) {
	return r.through(func(index int) bool { return index != link })
}

// NearFirst compares routes for an order in which the kernel takes them: those through a
// gateway come after those that may lead to it.
func NearFirst(a, b RouteCopy) int {
	switch {
	case a.IsFar() == b.IsFar():
		return 0
	case b.IsFar():
		return -1
	}
	return 1
}

// From is the route with another preferred source.
func (r RouteCopy) From(src netip.Addr) RouteCopy { return r.with(unix.RTA_PREFSRC, src.AsSlice()) }

// Equal says whether the routes are the same, whatever the order of their attributes.
func (r RouteCopy) Equal(o RouteCopy) bool {
	r, o = r.InTable(r.Table()), o.InTable(o.Table())
	return r.Header == o.Header && len(r.Attrs) == len(o.Attrs) &&
		!slices.ContainsFunc(r.Attrs, func(a RouteAttribute) bool {
			i := o.attr(a.Kind)
			return i < 0 || !bytes.Equal(a.Value, o.Attrs[i].Value)
		})
}

// Flat is the route without a list of next hops where it has but one, as the kernel
// tells of such a route.
func (r RouteCopy) Flat() RouteCopy {
	i := r.attr(unix.RTA_MULTIPATH)
	if i < 0 || int(binary.NativeEndian.Uint16(r.Attrs[i].Value)) < len(r.Attrs[i].Value) {
		return r
	}
	return r.firstHop(i)
}

// firstHop is the route through the first next hop of the list alone, which is attribute i.
func (r RouteCopy) firstHop(i int) RouteCopy {
	hop := r.Attrs[i].Value
	r.Header.Flags |= uint32(hop[2])
	r.Attrs = append(slices.Delete(slices.Clone(r.Attrs), i, i+1), RouteAttribute{unix.RTA_OIF, hop[4:8]})
	attrs, _ := nl.ParseRouteAttr(hop[unix.SizeofRtNexthop:binary.NativeEndian.Uint16(hop)])
	for _, a := range attrs {
		r.Attrs = append(r.Attrs, RouteAttribute{a.Attr.Type, a.Value})
	}
	return r
}

// Via is the route through this gateway alone; the zero Addr is none. What leads there, or onLink,
// lets the kernel take it.
func (r RouteCopy) Via(gw netip.Addr, onLink bool) RouteCopy {
	if i := r.attr(unix.RTA_MULTIPATH); i >= 0 {
		r = r.firstHop(i)
	}
	r.Attrs = slices.DeleteFunc(slices.Clone(r.Attrs), func(a RouteAttribute) bool {
		return a.Kind == unix.RTA_GATEWAY || a.Kind == unix.RTA_VIA
	})
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

// Route is what the route says, but MTU and AdvMSS; of several next hops the first.
func (r RouteCopy) Route() Route {
	if i := r.attr(unix.RTA_MULTIPATH); i >= 0 {
		r = r.firstHop(i)
	}
	h := r.Header
	out := Route{Dst: r.dst(), GW: r.addr(unix.RTA_GATEWAY), Src: r.addr(unix.RTA_PREFSRC),
		OutIndex: int(r.number(unix.RTA_OIF)), Priority: r.number(unix.RTA_PRIORITY), Table: r.Table(),
		Scope: int(h.Scope), Type: int(h.Type), Protocol: int(h.Protocol), OnLink: h.Flags&unix.RTNH_F_ONLINK != 0}
	if i := r.attr(unix.RTA_VIA); i >= 0 {
		out.GW = addrOf(r.Attrs[i].Value[2:]) // after its family
	}
	return out
}

func (r RouteCopy) dst() netip.Prefix {
	if addr := r.addr(unix.RTA_DST); addr.IsValid() {
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
	if err := c.sendCopy(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, r); err != nil {
		return fmt.Errorf("route %s: %w", r, noLink(err))
	}
	return nil
}

// RestoreCopy is AddCopy for a route that a link had. It is no error that the route is there,
// or that the link, as it is by now, can have none such: it is down, or the source or the
// way to the gateway is gone.
func (c *Conn) RestoreCopy(r RouteCopy) error {
	cannot := []error{unix.EEXIST, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, ErrNoLink}
	err := c.AddCopy(r)
	if slices.ContainsFunc(cannot, func(target error) bool { return errors.Is(err, target) }) {
		return nil
	}
	return err
}

// DelCopy deletes the route with all its next hops. That there is none is no error.
func (c *Conn) DelCopy(r RouteCopy) error {
	if err := c.sendCopy(unix.RTM_DELROUTE, 0, r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete route %s: %w", r, noLink(err))
	}
	return nil
}

func (c *Conn) sendCopy(kind, flags int, r RouteCopy) error {
	attrs := make([]*nl.RtAttr, len(r.Attrs))
	for i, a := range r.Attrs {
		attrs[i] = nl.NewRtAttr(int(a.Kind), a.Value)
	}
	_, err := c.send(kind, unix.NLM_F_ACK|flags, &nl.RtMsg{RtMsg: r.Header}, attrs...)
	return err
}
