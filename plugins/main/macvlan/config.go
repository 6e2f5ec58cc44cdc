package main

import (
	"cmp"
	"slices"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const passthru = "passthru"

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey
	attach.MasterKeys
	Mode       string `json:"mode" help:"how those on one master see each other: bridge, private, vepa or passthru" default:"bridge" schema:"enum=bridge|private|vepa|passthru empty"`
	MTU        int    `json:"mtu" help:"bytes (the master's)" schema:"min=68 max=65535 zero"`
	MAC        string `json:"mac" help:"MAC address; the other three sources win over it" schema:"format=mac empty"`
	BCQueueLen uint32 `json:"bcqueuelen" help:"length of the master's queue for broadcasts, the longest that one on it asks for (the kernel's)"`
	EnableDAD  *bool  `json:"enabledad" help:"let the kernel detect duplicate IPv6 addresses, and wait for it (true)"`
	attach.IPAMKeys
	attach.LinkKeys
}

// config is the configuration with every value checked.
type config struct {
	Link     attach.LinkConfig
	Master   attach.MasterKeys
	Mode     string
	QueueLen uint32
	DAD      bool
}

// parseConfig checks the configuration. What it refuses is code 7, or code 4 for CNI_ARGS.
func parseConfig(req *skel.Request) (config, error) {
	var w wireConfig
	if err := req.Decode(&w); err != nil {
		return config{}, err
	}
	c := config{Master: w.MasterKeys, Mode: cmp.Or(w.Mode, "bridge"), QueueLen: w.BCQueueLen,
		DAD: w.EnableDAD == nil || *w.EnableDAD}
	var problems cni.Problems
	if !slices.Contains([]string{"bridge", "private", "vepa", passthru}, c.Mode) {
		problems.Add(cni.Refuse("mode", w.Mode, `is none of "bridge", "private", "vepa" and "passthru"`))
	}
	problems.Add(w.IPAM.Check())
	var err error
	c.Link, err = w.LinkKeys.Parse(req.Args, w.MTU, w.MAC)
	problems.Add(err)
	return c, problems.Err()
}
