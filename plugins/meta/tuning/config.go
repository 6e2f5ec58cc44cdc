package main

import (
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
	skel.Keys

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
	Link    linkConfig
	DataDir string
}

func (c config) empty() bool { return len(c.Sysctls) == 0 && c.Link.empty() }

// linkConfig is what the interface is to become; fields left zero stay as they
// are.
type linkConfig struct {
	MAC      net.HardwareAddr
	Promisc  bool
	MTU      int
	AllMulti *bool
	TxQLen   *int
}

func (l linkConfig) empty() bool {
	return l.MAC == nil && !l.Promisc && l.MTU == 0 && l.AllMulti == nil && l.TxQLen == nil
}

// parseConfig reads and checks the configuration. Everything that it refuses
// is code 7 with key and value, or code 4 for CNI_ARGS. Where there is no
// interface (STATUS), IFNAME stays in the keys of sysctls.
func parseConfig(req *skel.Request) (config, error) {
	var w wireConfig
	if err := req.Decode(&w); err != nil {
		return config{}, err
	}
	var problems cni.Problems
	c := config{DataDir: w.DataDir, Link: linkConfig{
		Promisc: override(w.Promisc, w.Args.CNI.Promisc), AllMulti: w.AllMulti,
	}}
	if c.DataDir == "" {
		c.DataDir = defaultDataDir
	}
	if w.Args.CNI.AllMulti != nil {
		c.Link.AllMulti = w.Args.CNI.AllMulti
	}
	problems.Add(parseNumbers(w, &c.Link))
	var err error
	c.Link.MAC, err = parseMAC(w, req.Args)
	problems.Add(err)
	c.Sysctls, err = parseSysctls(w, req.IfName)
	problems.Add(err)
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
	if w.DataDir == "" {
		return defaultDataDir, nil
	}
	return w.DataDir, nil
}

func parseNumbers(w wireConfig, l *linkConfig) error {
	l.MTU, l.TxQLen = override(w.MTU, w.Args.CNI.MTU), w.TxQLen
	if w.Args.CNI.TxQLen != nil {
		l.TxQLen = w.Args.CNI.TxQLen
	}
	var problems cni.Problems
	problems.Add(checkNumber("mtu", w.MTU))
	problems.Add(checkNumber("args.cni.mtu", override(0, w.Args.CNI.MTU)))
	problems.Add(checkNumber("txQLen", override(0, w.TxQLen)))
	problems.Add(checkNumber("args.cni.txQLen", override(0, w.Args.CNI.TxQLen)))
	return problems.Err()
}

// checkNumber refuses what no interface takes; the rest depends on the device
// and is the kernel's to refuse.
func checkNumber(key string, n int) error {
	if n < 0 || n > math.MaxInt32 {
		return cni.Refuse(key, n, fmt.Sprintf("is not between 0 and %d", math.MaxInt32))
	}
	return nil
}

// parseMAC takes the MAC address from the strongest of its four sources.
func parseMAC(w wireConfig, args string) (net.HardwareAddr, error) {
	var problems cni.Problems
	values, err := cni.ParseArgs(args, "MAC")
	problems.Add(err)
	problems.Add(checkMAC(cni.CodeConfig, "args.cni.mac", override("", w.Args.CNI.MAC)))
	problems.Add(checkMAC(cni.CodeConfig, "runtimeConfig.mac", w.RuntimeConfig.MAC))
	problems.Add(checkMAC(cni.CodeConfig, "mac", w.MAC))
	text := w.MAC
	switch {
	case w.Args.CNI.MAC != nil:
		text = *w.Args.CNI.MAC
	case w.RuntimeConfig.MAC != "":
		text = w.RuntimeConfig.MAC
	case values["MAC"] != "":
		text = values["MAC"]
		problems.Add(checkMAC(cni.CodeEnvironment, "CNI_ARGS MAC", text))
	}
	if text == "" || problems.Err() != nil {
		return nil, problems.Err()
	}
	return net.ParseMAC(text)
}

// checkMAC refuses what no interface can have. A longer address than Ethernet's
// is InfiniBand's, with rules of its own.
func checkMAC(code uint, key, text string) error {
	mac, err := net.ParseMAC(text)
	if text == "" || err == nil && (len(mac) != 6 || mac[0]&1 == 0 && mac.String() != "00:00:00:00:00:00") {
		return nil
	}
	return cni.Refuse(key, text, "is no MAC address of an interface (not multicast, not zero)").WithCode(code).
		Suggest("write it like 02:00:00:00:00:01, the second digit even")
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

// quoteKey names a sysctl of the configuration in messages.
func quoteKey(source, key string) string { return fmt.Sprintf("%s[%q]", source, key) }
