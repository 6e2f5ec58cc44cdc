package vrf

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// restoreReference reverts an ADD of the reference plugin. Unlike its DEL, it also restores the main table's routes.
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
	links, err := c.Cont.Links()
	if err != nil {
		return err
	}
	state := snapshot{Links: links}
	link, vrf := state.linkByName(req.IfName), state.linkByName(w.VRFName)
	isOfLink := func(r record) bool { return r.Netns.Is(c.NetnsID) && r.Link == link.Index }
	if isRecorded, err := records().Any(isOfLink); err != nil || isRecorded || vrf.Kind != "vrf" {
		return err
	}
	i, ok := req.PrevResult.ContainerInterface(req.IfName)
	if link.Index != 0 && ok && i.MAC != "" && !strings.EqualFold(i.MAC, link.MAC.String()) {
		return nil // CNI_NETNS is now the namespace of another container
	}
	r := record{VRF: vrf.Name, Link: link.Index}
	if r.CreatedVRF = link.Index != 0 && link.Master == vrf.Index; !r.CreatedVRF {
		return restore(ctx, c.Cont, r) // routes, and a VRF without an alias, may be another program's
	}
	if state.Routes, err = c.Cont.RouteCopies(); err != nil {
		return err
	}
	for _, route := range state.routesToMove(link.Index) {
		if route.Table() == vrf.Table && route.Header.Protocol != unix.RTPROT_KERNEL {
			r.Routes = append(r.Routes, route.WithTable(unix.RT_TABLE_MAIN))
		}
	}
	return restore(ctx, c.Cont, r)
}
