package main

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// planOfReference returns what the reference plugin made for the addresses that the
// interface has: rules to the configured table or, without one, rules to tables
// whose routes are all of this interface. Those routes go back to the main table,
// without default routes, which the reference adds. An interface that another attachment's
// record names has nothing of the reference's.
func planOfReference(s *frame.Call) (p plan, err error) {
	isItsLink := func(r record) bool { return r.Netns.Is(s.NetnsID) && r.Link == s.ContEnd.Index }
	if taken, err := records().Any(isItsLink); err != nil || taken {
		return p, err
	}
	here, err := readRouting(s)
	if err != nil {
		return p, err
	}
	addrs, err := s.Cont.Addrs(here.Link)
	if err != nil {
		return p, err
	}
	table := tableOf(s.Request)
	for _, r := range here.Rules {
		isOfAddr := slices.ContainsFunc(addrs, func(a rtnl.Addr) bool {
			return r.Src == address{Prefix: a.Prefix}.host()
		})
		switch routes, own := here.inTable(r.Table); {
		case !isOfAddr:
		case table != 0 && r.Table == table:
			p.Rules = append(p.Rules, r)
		case table == 0 && own && r.Table >= firstTable && !rtnl.IsKernelTable(r.Table):
			p.Rules, p.Copies = append(p.Rules, r), append(p.Copies, routes...)
		}
	}
	for _, c := range p.Copies {
		if c = c.InTable(unix.RT_TABLE_MAIN); c.Header.Dst_len > 0 && !slices.ContainsFunc(p.Moved, c.Equal) {
			p.Moved = append(p.Moved, c)
		}
	}
	return p, nil
}

// tableOf reads only what DEL needs, so that no other key, however broken, stands in
// its way; 0 = none that can be read.
func tableOf(req *skel.Request) uint32 {
	var w struct {
		Table *int64 `json:"table"`
	}
	if req.Decode(&w) != nil {
		return 0
	}
	table, _ := cni.ParseTable("table", w.Table)
	return table
}

// inTable are the routes of a table; own says that they are all of the interface.
func (f routing) inTable(table uint32) (routes []rtnl.RouteCopy, own bool) {
	own = true
	for _, r := range f.Routes {
		if r.Table() == table {
			_, other := r.OtherHops(f.Link)
			routes, own = append(routes, r), own && !other
		}
	}
	return routes, own && routes != nil
}
