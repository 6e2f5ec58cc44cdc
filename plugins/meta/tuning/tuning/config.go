package tuning

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const defaultDataDir = "/run/cni/tuning"

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey

	Sysctl   json.RawMessage `json:"sysctl" help:"values below /proc/sys/net, in this order; IFNAME in a key is the interface" schema:"format=sysctls"`
	Mode     string          `json:"sysctlMode" help:"write the sysctls, or check: ADD fails where one differs, and writes none" default:"write" schema:"enum=write|check empty"`
	MAC      string          `json:"mac" help:"MAC address of the interface" schema:"format=hwaddr empty"`
	MTU      int             `json:"mtu" help:"MTU of the interface, in bytes (0: as it is)" schema:"min=0 max=2147483647"`
	Promisc  bool            `json:"promisc" help:"set the interface promiscuous (false: as it is)"`
	AllMulti *bool           `json:"allmulti" help:"set the allmulticast mode on or off (as it is)"`
	TxQLen   *int            `json:"txQLen" help:"length of the transmit queue, in packets (as it is)" schema:"min=0 max=2147483647"`
	Ethtool  wireEthtool     `json:"ethtool" help:"what ethtool(8) changes of the interface"`
	DataDir  string          `json:"dataDir" help:"directory of the backup files that the reference plugin also reads" default:"/run/cni/tuning"`
	Args     struct {
		CNI wireArgs `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac" help:"MAC address (capability mac); wins over mac and CNI_ARGS" schema:"format=hwaddr empty"`
	} `json:"runtimeConfig"`
}

// wireEthtool has ethtool's names, those of features as "ethtool --show-features" has them since Linux 5.7.
type wireEthtool struct {
	Features map[string]*bool `json:"features" help:"offloads by the kernel's names, such as rx-gro: on or off (as they are)"`
	Rings    struct {
		RX      *uint32 `json:"rx" help:"entries of the receive rings (as it is)"`
		RXMini  *uint32 `json:"rx-mini" help:"entries of those for small packets (as it is)"`
		RXJumbo *uint32 `json:"rx-jumbo" help:"entries of those for jumbo packets (as it is)"`
		TX      *uint32 `json:"tx" help:"entries of the transmit rings (as it is)"`
	} `json:"rings" help:"sizes of the rings"`
	Channels struct {
		RX       *uint32 `json:"rx" help:"queues that receive alone (as it is)"`
		TX       *uint32 `json:"tx" help:"queues that send alone (as it is)"`
		Other    *uint32 `json:"other" help:"queues for other ends (as it is)"`
		Combined *uint32 `json:"combined" help:"queues for both directions (as it is)"`
	} `json:"channels" help:"numbers of queues"`
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
	Sysctls    []setting
	OnlyCheck  bool    // the sysctls are compared, not written
	Attributes []value // what the interface is to become, in their order
	Ethtool    []value // the same, by ethtool
	DataDir    string
}

func (c config) empty() bool { return len(c.Sysctls) == 0 && c.leavesInterface() }

func (c config) leavesInterface() bool { return len(c.Attributes) == 0 && len(c.Ethtool) == 0 }

// changes reports whether ADD may change anything, and so keep what there was.
func (c config) changes() bool { return !c.leavesInterface() || len(c.Sysctls) > 0 && !c.OnlyCheck }

// parseConfig refuses bad values with code 7, or 4 for CNI_ARGS. In STATUS, IFNAME stays in the keys of sysctls.
func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) config {
	c := config{DataDir: cmp.Or(w.DataDir, defaultDataDir), OnlyCheck: w.Mode == "check"}
	if !slices.Contains([]string{"", "write", "check"}, w.Mode) {
		problems.Add(cni.Refuse("sysctlMode", w.Mode, `is neither "write" nor "check"`))
	}
	mac := parseMAC(w, req.Args, problems)
	args := w.Args.CNI
	problems.Add(cni.InRange("mtu", &w.MTU, 0, math.MaxInt32))
	problems.Add(cni.InRange("args.cni.mtu", args.MTU, 0, math.MaxInt32))
	problems.Add(cni.InRange("txQLen", w.TxQLen, 0, math.MaxInt32))
	problems.Add(cni.InRange("args.cni.txQLen", args.TxQLen, 0, math.MaxInt32))
	c.Sysctls = parseSysctls(w, req.IfName, problems)
	c.Ethtool = w.Ethtool.values()

	want := func(key string, to any) {
		c.Attributes = append(c.Attributes, value{Key: key, Value: fmt.Sprint(to)})
	}
	if mac != nil {
		want("mac", mac)
	}
	if *cmp.Or(args.Promisc, &w.Promisc) {
		want("promisc", true)
	}
	if mtu := *cmp.Or(args.MTU, &w.MTU); mtu != 0 {
		want("mtu", mtu)
	}
	if on := cmp.Or(args.AllMulti, w.AllMulti); on != nil {
		want("allmulti", *on)
	}
	if length := cmp.Or(args.TxQLen, w.TxQLen); length != nil {
		want("txQLen", *length)
	}
	return c
}

// parseMAC takes the MAC address from the strongest of its four sources.
func parseMAC(w wireConfig, args string, problems *cni.Problems) net.HardwareAddr {
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
	return mac
}

// bad is the error for a value that is refused.
func bad(key, value string, reason any) error {
	return cni.Errorf(cni.CodeConfig, "%s: %q: %v", key, value, reason)
}
