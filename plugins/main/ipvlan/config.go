package main

import (
	"cmp"
	"slices"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const layer2 = "l2"

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey
	attach.MasterKeys
	Mode      string      `json:"mode" help:"of all on the master: l2, l3 or l3s" default:"l2" schema:"enum=l2|l3|l3s empty"`
	MTU       int         `json:"mtu" help:"bytes (the master's)" schema:"min=68 max=65535 zero"`
	EnableDAD *bool       `json:"enabledad" help:"let the kernel detect duplicate IPv6 addresses in mode l2, and wait for it (true)"`
	DNS       cni.DNS     `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	IPAM      attach.IPAM `json:"ipam" help:"the IPAM plugin's part (none: the addresses of the result before)"`
}

// config is the configuration with every value checked.
type config struct {
	Link   attach.LinkConfig
	Master attach.MasterKeys
	Mode   string
	DAD    bool
}

// parseConfig checks the configuration. What it refuses is code 7.
func parseConfig(req *skel.Request) (config, error) {
	var w wireConfig
	if err := req.Decode(&w); err != nil {
		return config{}, err
	}
	c := config{Master: w.MasterKeys, Mode: cmp.Or(w.Mode, layer2)}
	c.DAD = c.Mode == layer2 && (w.EnableDAD == nil || *w.EnableDAD) // in the others there is no neighbour
	var problems cni.Problems
	if !slices.Contains([]string{layer2, "l3", "l3s"}, c.Mode) {
		problems.Add(cni.Refuse("mode", w.Mode, `is none of "l2", "l3" and "l3s"`))
	}
	problems.Add(w.IPAM.Check())
	var err error
	c.Link, err = attach.LinkKeys{DNS: w.DNS}.Parse("", w.MTU, "")
	problems.Add(err)
	return c, problems.Err()
}
