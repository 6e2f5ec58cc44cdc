package main

import (
	"context"
	"errors"

	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

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
