package main

import (
	"cmp"
	"slices"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
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
	EnableDAD  bool   `json:"enabledad" help:"let the kernel detect duplicate IPv6 addresses, and wait for it (true)"`
	attach.IPAMKeys
	attach.LinkKeys
}

// parseConfig says how the macvlan is to be made. What it refuses is code 7, or code 4 for CNI_ARGS.
func parseConfig(req *skel.Request) (c attach.Child, err error) {
	w := wireConfig{EnableDAD: true}
	if err := req.Decode(&w); err != nil {
		return c, err
	}
	var problems cni.Problems
	mode := cmp.Or(w.Mode, "bridge")
	if !slices.Contains([]string{"bridge", "private", "vepa", passthru}, mode) {
		problems.Add(cni.Refuse("mode", mode, `is none of "bridge", "private", "vepa" and "passthru"`))
	}
	problems.Add(w.IPAM.Check())
	c = attach.Child{New: rtnl.NewLink{Kind: kind, Mode: mode, QueueLen: w.BCQueueLen}, Master: &w.MasterKeys,
		Link: w.LinkKeys.Parse(&problems, req.Args, w.MTU, w.MAC), DAD: w.EnableDAD, Make: makeMacvlan}
	return c, problems.Err()
}
