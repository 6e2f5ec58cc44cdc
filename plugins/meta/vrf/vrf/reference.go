package vrf

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// restoreReference does what the reference's DEL does, and brings the routes of the VRF's table back.
func restoreReference(ctx context.Context, req *skel.Request) error {
	var w struct {
		VRFName string `json:"vrfname"`
	}
	if req.Decode(&w) != nil || w.VRFName == "" {
		req.Warn("vrfname: missing; nothing is removed")
		return nil
	}
	c, err := netplugin.OpenLocked(ctx, req)
	if err != nil {
		return err
	}
	here, err := readLinks(c.Cont)
	if err != nil {
		return err
	}
	link, vrf := here.named(req.IfName), here.named(w.VRFName)
	isItsLink := func(r record) bool { return r.Netns.Is(c.NetnsID) && r.Link == link.Index }
	if taken, err := records().Any(isItsLink); err != nil || taken || vrf.Kind != "vrf" {
		return err
	}
	i, ok := req.PrevResult.ContainerInterface(req.IfName)
	if link.Index != 0 && ok && i.MAC != "" && !strings.EqualFold(i.MAC, link.MAC.String()) {
		return nil // the path leads to another container by now
	}
	r := record{VRF: vrf.Name, Made: true, Link: link.Index}
	if here.Routes, err = c.Cont.RouteCopies(); err != nil {
		return err
	}
	for _, route := range here.routesToMove(link.Index) {
		if route.Table() == vrf.Table && route.Header.Protocol != unix.RTPROT_KERNEL {
			r.Routes = append(r.Routes, route.InTable(unix.RT_TABLE_MAIN))
		}
	}
	return restore(ctx, c.Cont, r)
}
