package tap

import (
	"fmt"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// mtuMax is the largest MTU of a tap, in bytes.
const mtuMax = 65521

// wireConfig is the configuration as the JSON has it.
type wireConfig struct {
	skel.LogKey
	MultiQueue bool    `json:"multiQueue" help:"allow up to 256 queues; the program that opens the device must also request them" default:"false"`
	MAC        string  `json:"mac" help:"MAC address; the other three sources take precedence" schema:"format=mac empty"`
	Owner      *uint32 `json:"owner" help:"user ID that may open the device without CAP_NET_ADMIN (any)"`
	Group      *uint32 `json:"group" help:"group ID that may open the device without CAP_NET_ADMIN (any)"`
	SELinux    string  `json:"selinuxContext" help:"SELinux label of the device (the runtime's)"`
	Bridge     string  `json:"bridge" help:"bridge in the container that the device becomes a port of (none)" schema:"format=ifname empty"`
	attach.IPAMKeys
	attach.LinkKeys
}

// parseConfig returns the tap to create. An invalid value is code 7, or code 4 in CNI_ARGS.
func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) attach.ChildConfig {
	if w.Bridge != "" {
		problems.Add(cni.CheckIfName(cni.CodeConfig, "bridge", w.Bridge))
	}
	problems.Add(cni.CheckName("selinuxContext", w.SELinux))
	problems.Add(w.IPAM.Check())
	link := w.LinkKeys.Parse(problems, req.Args, w.MAC)
	if link.MTU > mtuMax {
		problems.Add(cni.Refuse("mtu", link.MTU, fmt.Sprintf("is above %d, the maximum of a tap", mtuMax)))
	}
	return attach.ChildConfig{New: rtnl.NewLink{Kind: kind}, Link: link,
		Make: w.makeTap, Probe: w.probe, Verify: w.verify}
}
