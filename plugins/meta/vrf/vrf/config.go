package vrf

import (
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey

	VRFName string `json:"vrfname" help:"name of the VRF in the container; made if it is not there" schema:"required format=ifname"`
	Table   *int64 `json:"table" help:"the VRF's table (the first that nothing in the container uses)" schema:"min=1 max=4294967295 zero"`
}

// config is the configuration with every value checked.
type config struct {
	VRF   string
	Table uint32 // 0 = any
}

// parseConfig refuses bad values with code 7.
func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) config {
	switch name := w.VRFName; {
	case name == "":
		problems.Add(cni.Refuse("vrfname", nil, "missing").Suggest("name the VRF, such as \"blue\""))
	case name == req.IfName:
		problems.Add(cni.Refuse("vrfname", name, "is the container's interface itself"))
	default:
		problems.Add(cni.CheckIfName(cni.CodeConfig, "vrfname", name))
	}
	if w.Table != nil && *w.Table == 0 { // the reference's own type has it for none
		w.Table = nil
	}
	return config{VRF: w.VRFName, Table: cni.ParseTable(problems, "table", w.Table)}
}
