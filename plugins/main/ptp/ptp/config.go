package ptp

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the configuration as the JSON has it.
type wireConfig struct {
	skel.LogKey
	attach.MasqKeys
	DeviceType string              `json:"deviceType" help:"kind of the pair: veth or netkit" default:"veth" schema:"enum=veth|netkit"`
	IPAM       attach.RequiredIPAM `json:"ipam" help:"the IPAM plugin's part; required" schema:"required"`
	attach.LinkKeys
}

// config is the configuration with every value checked.
type config struct {
	Link attach.LinkConfig
	Masq attach.Masq
}

// parseConfig checks the configuration. An invalid value is code 7, or code 4 in CNI_ARGS.
func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) config {
	problems.Add(w.IPAM.Check("ptp needs an IPAM plugin", "host-local"))
	c := config{Masq: w.MasqKeys.Parse(problems),
		Link: w.LinkKeys.Parse(problems, cni.PairsOf(req.Args, "MAC"), "")}
	c.Link.Netkit = w.DeviceType == "netkit"
	if !c.Link.Netkit && w.DeviceType != "veth" {
		problems.Add(cni.Refuse("deviceType", w.DeviceType, `is neither "veth" nor "netkit"`))
	}
	return c
}
