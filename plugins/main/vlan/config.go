package main

import (
	"fmt"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const vlanMax = 4094

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey
	Master          string  `json:"master" help:"interface that the VLAN is on; required" schema:"required"`
	LinkInContainer bool    `json:"linkInContainer" help:"the master is an interface of the container" default:"false"`
	VLANID          *int    `json:"vlanId" help:"the VLAN, 1 to 4094 (0: frames with a priority alone)" schema:"min=0 max=4094"`
	MTU             int     `json:"mtu" help:"bytes (the master's)" schema:"min=68 max=65535 zero"`
	EnableDAD       *bool   `json:"enabledad" help:"let the kernel detect duplicate IPv6 addresses, and wait for it (true)"`
	DNS             cni.DNS `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	attach.IPAMKeys
}

// config is the configuration with every value checked.
type config struct {
	Link   attach.LinkConfig
	Master attach.MasterKeys
	VLAN   int
	DAD    bool
}

// parseConfig checks the configuration. What it refuses is code 7.
func parseConfig(req *skel.Request) (config, error) {
	var w wireConfig
	if err := req.Decode(&w); err != nil {
		return config{}, err
	}
	c := config{Master: attach.MasterKeys{Master: w.Master, LinkInContainer: w.LinkInContainer},
		DAD: w.EnableDAD == nil || *w.EnableDAD}
	var problems cni.Problems
	if w.Master == "" {
		problems.Add(cni.Refuse("master", nil, "missing; a VLAN is on an interface").
			Suggest(`write "master": "eth0"`))
	}
	switch {
	case w.VLANID == nil:
		req.Warn("vlanId: missing, taken as 0 (frames with a priority alone)")
	case *w.VLANID < 0 || *w.VLANID > vlanMax:
		problems.Add(cni.Refuse("vlanId", *w.VLANID, fmt.Sprintf("is not between 0 and %d", vlanMax)))
	default:
		c.VLAN = *w.VLANID
	}
	problems.Add(w.IPAM.Check())
	var err error
	c.Link, err = attach.LinkKeys{DNS: w.DNS}.Parse("", w.MTU, "")
	problems.Add(err)
	return c, problems.Err()
}
