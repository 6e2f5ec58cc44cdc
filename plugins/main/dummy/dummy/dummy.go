package dummy

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const kind = "dummy"

type wireConfig struct {
	skel.LogKey
	MAC  string              `json:"mac" help:"MAC address; CNI_ARGS, runtimeConfig and args.cni override it" schema:"format=mac empty"`
	IPAM attach.RequiredIPAM `json:"ipam" help:"the IPAM plugin's part; required" schema:"required"`
	attach.MTUKeys
	attach.LinkKeys
}

func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) attach.ChildConfig {
	problems.Add(w.IPAM.Check("dummy interface requires an IPAM configuration", "static"))
	return attach.ChildConfig{New: rtnl.NewLink{Kind: kind}, Make: attach.MakeLink,
		Link: w.LinkKeys.Parse(problems, w.MTUKeys, cni.PairsOf(req.Args, "MAC"), w.MAC)}
}
