package sbr

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// planOfReference returns a plan with the changes that the reference plugin made for the interface's addresses. Its
// rules use the configured table or, without one, tables that contain only routes of this interface. These routes
// return to the main table, except default routes, which the reference adds. If a record exists for the interface, the
// reference plugin has changed nothing, and the plan is empty.
func planOfReference(c *netplugin.Call) (p plan, err error) {
	isOfLink := func(r record) bool { return r.Netns.Is(c.NetnsID) && r.Link == c.ContEnd.Index }
	if isRecorded, err := records().Any(isOfLink); err != nil || isRecorded {
		return p, err
	}
	state, err := readRouting(c)
	if err != nil {
		return p, err
	}
	addrs, err := c.Cont.Addrs(state.Link)
	if err != nil {
		return p, err
	}
	table := tableOf(c.Req)
	for _, r := range state.Rules {
		isOfAddr := slices.ContainsFunc(addrs, func(a rtnl.Addr) bool {
			return r.Src == address{Prefix: a.Prefix}.host()
		})
		switch routes, isOwn := state.routesOfTable(r.Table); {
		case !isOfAddr:
		case table != 0 && r.Table == table:
			p.Rules = append(p.Rules, r)
		case table == 0 && isOwn && r.Table >= firstTable && !rtnl.IsKernelTable(r.Table):
			p.Rules, p.Copies = append(p.Rules, r), append(p.Copies, routes...)
		}
	}
	for _, route := range p.Copies {
		route = route.WithTable(unix.RT_TABLE_MAIN)
		if route.Header.Dst_len > 0 && !slices.ContainsFunc(p.Moved, route.Equal) {
			p.Moved = append(p.Moved, route)
		}
	}
	return p, nil
}

// tableOf returns the configured table, or 0. DEL needs no other key, so it ignores errors in the rest.
func tableOf(req *skel.Request) uint32 {
	var w struct {
		Table *int64 `json:"table"`
	}
	if req.Decode(&w) != nil {
		return 0
	}
	return cni.ParseTable(&cni.Problems{}, "table", w.Table)
}

// routesOfTable returns the routes of a table. isOwn is true if there are any and all of them use the interface.
func (s routing) routesOfTable(table uint32) (routes []rtnl.RouteCopy, isOwn bool) {
	isOwn = true
	for _, r := range s.Routes {
		if r.Table() == table {
			_, other := r.HopsNotThrough(s.Link)
			routes, isOwn = append(routes, r), isOwn && !other
		}
	}
	return routes, isOwn && routes != nil
}
