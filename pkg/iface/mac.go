package iface

import (
	"net"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// WantedMAC is where a runtime may ask for the container interface's MAC
// address, weakest first.
type WantedMAC struct {
	Args          string // CNI_ARGS, whole; its key MAC
	ArgsCNI       string // args.cni.mac
	RuntimeConfig string // runtimeConfig.mac (capability mac)
}

// Parse returns the strongest one's address, nil when none asks. What no
// interface can have is code 7, or in CNI_ARGS code 4.
func (w WantedMAC) Parse() (net.HardwareAddr, error) {
	var problems cni.Problems
	values, err := cni.ParseArgs(w.Args, "MAC")
	problems.Add(err)
	code, key, text := cni.CodeEnvironment, "CNI_ARGS MAC", values["MAC"]
	if w.ArgsCNI != "" {
		code, key, text = cni.CodeConfig, "args.cni.mac", w.ArgsCNI
	}
	if w.RuntimeConfig != "" {
		code, key, text = cni.CodeConfig, "runtimeConfig.mac", w.RuntimeConfig
	}
	if text == "" {
		return nil, problems.Err()
	}
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		problems.Add(cni.Refuse(key, text, "is no MAC address of an interface (six bytes, not multicast, not zero)").
			WithCode(code).Suggest("write it like 02:00:00:00:00:01, the second digit even"))
	}
	return mac, problems.Err()
}
