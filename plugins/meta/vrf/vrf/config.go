package vrf

import (
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey

	VRFName string `json:"vrfname" help:"name of the VRF in the container; created if it does not exist" schema:"required format=ifname"`
	Table   *int64 `json:"table" help:"routing table of the VRF (the first unused one in the container)" schema:"min=1 max=4294967295 zero"`
}

// config is the configuration with every value checked.
type config struct {
	VRF   string
	Table uint32 // 0: the first unused one
}

// parseConfig adds a problem (code 7) for each invalid value.
func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) config {
	switch name := w.VRFName; {
	case name == "":
		problems.Add(cni.Refuse("vrfname", nil, "missing").Suggest("name the VRF, such as \"blue\""))
	case name == req.IfName:
		problems.Add(cni.Refuse("vrfname", name, "is the container's interface itself"))
	default:
		problems.Add(cni.CheckIfName(cni.CodeConfig, "vrfname", name))
	}
	if w.Table != nil && *w.Table == 0 { // the reference treats 0 as absent
		w.Table = nil
	}
	return config{VRF: w.VRFName, Table: cni.ParseTable(problems, "table", w.Table)}
}
