package main

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey
	MTU  int    `json:"mtu" help:"bytes (the kernel's, 1500)" schema:"min=68 max=65535 zero"`
	MAC  string `json:"mac" help:"MAC address; the other three sources win over it" schema:"format=mac empty"`
	IPAM struct {
		Type string `json:"type" help:"IPAM plugin that gives the addresses; required" schema:"required format=file"`
	} `json:"ipam" help:"the IPAM plugin's part; required" schema:"required"`
	attach.LinkKeys
}

// config is the configuration with every value checked.
type config struct{ Link attach.Link }

// parseConfig reads and checks the configuration. Everything that it refuses
// is code 7 with key and value, or code 4 for CNI_ARGS.
func parseConfig(req *skel.Request) (c config, err error) {
	var w wireConfig
	if err := req.Decode(&w); err != nil {
		return config{}, err
	}
	var problems cni.Problems
	if w.IPAM.Type == "" {
		problems.Add(cni.Refuse("ipam.type", nil, "missing; dummy interface requires an IPAM configuration").
			Suggest(`write "ipam": {"type": "static", ...}`))
	} else {
		problems.Add(ipam.CheckType(w.IPAM.Type))
	}
	c.Link, err = w.LinkKeys.Parse(cni.PairsOf(req.Args, "MAC"), w.MTU, w.MAC)
	problems.Add(err)
	return c, problems.Err()
}
