package main

import (
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// placed says where on the interface a route of a lease is: plugins behind ours move it
// to other tables (sbr, vrf), or remove it.
type placed struct {
	Dst netip.Prefix `json:"dst"`
	At  []rtnl.Route `json:"at,omitempty"` // none: nowhere
}

// routes are those that come with a lease. The first is to its subnet, which the kernel
// makes with the address.
func (l *link) routes(from *lease, o options) []rtnl.Route {
	if from == nil {
		return nil
	}
	routes := []rtnl.Route{{Dst: from.prefix().Masked(), Src: from.prefix().Addr(), OutIndex: l.Index,
		Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_KERNEL, Table: unix.RT_TABLE_MAIN}}
	for _, r := range from.result(o).decode().Routes {
		route := rtnl.Route{Dst: r.Dst, GW: r.GW, OutIndex: l.Index, Priority: r.Priority, Table: unix.RT_TABLE_MAIN}
		if r.Scope != nil {
			route.Scope = *r.Scope
		}
		routes = append(routes, route)
	}
	return routes
}

// find looks for the routes of a lease in all tables.
func (l *link) find(from *lease, o options) (found []placed, err error) {
	there, err := l.conn.Routes(l.Index, unix.AF_INET)
	for _, r := range l.routes(from, o) {
		p := placed{Dst: r.Dst}
		for _, t := range there {
			if t.Type == unix.RTN_UNICAST && t.Dst == r.Dst && t.GW == r.GW {
				p.At = append(p.At, t)
			}
		}
		found = append(found, p)
	}
	return found, err
}

// place returns the routes of a lease, each in the tables where the former lease had its route to the same destination:
// none for a route that somebody removed. A new destination goes to the tables of the first gateway route that is
// there, else to those of the subnet's route, which is the first of both lists.
func place(routes []rtnl.Route, former []placed) (want []rtnl.Route) {
	isThere := func(p placed) bool { return len(p.At) > 0 }
	if !slices.ContainsFunc(former, isThere) { // nothing is known
		return routes
	}
	for i, r := range routes {
		at := slices.IndexFunc(former, func(p placed) bool { return p.Dst == r.Dst })
		if i == 0 {
			at = 0 // the subnet's route, whatever its destination
		}
		if at >= 0 {
			for _, copied := range former[at].At {
				if copied.GW.IsValid() != r.GW.IsValid() {
					copied.Scope = r.Scope
				}
				if copied.Src.IsValid() {
					copied.Src = routes[0].Src
				}
				copied.Dst, copied.GW = r.Dst, r.GW
				want = append(want, copied)
			}
			continue
		}
		beside := slices.IndexFunc(former[1:], isThere) + 1 // 0, the subnet, where there is none
		for _, b := range former[beside].At {
			r.Table = b.Table
			want = append(want, r)
		}
	}
	return want
}

// apply changes the interface from the lease was to the lease is. former says where the routes of was are.
// What both leases have is left alone: an administrator may have changed it. Old routes are removed after the
// new ones are made. After an error apply can be called again.
func (l *link) apply(former []placed, was, is *lease, o options) error {
	moved := was == nil || is == nil || was.prefix() != is.prefix()
	var errs []error
	if moved && was != nil { // and with the last address all routes
		errs = append(errs, l.conn.DelAddr(l.Index, was.prefix()))
	}
	add := func(err error) {
		if !errors.Is(err, unix.EEXIST) {
			errs = append(errs, err)
		}
	}
	if moved && is != nil {
		add(l.conn.AddAddr(l.Index, rtnl.Addr{Prefix: is.prefix()}))
	}
	routes := l.routes(is, o)
	want := place(routes, former)
	for _, r := range want {
		add(l.conn.AddRoute(r))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var old []rtnl.Route
	for _, p := range former {
		old = append(old, p.At...)
	}
	if moved && is != nil { // the kernel makes it in the main table, also where a plugin had moved it away
		old = append(old, routes[0])
	}
	for _, r := range old {
		isSame := func(w rtnl.Route) bool { // for the kernel
			return w.Dst == r.Dst && w.GW == r.GW && w.Table == r.Table && w.Priority == r.Priority
		}
		if !slices.ContainsFunc(want, isSame) {
			errs = append(errs, l.conn.DelRoute(r))
		}
	}
	if moved && is != nil {
		errs = append(errs, iface.Announce(l.conn, l.Link))
	}
	return errors.Join(errs...)
}
