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
// interface can have is code 7, also where a stronger one wins; in CNI_ARGS it
// is code 4 where none does.
func (w WantedMAC) Parse() (net.HardwareAddr, error) {
	var problems cni.Problems
	values, err := cni.ParseArgs(w.Args, "MAC")
	problems.Add(err)
	var mac net.HardwareAddr
	for _, source := range []struct{ key, text string }{{"runtimeConfig.mac", w.RuntimeConfig}, {"args.cni.mac", w.ArgsCNI}} {
		parsed, err := parseMAC(cni.CodeConfig, source.key, source.text)
		problems.Add(err)
		if mac == nil {
			mac = parsed
		}
	}
	if w.RuntimeConfig == "" && w.ArgsCNI == "" {
		mac, err = parseMAC(cni.CodeEnvironment, "CNI_ARGS MAC", values["MAC"])
		problems.Add(err)
	}
	return mac, problems.Err()
}

func parseMAC(code uint, key, text string) (net.HardwareAddr, error) {
	if text == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		return nil, cni.Refuse(key, text, "is no MAC address of an interface (six bytes, not multicast, not zero)").WithCode(code).
			Suggest("write it like 02:00:00:00:00:01, the second digit even")
	}
	return mac, nil
}
