package main

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// del undoes what the record says or, where there is none, what the reference made.
// Rules and tables of a namespace that is gone went with it.
func del(ctx context.Context, req *skel.Request) error {
	if req.NS != nil {
		if err := restore(ctx, req); err != nil {
			return err
		}
	}
	return records().Drop(ctx, req.Hash())
}

func restore(ctx context.Context, req *skel.Request) error {
	held, err := statefile.LockFD(ctx, req.NS.FD(), req.Netns, lockWait)
	if err != nil {
		return err
	}
	req.OnDone(func() { _ = held.Unlock() })
	r, ok, err := records().Get(req.Hash())
	if err != nil {
		return err
	}
	conn, here, err := look(req)
	noLink := errors.Is(err, rtnl.ErrNoLink) // here.Netns is set all the same
	if err != nil && !noLink {
		return err
	}
	if ok && !r.Netns.Is(here.Netns) { // CNI_NETNS leads to another container by now
		return nil
	}
	switch {
	case !ok && noLink:
		return nil
	case !ok:
		taken, err := records().Any(func(r record) bool { return r.Netns.Is(here.Netns) && r.Link == here.Link })
		if err != nil || taken {
			return err
		}
		if r.Plan, err = planOfReference(conn, here, tableOf(req)); err != nil {
			return err
		}
	case noLink || here.Link != r.Link:
		r.Plan = plan{Rules: r.Plan.Rules} // the routes went with the interface
	}
	return undo(conn, r.Plan)
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

// planOfReference is what the reference plugin made for the addresses that the
// interface has: rules to the configured table or, without one, rules to tables
// whose routes are all of this interface. Those routes go back to the main table,
// without default routes, which the reference adds.
func planOfReference(conn *rtnl.Conn, here found, table uint32) (p plan, err error) {
	addrs, err := conn.Addrs(here.Link)
	if err != nil {
		return p, err
	}
	for _, r := range here.Rules {
		isOfAddr := slices.ContainsFunc(addrs, func(a rtnl.Addr) bool {
			return r.Src == address{Prefix: a.Prefix}.host()
		})
		switch routes, own := here.inTable(r.Table); {
		case !isOfAddr:
		case table != 0 && r.Table == table:
			p.Rules = append(p.Rules, r)
		case table == 0 && own && r.Table >= firstTable && !isKernels(r.Table):
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

// inTable are the routes of a table; own says that they are all of the interface.
func (f found) inTable(table uint32) (routes []rtnl.RouteCopy, own bool) {
	own = true
	for _, r := range f.Routes {
		if r.Table() == table {
			_, other := r.Through(func(link int) bool { return link != f.Link })
			routes, own = append(routes, r), own && !other
		}
	}
	return routes, own && routes != nil
}

// undo takes back all or a part of what apply did, in the other direction, and goes on
// after an error. What is gone already is no error.
func undo(conn *rtnl.Conn, p plan) error {
	return errors.Join(each(p.Hints, conn.DelRoute), each(p.Moved, conn.RestoreCopy),
		each(p.Rules, conn.DelRule), each(p.Defaults, conn.DelRoute), each(p.Copies, conn.DelCopy))
}

// each does something with all of a list.
func each[T any](list []T, do func(T) error) error {
	var errs []error
	for _, one := range list {
		if err := do(one); !errors.Is(err, rtnl.ErrNoLink) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
