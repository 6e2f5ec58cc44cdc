package main

import (
	"context"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const kind = "ipvlan"

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	c := cfg.child()
	if prev := req.PrevResult; prev != nil && len(prev.IPs) > 0 {
		c.Link.Given = &cni.Result{IPs: prev.IPs, Routes: prev.Routes}
	}
	switch {
	case req.IPAM == "" && c.Link.Given == nil:
		return nil, cni.Refuse("ipam.type", nil, "missing, and no result before has addresses")
	case req.IPAM == "dhcp":
		req.Warn("ipam.type: %q: all on master have one MAC address, so the server must tell them apart by client ID",
			req.IPAM)
	}
	return attach.AddChild(ctx, req, c)
}

// child says how the ipvlan is to be made. The kernel would give its mode to all on the master.
func (c config) child() attach.Child {
	return attach.Child{New: rtnl.NewLink{Kind: kind, Mode: c.Mode}, OneMode: true, Link: c.Link, Master: &c.Master,
		DAD: c.DAD, Make: attach.MakeLink}
}
