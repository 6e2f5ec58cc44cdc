package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// open begins a DEL or a GC.
func open(ctx context.Context, req *skel.Request) (call, error) {
	c, err := frame.OpenHost(req)
	if err != nil {
		return call{}, err
	}
	return lock(ctx, c)
}

// lock locks the records until the call is over.
func lock(ctx context.Context, c *frame.Call) (call, error) {
	locked, err := records().OpenExisting(ctx)
	if err == nil {
		c.OnDone(func() { _ = errors.Join(locked.Close(), c.Cont.Close()) })
	}
	return call{c, locked}, err
}

func del(ctx context.Context, req *skel.Request) error {
	locks, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	c, err := open(locks, req)
	if err != nil {
		return err
	}
	r, findErr := c.findDevice()
	return attach.DelInterface(ctx, req, func() error {
		l, err := r.find(c.Cont)
		if err := cmp.Or(findErr, err); err != nil {
			return err
		}
		return attach.Flush(c.Cont, l)
	}, func() (gone bool, err error) {
		if err = findErr; err == nil {
			err = c.bringHome(r, c.Cont)
		}
		if errors.Is(err, rtnl.ErrNoLink) {
			err = c.records.Drop(req.Hash()) // a damaged one
		}
		return err == nil, err
	})
}

// findDevice finds the attachment's device, by the record or by what the reference left, and opens Cont. The error
// matches rtnl.ErrNoLink when there is none.
func (c call) findDevice() (r record, err error) {
	r, ok, err := c.records.Get(c.Hash())
	if err != nil {
		return r, err
	}
	if !ok {
		return c.findReference()
	}
	c.Cont, err = attach.Enter(r.Netns, r.NS)
	if errors.Is(err, rtnl.ErrNoLink) {
		c.Cont, err = attach.Enter(c.Netns, r.NS) // by another path
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		err = nil // it may be on the host
	}
	return r, err
}

// gc brings the devices home that attachments have which are not valid.
func gc(ctx context.Context, req *skel.Request) error {
	return attach.GCAddresses(ctx, req, collect(ctx, req))
}

func collect(ctx context.Context, req *skel.Request) error {
	c, err := open(ctx, req)
	if err != nil {
		return err
	}
	defer c.records.Close() // before IPAM is asked, which may take its time
	all, err := c.records.All()
	errs := []error{err}
	for _, r := range all {
		if !req.Valid.Excludes(r.Attachment) {
			continue
		}
		cont, err := attach.Enter(r.Netns, r.NS)
		if err == nil || errors.Is(err, rtnl.ErrNoLink) {
			err = c.bringHome(*r, cont)
		}
		errs = append(errs, err, cont.Close())
	}
	return errors.Join(errs...)
}
