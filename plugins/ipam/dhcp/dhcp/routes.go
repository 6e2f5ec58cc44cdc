package dhcp

import (
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const kernelMetric6 = 256 // metric of the routes that the kernel adds for IPv6 addresses

// routes returns the routes of a result: first the kernel's, to the addresses' subnets, then the others.
func (l *link) routes(res *cni.Result) (routes []rtnl.Route) {
	for _, ip := range res.IPs {
		r := rtnl.Route{Dst: ip.Address.Masked(), Src: ip.Address.Addr(), OutIndex: l.Index,
			Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_KERNEL, Table: unix.RT_TABLE_MAIN}
		if r.Src.Is6() {
			r.Src, r.Priority = netip.Addr{}, kernelMetric6
		}
		routes = append(routes, r)
	}
	for _, r := range res.Routes {
		route := rtnl.Route{Dst: r.Dst, GW: r.GW, OutIndex: l.Index, Priority: r.Priority, Table: unix.RT_TABLE_MAIN}
		if r.Scope != nil {
			route.Scope = *r.Scope
		}
		routes = append(routes, route)
	}
	return routes
}

// findRoutes returns the kernel's copies of the routes of a result, from all tables.
func (l *link) findRoutes(res *cni.Result) (found []placement, err error) {
	if len(res.IPs) == 0 {
		return nil, nil
	}
	existing, err := l.conn.Routes(l.Index, rtnl.FamilyOf(res.IPs[0].Address.Addr()))
	for _, r := range l.routes(res) {
		p := placement{Dst: r.Dst}
		for _, e := range existing {
			if e.Type == unix.RTN_UNICAST && e.Dst == r.Dst && e.GW == r.GW {
				p.Routes = append(p.Routes, e)
			}
		}
		found = append(found, p)
	}
	return found, err
}

// placeRoutes returns the routes of a new lease in the tables that correspond to the tables of the former lease's
// routes. The first route of both lists is the route to the subnet.
//
//   - A route goes to each table that had the former route to the same destination, or is left out if that route was
//     removed. The subnet's route goes where the former subnet's route was.
//   - A route to a new destination goes to the tables of the first former route, other than the subnet's, that still
//     exists. Otherwise, it goes to the tables of the subnet's route.
//   - If none of the former routes exists, all routes go to the main table.
//
// For example, if sbr had moved the former default route to table 100, the new one also goes to table 100.
func placeRoutes(routes []rtnl.Route, former []placement) (want []rtnl.Route) {
	exists := func(p placement) bool { return len(p.Routes) > 0 }
	if !slices.ContainsFunc(former, exists) {
		return routes
	}
	for i, r := range routes {
		same := slices.IndexFunc(former, func(p placement) bool { return p.Dst == r.Dst })
		if i == 0 {
			same = 0
		}
		if same >= 0 {
			for _, copied := range former[same].Routes {
				if copied.GW.IsValid() != r.GW.IsValid() { // the scope depends on whether there is a gateway
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
		model := slices.IndexFunc(former[1:], exists) + 1 // 0: the subnet's route
		for _, m := range former[model].Routes {
			r.Table = m.Table
			want = append(want, r)
		}
	}
	return want
}

// apply changes the interface's addresses and routes from formerRes to newRes. former lists the kernel's copies of the
// former routes. Addresses in both results stay, because an administrator may have changed them. Former routes are
// removed after the new ones are added. After an error, apply can be repeated.
func (l *link) apply(former []placement, formerRes, newRes *cni.Result) error {
	formerAddrs, newAddrs := cni.Addresses(formerRes.IPs), cni.Addresses(newRes.IPs)
	var errs []error
	for _, p := range formerAddrs { // removing the last IPv4 address also removes all IPv4 routes
		if !slices.Contains(newAddrs, p) {
			errs = append(errs, l.conn.DelAddr(l.Index, p))
		}
	}
	appendErr := func(err error) {
		if !errors.Is(err, unix.EEXIST) { // from an earlier attempt, or added by the kernel
			errs = append(errs, err)
		}
	}
	routes := l.routes(newRes)
	var kernelRoutes []rtnl.Route // added by the kernel for new addresses
	for i, p := range newAddrs {
		if !slices.Contains(formerAddrs, p) {
			appendErr(l.conn.AddAddr(l.Index, rtnl.Addr{Prefix: p}))
			kernelRoutes = append(kernelRoutes, routes[i])
		}
	}
	want := placeRoutes(routes, former)
	for _, r := range want {
		appendErr(l.conn.AddRoute(r))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	obsolete := kernelRoutes // in the main table, even if the subnet's route belongs elsewhere
	for _, p := range former {
		obsolete = append(obsolete, p.Routes...)
	}
	for _, r := range obsolete {
		isSame := func(w rtnl.Route) bool { // compares what the kernel compares
			return w.Dst == r.Dst && w.GW == r.GW && w.Table == r.Table && w.Priority == r.Priority
		}
		if !slices.ContainsFunc(want, isSame) {
			errs = append(errs, l.conn.DelRoute(r))
		}
	}
	if kernelRoutes != nil {
		errs = append(errs, iface.Announce(l.conn, l.Link))
	}
	return errors.Join(errs...)
}
