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
	attach.MasqKeys
	DeviceType *string `json:"deviceType" help:"kind of the pair: veth or netkit" default:"veth" schema:"enum=veth|netkit"`
	MTU        int     `json:"mtu" help:"bytes, of both ends of the pair (the kernel's)" schema:"min=68 max=65535 zero"`
	IPAM       struct {
		Type string `json:"type" help:"IPAM plugin that gives the addresses; required" schema:"required format=file"`
	} `json:"ipam" help:"the IPAM plugin's part; required" schema:"required"`
	attach.LinkKeys
}

// config is the configuration with every value checked.
type config struct {
	Link attach.Link
	Masq attach.Masq
}

// parseConfig reads and checks the configuration. Everything that it refuses
// is code 7 with key and value, or code 4 for CNI_ARGS.
func parseConfig(req *skel.Request) (c config, err error) {
	var w wireConfig
	if err := req.Decode(&w); err != nil {
		return config{}, err
	}
	var problems cni.Problems
	if w.IPAM.Type == "" {
		problems.Add(cni.Refuse("ipam.type", nil, "missing; ptp needs an IPAM plugin").
			Suggest(`write "ipam": {"type": "host-local", ...}`))
	} else {
		problems.Add(ipam.CheckType(w.IPAM.Type))
	}
	c.Masq, err = w.MasqKeys.Parse()
	problems.Add(err)
	c.Link, err = w.LinkKeys.Parse(cni.PairsOf(req.Args, "MAC"), w.MTU, "")
	problems.Add(err)
	c.Link.Netkit, err = parseDeviceType(w.DeviceType)
	problems.Add(err)
	return c, problems.Err()
}

func parseDeviceType(kind *string) (netkit bool, err error) {
	switch {
	case kind == nil || *kind == "veth":
		return false, nil
	case *kind == "netkit":
		return true, nil
	}
	return false, cni.Refuse("deviceType", *kind, `is neither "veth" nor "netkit"`)
}
