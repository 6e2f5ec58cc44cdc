package vrf

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	recordDir = "/run/hawser/vrf"
	vrfAlias  = "hawser vrf" // marks a VRF that an ADD created
)

func records() *statefile.Store[record] {
	return statefile.NewStore[record](recordDir, statefile.DefaultWait)
}

// record contains the routes of the interface before ADD, and the namespace. ADD writes it before the first change.
type record struct {
	cni.Attachment
	NetnsPath  string           `json:"netnsPath"` // CNI_NETNS
	Netns      ns.Identity      `json:"netns"`
	VRF        string           `json:"vrf"`
	CreatedVRF bool             `json:"made"`   // this ADD created the VRF; it may have been killed before it set the alias
	Link       int              `json:"link"`   // index of the interface
	Routes     []rtnl.RouteCopy `json:"routes"` // in the order in which the kernel accepts them

	addrs []rtnl.AddrCopy // the interface's addresses before its master changes; not stored
}

// list returns the VRF of each record, with its table if the namespace can be read.
func list(context.Context, *skel.Request) ([]cni.Holding, error) {
	return netplugin.Holdings(records(), func(r record) []cni.Holding {
		h := cni.Holding{Attachment: r.Attachment, Kind: cni.HeldRouting, Value: "vrf " + r.VRF}
		if conn, err := netplugin.DialNetns(ns.OpenAs, r.NetnsPath, r.Netns); err == nil {
			if vrf, err := conn.Link(r.VRF); err == nil {
				h.Value += fmt.Sprintf(" table %d", vrf.Table)
			}
			_ = conn.Close()
		}
		return netplugin.WithNetns(r.NetnsPath, r.Netns, h)
	})
}

// Plausible reports whether an ADD can have written the record. DEL creates routes from it.
func (r record) Plausible() bool {
	for _, route := range r.Routes {
		_, usesLink := route.HopsThrough(r.Link)
		isIP := route.Header.Family == unix.AF_INET || route.Header.Family == unix.AF_INET6
		if !usesLink || !isIP || route.Table() == unix.RT_TABLE_LOCAL {
			return false
		}
	}
	return r.VRF != ""
}

// restoreIn reverts an ADD in the namespace of its record. It does nothing if that namespace no longer exists.
func restoreIn(ctx context.Context, finder *ns.Finder, r record) error {
	n, err := finder.Open(r.NetnsPath, r.Netns)
	if errors.Is(err, ns.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer n.Close()
	lock, err := netplugin.LockNetns(ctx, n)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	conn, err := rtnl.Dial(n)
	if err != nil {
		return err
	}
	defer conn.Close()
	return restore(ctx, conn, r)
}

// restore removes the interface of a record from the VRF and restores its routes. It deletes a VRF that has no members
// left and was created by an ADD. It is idempotent: without the VRF it does nothing.
func restore(ctx context.Context, conn *rtnl.Conn, r record) error {
	vrf, err := conn.Link(r.VRF)
	if netplugin.IgnoreNoLink(err) != nil {
		return err
	}
	if vrf.Kind != "vrf" {
		return nil
	}
	if err := leave(ctx, conn, r, vrf); err != nil {
		return err
	}
	isUnmarked := vrf.Alias == "" && r.CreatedVRF // its ADD was killed before it set the alias
	if vrf.Alias != vrfAlias && !isUnmarked {
		return nil
	}
	members, err := conn.Ports(vrf.Index)
	if err != nil || len(members) > 0 {
		return err
	}
	return conn.DelLink(vrf.Index)
}

// leave reverts join, whether it was complete or not. It continues after an error and returns all of them.
func leave(ctx context.Context, conn *rtnl.Conn, r record, vrf rtnl.Link) error {
	link, err := conn.LinkByIndex(r.Link)
	switch {
	case errors.Is(err, rtnl.ErrNoLink) || r.Link == 0: // 0: restoreReference found no interface
		return nil
	case err != nil:
		return err
	case link.Master == vrf.Index:
		if r.addrs, err = conn.AddrCopies(r.Link); err == nil {
			err = setMaster(ctx, conn, r, 0)
		}
		if err != nil {
			return err
		}
	case link.Master != 0: // another program has changed its master
		return nil
	}
	var errs []error
	for _, route := range r.Routes {
		isFound, err := conn.RestoreWhole(r.Link, route)
		if !isFound { // the next hops through other interfaces no longer exist
			own, _ := route.HopsThrough(r.Link)
			err = conn.RestoreCopy(own)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
