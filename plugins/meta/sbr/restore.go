package main

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const recordDir = "/run/hawser/sbr"

func records() statefile.Records[record] { return statefile.Records[record]{Path: recordDir} }

// record says what an ADD does, and where. It is written before the first effect; DEL undoes it, and CHECK compares it.
type record struct {
	cni.Attachment
	Netns ns.Identity `json:"netns"`
	Link  int         `json:"link"` // index of the interface
	Plan  plan        `json:"plan"`
}

// Valid says whether an ADD can have written the record: DEL deletes what it names.
func (r record) Valid() bool {
	tables := map[uint32]bool{}
	for _, rule := range r.Plan.Rules {
		if !rule.Src.IsSingleIP() || rtnl.IsKernelTable(rule.Table) {
			return false
		}
		tables[rule.Table] = true
	}
	strange := func(c rtnl.RouteCopy) bool { return !tables[c.Table()] }
	own := func(route rtnl.Route) bool { return route.Dst.IsValid() && route.OutIndex == r.Link }
	outside := func(c rtnl.RouteCopy) bool { return c.Table() != unix.RT_TABLE_MAIN }
	return !slices.ContainsFunc(r.Plan.Copies, strange) &&
		!slices.ContainsFunc(r.Plan.Moved, outside) &&
		!slices.ContainsFunc(r.Plan.Defaults, func(d rtnl.Route) bool { return !own(d) || !tables[d.Table] }) &&
		!slices.ContainsFunc(r.Plan.Hints, func(h rtnl.Route) bool { return !own(h) || h.Table != unix.RT_TABLE_MAIN })
}

// del undoes what the record says or, where there is none, what the reference made, in a namespace that is still there.
func del(ctx context.Context, req *skel.Request) error {
	if req.NS != nil {
		if err := remove(ctx, req); err != nil {
			return err
		}
	}
	return records().Drop(ctx, req.Hash())
}

// remove undoes in the namespace what ADD did there.
func remove(ctx context.Context, req *skel.Request) error {
	c, err := frame.OpenLocked(ctx, req)
	if err != nil {
		return err
	}
	r, ok, err := records().Get(req.Hash())
	if err != nil {
		return err
	}
	err = c.FindInterface()
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	switch {
	case !ok && err != nil:
		return nil
	case !ok:
		r.Plan, err = planOfReference(c)
		if err != nil {
			return err
		}
	case !r.Netns.Is(c.NetnsID): // CNI_NETNS leads to another container by now
		return nil
	case c.ContEnd.Index != r.Link:
		r.Plan = plan{Rules: r.Plan.Rules} // the routes went with the interface
	}
	return undo(c.Cont, r.Plan)
}

// undo takes back all or a part of what apply did, and goes on after an error.
func undo(conn *rtnl.Conn, p plan) error {
	return errors.Join(undoEach(p.Hints, conn.DelRoute), undoEach(p.Moved, conn.RestoreCopy),
		undoEach(p.Rules, conn.DelRule), undoEach(p.Defaults, conn.DelRoute), undoEach(p.Copies, conn.DelCopy))
}

// undoEach calls do with each of a list, and goes on after an error, or where there is no such link.
func undoEach[T any](list []T, do func(T) error) error {
	var errs []error
	for _, one := range list {
		if err := do(one); !errors.Is(err, rtnl.ErrNoLink) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
