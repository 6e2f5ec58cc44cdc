package ipvlan

import (
	"cmp"
	"context"
	"slices"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	kind   = "ipvlan"
	layer2 = "l2"
)

type wireConfig struct {
	skel.LogKey
	attach.MasterKeys
	Mode string `json:"mode" help:"mode of all ipvlans on the master: l2, l3 or l3s" default:"l2" schema:"enum=l2|l3|l3s empty"`
	attach.MTUKeys
	EnableDAD bool        `json:"enabledad" help:"detect duplicate IPv6 addresses in mode l2, and wait for the result (true)"`
	DNS       cni.DNS     `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	IPAM      attach.IPAM `json:"ipam" help:"the IPAM plugin's part (none: the addresses of the previous result)"`
}

func parseConfig(_ *skel.Request, w wireConfig, problems *cni.Problems) attach.ChildConfig {
	problems.Add(cni.CheckName("master", w.Master))
	mode := cmp.Or(w.Mode, layer2)
	if !slices.Contains([]string{layer2, "l3", "l3s"}, mode) {
		problems.Add(cni.Refuse("mode", mode, `is not "l2", "l3" or "l3s"`))
	}
	problems.Add(w.IPAM.Check())
	return attach.ChildConfig{
		New:        rtnl.NewLink{Kind: kind, Mode: mode},
		SharesMode: true, // the kernel would change the mode of all ipvlans on the master
		Master:     &w.MasterKeys,
		Link:       attach.LinkKeys{DNS: w.DNS}.Parse(problems, w.MTUKeys, "", ""),
		DAD:        w.EnableDAD && mode == layer2, // the other modes have no neighbor discovery
		Make:       attach.MakeLink,

		TakesPackets: true,
	}
}

// add calls AddChild. Without an IPAM plugin, the interface gets the addresses of prevResult.
func add(ctx context.Context, req *skel.Request, c attach.ChildConfig) (*cni.Result, error) {
	if prev := req.PrevResult; prev != nil && len(prev.IPs) > 0 {
		c.Link.Fallback = &cni.Result{IPs: prev.IPs, Routes: prev.Routes}
	}
	switch {
	case req.IPAM == "" && c.Link.Fallback == nil:
		return nil, cni.Refuse("ipam.type", nil, "missing, and prevResult has no addresses")
	case cni.IsPlugin(req.IPAM, "dhcp"):
		req.Warn("ipam.type: %q: the interfaces of a master share a MAC address, so the server must use client IDs",
			req.IPAM)
	}
	return attach.AddChild(ctx, req, c)
}
