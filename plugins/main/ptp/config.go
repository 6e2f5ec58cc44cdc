package main

import (
	"net"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.Keys

	IPMasq        bool    `json:"ipMasq" help:"masquerade what leaves the containers' subnets" default:"false"`
	IPMasqBackend *string `json:"ipMasqBackend" help:"nftables or iptables (nftables, where the kernel has it)" schema:"enum=nftables|iptables"`
	MTU           int     `json:"mtu" help:"bytes, of both ends of the pair (the kernel's)" schema:"min=68 max=65535 zero"`
	IPAM          struct {
		Type string `json:"type" help:"IPAM plugin that gives the addresses; required" schema:"required format=file"`
	} `json:"ipam" help:"the IPAM plugin's part; required" schema:"required"`
	DNS  cni.DNS `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	Args struct {
		CNI struct {
			MAC string `json:"mac" help:"MAC address of the container's end; wins over MAC in CNI_ARGS" schema:"format=mac empty"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac" help:"MAC address of the container's end (capability mac); wins over all" schema:"format=mac empty"`
	} `json:"runtimeConfig"`
}

// config is the configuration with every value checked.
type config struct {
	Masq        bool
	MasqBackend masq.Backend
	MTU         int
	MAC         net.HardwareAddr
	DNS         cni.DNS
}

// parseConfig reads and checks the configuration. Everything that it refuses
// is code 7 with key and value, or code 4 for CNI_ARGS.
func parseConfig(req *skel.Request) (config, error) {
	var w wireConfig
	var problems cni.Problems
	problems.Add(req.Decode(&w))
	c := config{Masq: w.IPMasq, MTU: w.MTU, DNS: w.DNS}
	if w.IPAM.Type == "" {
		problems.Add(cni.Refuse("ipam.type", nil, "missing; ptp needs an IPAM plugin").Suggest(`write "ipam": {"type": "host-local", ...}`))
	} else {
		problems.Add(ipam.CheckType(w.IPAM.Type))
	}
	problems.Add(iface.CheckMTU(w.MTU))
	var err error
	c.MasqBackend, err = masq.ParseBackend(w.IPMasqBackend)
	problems.Add(err)
	c.MAC, err = iface.WantedMAC{Args: req.Args, ArgsCNI: w.Args.CNI.MAC, RuntimeConfig: w.RuntimeConfig.MAC}.Parse()
	problems.Add(err)
	return c, problems.Err()
}
