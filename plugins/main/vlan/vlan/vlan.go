package vlan

import (
	"fmt"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	kind    = "vlan"
	vlanMax = 4094
)

type wireConfig struct {
	skel.LogKey
	Master          string  `json:"master" help:"interface that carries the VLAN; required" schema:"required format=link"`
	LinkInContainer bool    `json:"linkInContainer" help:"the master is an interface of the container" default:"false"`
	VLANID          *int    `json:"vlanId" help:"the VLAN, 1 to 4094 (0: priority-tagged frames)" schema:"min=0 max=4094"`
	EnableDAD       bool    `json:"enabledad" help:"detect duplicate IPv6 addresses, and wait for the result (true)"`
	DNS             cni.DNS `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	attach.MTUKeys
	attach.IPAMKeys
}

func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) attach.ChildConfig {
	if w.Master == "" {
		problems.Add(cni.Refuse("master", nil, "missing; a VLAN needs an interface").
			Suggest(`write "master": "eth0"`))
	}
	problems.Add(cni.CheckName("master", w.Master))
	link := rtnl.NewLink{Kind: kind}
	switch {
	case w.VLANID == nil:
		req.Warn("vlanId: missing; using 0 (priority-tagged frames)")
	case *w.VLANID < 0 || *w.VLANID > vlanMax:
		problems.Add(cni.Refuse("vlanId", *w.VLANID, fmt.Sprintf("is not between 0 and %d", vlanMax)))
	default:
		link.VLAN = *w.VLANID
	}
	problems.Add(w.IPAM.Check())
	return attach.ChildConfig{New: link, Link: attach.LinkKeys{DNS: w.DNS}.Parse(problems, w.MTUKeys, "", ""),
		Master: &attach.MasterKeys{Master: w.Master, LinkInContainer: w.LinkInContainer}, DAD: w.EnableDAD,
		Make: attach.MakeLink}
}
