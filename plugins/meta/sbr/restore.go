package main

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// del undoes what the record says or, where there is none, what the reference made.
// Rules and tables of a namespace that is gone went with it.
func del(ctx context.Context, req *skel.Request) error {
	if req.NS != nil {
		if err := restore(ctx, req); err != nil {
			return err
		}
	}
	return dropRecord(ctx, req.Attachment)
}

func restore(ctx context.Context, req *skel.Request) error {
	if err := lockNamespace(ctx, req); err != nil {
		return err
	}
	id, err := req.NS.Identity()
	if err != nil {
		return err
	}
	r, ok, err := readRecord(ctx, req.Attachment)
	if err != nil || ok && !r.Netns.Is(id) { // CNI_NETNS leads to another container by now
		return err
	}
	conn, here, err := look(req)
	gone := errors.Is(err, rtnl.ErrNoLink) || err == nil && ok && here.Link != r.Link
	switch {
	case gone && ok:
		r.Plan = plan{Rules: r.Plan.Rules} // the routes went with the interface
	case gone:
		return nil
	case err != nil:
		return err
	case !ok:
		taken, err := isRecorded(ctx, id, here.Link)
		if err != nil || taken {
			return err
		}
		if r.Plan, err = planOfReference(conn, here, tableOf(req)); err != nil {
			return err
		}
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
	table, _ := parseTable(w.Table)
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
			p.Rules, p.Routes = append(p.Rules, r), append(p.Routes, routes...)
		}
	}
	for _, r := range p.Routes {
		if r.Table = unix.RT_TABLE_MAIN; r.Dst.Bits() > 0 && !slices.Contains(p.Moved, r) {
			p.Moved = append(p.Moved, r)
		}
	}
	return p, nil
}

// inTable are the routes of a table; own says that they are all of the interface.
func (f found) inTable(table uint32) (routes []rtnl.Route, own bool) {
	own = true
	for _, r := range f.Routes {
		if r.Table == table {
			routes = append(routes, r)
			own = own && r.OutIndex == f.Link
		}
	}
	return routes, own && routes != nil
}

// undo takes back all or a part of what apply did, in the other direction, and goes on
// after an error. What is gone already is no error.
func undo(conn *rtnl.Conn, p plan) error {
	var errs []error
	do := func(change func(rtnl.Route) error, routes []rtnl.Route) {
		for _, r := range routes {
			if err := change(r); err != nil && !errors.Is(err, rtnl.ErrNoLink) {
				errs = append(errs, tableError(r, err))
			}
		}
	}
	do(conn.DelRoute, p.Hints)
	do(putBack(conn), p.Moved)
	for _, r := range p.Rules {
		errs = append(errs, conn.DelRule(r))
	}
	do(conn.DelRoute, p.Routes)
	return errors.Join(errs...)
}

// putBack adds a route to the main table unless the interface, as it is by now, can
// have none such: it is down, or the source or the way to the gateway is gone.
func putBack(conn *rtnl.Conn) func(rtnl.Route) error {
	cannot := []error{unix.EEXIST, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL}
	return func(r rtnl.Route) error {
		err := conn.AddRoute(r)
		if slices.ContainsFunc(cannot, func(target error) bool { return errors.Is(err, target) }) {
			return nil
		}
		return err
	}
}
