package main

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// del undoes what the record says or, where there is none, what the reference made. What
// a namespace had went with it.
func del(ctx context.Context, req *skel.Request) error {
	r, ok, err := records().Get(ctx, req.Hash())
	if err != nil {
		return err
	}
	if req.NS != nil && ok {
		err = release(ctx, req.NS, r)
	} else if req.NS != nil {
		err = releaseUnrecorded(ctx, req)
	}
	if err != nil {
		return err
	}
	return records().Drop(ctx, req.Hash())
}

// release takes the interface of a record out of the VRF, and deletes the VRF when an ADD
// made it and nothing is left in it.
func release(ctx context.Context, n *ns.NS, r record) error {
	held, err := statefile.LockFD(ctx, n.FD(), n.Path(), lockWait)
	if err != nil {
		return err
	}
	defer held.Unlock()
	conn, here, err := look(n)
	if err != nil {
		return err
	}
	defer conn.Close()
	vrf := here.named(r.VRF)
	if !here.Netns.Is(r.Netns) || vrf.Kind != "vrf" { // the path leads to another container by now
		return nil
	}
	ours := vrf.Alias == vrfMark || vrf.Alias == "" && r.Made
	return errors.Join(leave(ctx, conn, r, vrf), deleteEmpty(conn, vrf, ours))
}

// releaseUnrecorded does what the reference plugin's DEL does, and brings the routes of
// the VRF's table back.
func releaseUnrecorded(ctx context.Context, req *skel.Request) error {
	var w struct {
		VRFName string `json:"vrfname"`
	}
	if req.Decode(&w) != nil || w.VRFName == "" {
		req.Warn("vrfname: missing; nothing is removed")
		return nil
	}
	held, err := statefile.LockFD(ctx, req.NS.FD(), req.Netns, lockWait)
	if err != nil {
		return err
	}
	defer held.Unlock()
	conn, here, err := look(req.NS)
	if err != nil {
		return err
	}
	defer conn.Close()
	link, vrf := here.named(req.IfName), here.named(w.VRFName)
	isItsLink := func(r record) bool { return r.Netns.Is(here.Netns) && r.Link == link.Index }
	if taken, err := records().Any(ctx, isItsLink); err != nil || taken || vrf.Kind != "vrf" {
		return err
	}
	i, ok := req.PrevResult.ContainerInterface(req.IfName)
	if link.Index != 0 && ok && i.MAC != "" && !strings.EqualFold(i.MAC, link.MAC.String()) {
		return nil // the path leads to another container by now
	}
	r := record{Link: link.Index}
	if here.Routes, err = conn.RouteCopies(); err != nil {
		return err
	}
	for _, route := range here.moving(link.Index) {
		if route.Table() == vrf.Table && route.Header.Protocol != unix.RTPROT_KERNEL {
			r.Routes = append(r.Routes, route.InTable(unix.RT_TABLE_MAIN))
		}
	}
	return errors.Join(leave(ctx, conn, r, vrf), deleteEmpty(conn, vrf, vrf.Alias == vrfMark || vrf.Alias == ""))
}

// leave takes the interface out of the VRF and makes its routes again. It takes back all
// or a part of what join did, and goes on after an error.
func leave(ctx context.Context, conn *rtnl.Conn, r record, vrf rtnl.Link) error {
	link, err := conn.LinkByIndex(r.Link)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return nil
	case err != nil:
		return err
	case link.Master == vrf.Index:
		if err := setMaster(ctx, conn, r.Link, 0); err != nil {
			return err
		}
	case link.Master != 0: // somebody else's by now
		return nil
	}
	var errs []error
	for _, route := range r.Routes {
		if others, shared := route.Through(func(index int) bool { return index != r.Link }); shared {
			errs = append(errs, conn.DelCopy(others))
		}
		errs = append(errs, conn.RestoreCopy(route))
	}
	return errors.Join(errs...)
}

// deleteEmpty deletes a VRF without members, if it may.
func deleteEmpty(conn *rtnl.Conn, vrf rtnl.Link, may bool) error {
	if !may {
		return nil
	}
	members, err := conn.Ports(vrf.Index)
	if err != nil || len(members) > 0 {
		return err
	}
	return conn.DelLink(vrf.Index)
}

// gc releases the interfaces of attachments that are not valid, where the namespace
// lives, and removes the records.
func gc(ctx context.Context, req *skel.Request) error {
	all, err := records().All(ctx)
	errs := []error{err}
	for _, r := range all {
		if r.Network != req.Network || req.Valid.Has(r.Attachment) {
			continue
		}
		err := collect(ctx, *r)
		if err == nil {
			err = records().Drop(ctx, r.Hash())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func collect(ctx context.Context, r record) error {
	n, err := ns.Open(r.Path)
	if err != nil {
		return nil // gone, as far as anybody can tell
	}
	defer n.Close()
	return release(ctx, n, r)
}
