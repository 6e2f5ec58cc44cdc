package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const defaultDataDir = "/run/cni/tuning"

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey

	Sysctl   json.RawMessage `json:"sysctl" help:"values below /proc/sys/net, in this order; IFNAME in a key is the interface" schema:"format=sysctls"`
	MAC      string          `json:"mac" help:"MAC address of the interface" schema:"format=hwaddr empty"`
	MTU      int             `json:"mtu" help:"MTU of the interface, in bytes (0: as it is)" schema:"min=0 max=2147483647"`
	Promisc  bool            `json:"promisc" help:"set the interface promiscuous (false: as it is)"`
	AllMulti *bool           `json:"allmulti" help:"set the allmulticast mode on or off (as it is)"`
	TxQLen   *int            `json:"txQLen" help:"length of the transmit queue, in packets (as it is)" schema:"min=0 max=2147483647"`
	DataDir  string          `json:"dataDir" help:"where the values from before are kept" default:"/run/cni/tuning"`
	Args     struct {
		CNI wireArgs `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac" help:"MAC address (capability mac); wins over mac and CNI_ARGS" schema:"format=hwaddr empty"`
	} `json:"runtimeConfig"`
}

// wireArgs are the keys of args.cni. Each that is there wins over its like,
// with whatever value.
type wireArgs struct {
	Sysctl   json.RawMessage `json:"sysctl" help:"more sysctls; one that is in sysctl too gets this value" schema:"format=sysctls"`
	MAC      *string         `json:"mac" help:"wins over every other MAC address" schema:"format=hwaddr empty"`
	MTU      *int            `json:"mtu" help:"wins over mtu" schema:"min=0 max=2147483647"`
	Promisc  *bool           `json:"promisc" help:"wins over promisc"`
	AllMulti *bool           `json:"allmulti" help:"wins over allmulti"`
	TxQLen   *int            `json:"txQLen" help:"wins over txQLen" schema:"min=0 max=2147483647"`
}

// config is the configuration with every value checked.
type config struct {
	Sysctls []setting
	Attrs   []keyValue // what the interface is to become, in the order of attrs
	DataDir string
}

func (c config) empty() bool { return len(c.Sysctls) == 0 && len(c.Attrs) == 0 }

// parseConfig reads and checks the configuration. Everything that it refuses
// is code 7 with key and value, or code 4 for CNI_ARGS. Where there is no
// interface (STATUS), IFNAME stays in the keys of sysctls.
func parseConfig(req *skel.Request) (config, error) {
	var w wireConfig
	var problems cni.Problems
	if err := req.Decode(&w); err != nil {
		return config{}, err
	}
	c := config{DataDir: cmp.Or(w.DataDir, defaultDataDir)}
	mac, err := parseMAC(w, req.Args)
	problems.Add(err)
	args := w.Args.CNI
	problems.Add(checkNumber("mtu", &w.MTU))
	problems.Add(checkNumber("args.cni.mtu", args.MTU))
	problems.Add(checkNumber("txQLen", w.TxQLen))
	problems.Add(checkNumber("args.cni.txQLen", args.TxQLen))
	c.Sysctls, err = parseSysctls(w, req.IfName)
	problems.Add(err)

	want := func(key string, value any) { c.Attrs = append(c.Attrs, keyValue{key, fmt.Sprint(value)}) }
	if mac != nil {
		want("mac", mac)
	}
	if override(w.Promisc, args.Promisc) {
		want("promisc", true)
	}
	if mtu := override(w.MTU, args.MTU); mtu != 0 {
		want("mtu", mtu)
	}
	if on := cmp.Or(args.AllMulti, w.AllMulti); on != nil {
		want("allmulti", *on)
	}
	if length := cmp.Or(args.TxQLen, w.TxQLen); length != nil {
		want("txQLen", *length)
	}
	return c, problems.Err()
}

// dataDir reads only what DEL and GC need, so that no other key, however
// broken, stands in their way.
func dataDir(req *skel.Request) (string, error) {
	var w struct {
		DataDir string `json:"dataDir"`
	}
	if err := req.Decode(&w); err != nil {
		return "", err
	}
	return cmp.Or(w.DataDir, defaultDataDir), nil
}

// checkNumber refuses what no interface takes; the rest depends on the device
// and is the kernel's to refuse.
func checkNumber(key string, n *int) error {
	if n != nil && (*n < 0 || *n > math.MaxInt32) {
		return cni.Refuse(key, *n, fmt.Sprintf("is not between 0 and %d", math.MaxInt32))
	}
	return nil
}

// parseMAC takes the MAC address from the strongest of its four sources.
func parseMAC(w wireConfig, args string) (net.HardwareAddr, error) {
	var problems cni.Problems
	values, err := cni.ParseArgs(args, "MAC")
	problems.Add(err)
	parse := func(code uint, key, text string) net.HardwareAddr {
		mac, err := cni.ParseMAC(code, key, text)
		problems.Add(err)
		return mac
	}
	mac := parse(cni.CodeConfig, "mac", w.MAC)
	if values["MAC"] != "" && w.RuntimeConfig.MAC == "" && w.Args.CNI.MAC == nil {
		mac = parse(cni.CodeEnvironment, "CNI_ARGS MAC", values["MAC"])
	}
	if fromRuntime := parse(cni.CodeConfig, "runtimeConfig.mac", w.RuntimeConfig.MAC); fromRuntime != nil {
		mac = fromRuntime
	}
	if w.Args.CNI.MAC != nil { // the empty one takes the others back
		mac = parse(cni.CodeConfig, "args.cni.mac", *w.Args.CNI.MAC)
	}
	return mac, problems.Err()
}

func override[T any](value T, other *T) T {
	if other != nil {
		return *other
	}
	return value
}

// bad is the error for a value that is refused.
func bad(key, value string, reason any) error {
	return cni.Errorf(cni.CodeConfig, "%s: %q: %v", key, value, reason)
}
