package tuning

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/policy"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const defaultDataDir = "/run/cni/tuning"

type wireConfig struct {
	skel.LogKey

	Sysctl   json.RawMessage `json:"sysctl" help:"values below /proc/sys/net, written in this order; IFNAME in a key stands for the interface" schema:"format=sysctls"`
	Mode     string          `json:"sysctlMode" help:"write the sysctls, or only check them: ADD then fails if one differs" default:"write" schema:"enum=write|check empty"`
	MAC      string          `json:"mac" help:"MAC address of the interface" schema:"format=hwaddr empty"`
	MTU      int             `json:"mtu" help:"MTU of the interface, in bytes (0: unchanged)" schema:"min=0 max=2147483647"`
	Promisc  bool            `json:"promisc" help:"enable promiscuous mode (false: unchanged)"`
	AllMulti *bool           `json:"allmulti" help:"enable or disable allmulticast mode (unchanged)"`
	TxQLen   *int            `json:"txQLen" help:"length of the transmit queue, in packets (unchanged)" schema:"min=0 max=2147483647"`
	Ethtool  wireEthtool     `json:"ethtool" help:"settings of ethtool(8)"`
	DataDir  string          `json:"dataDir" help:"directory of the backup files, which the reference plugin also reads" default:"/run/cni/tuning"`
	Args     struct {
		CNI wireArgs `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac" help:"MAC address (capability mac); overrides mac and CNI_ARGS" schema:"format=hwaddr empty"`
	} `json:"runtimeConfig"`
}

// wireEthtool uses ethtool's names. Features have the names that "ethtool --show-features" prints since Linux 5.7.
type wireEthtool struct {
	Features map[string]*bool `json:"features" help:"offloads by the kernel's names, such as rx-gro (unchanged)"`
	Rings    struct {
		RX      *uint32 `json:"rx" help:"entries of the receive rings (unchanged)"`
		RXMini  *uint32 `json:"rx-mini" help:"entries of the receive rings for small packets (unchanged)"`
		RXJumbo *uint32 `json:"rx-jumbo" help:"entries of the receive rings for jumbo packets (unchanged)"`
		TX      *uint32 `json:"tx" help:"entries of the transmit rings (unchanged)"`
	} `json:"rings" help:"sizes of the rings"`
	Channels struct {
		RX       *uint32 `json:"rx" help:"queues that only receive (unchanged)"`
		TX       *uint32 `json:"tx" help:"queues that only send (unchanged)"`
		Other    *uint32 `json:"other" help:"queues for other purposes (unchanged)"`
		Combined *uint32 `json:"combined" help:"queues for both directions (unchanged)"`
	} `json:"channels" help:"numbers of queues"`
}

// wireArgs contains the keys of args.cni. Each key that is present overrides the key of the same name.
type wireArgs struct {
	Sysctl   json.RawMessage `json:"sysctl" help:"additional sysctls; override sysctl" schema:"format=sysctls"`
	MAC      *string         `json:"mac" help:"overrides every other MAC address" schema:"format=hwaddr empty"`
	MTU      *int            `json:"mtu" help:"overrides mtu" schema:"min=0 max=2147483647"`
	Promisc  *bool           `json:"promisc" help:"overrides promisc"`
	AllMulti *bool           `json:"allmulti" help:"overrides allmulti"`
	TxQLen   *int            `json:"txQLen" help:"overrides txQLen" schema:"min=0 max=2147483647"`
}

type config struct {
	Sysctls    []setting
	OnlyCheck  bool    // compare the sysctls instead of writing them
	Attributes []value // new values of interface attributes, in the order of writing
	Ethtool    []value // new values of ethtool settings, in the order of writing
	DataDir    string
}

func (c config) isEmpty() bool { return len(c.Sysctls) == 0 && !c.setsInterface() }

func (c config) setsInterface() bool { return len(c.Attributes) > 0 || len(c.Ethtool) > 0 }

// hasWrites reports whether ADD writes values, and must therefore record the original ones.
func (c config) hasWrites() bool { return c.setsInterface() || len(c.Sysctls) > 0 && !c.OnlyCheck }

// parseConfig adds a problem for each invalid value: code 7, or 4 for CNI_ARGS. Without an interface name, as
// in STATUS, the placeholder IFNAME stays in keys of sysctls.
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

	add := func(key string, v any) {
		c.Attributes = append(c.Attributes, value{Key: key, Value: fmt.Sprint(v)})
	}
	if mac != nil {
		add("mac", mac)
	}
	if *cmp.Or(args.Promisc, &w.Promisc) {
		add("promisc", true)
	}
	if mtu := *cmp.Or(args.MTU, &w.MTU); mtu != 0 {
		add("mtu", mtu)
	}
	if on := cmp.Or(args.AllMulti, w.AllMulti); on != nil {
		add("allmulti", *on)
	}
	if length := cmp.Or(args.TxQLen, w.TxQLen); length != nil {
		add("txQLen", *length)
	}
	return c
}

// parseMAC returns the MAC address from the source with the highest priority, or nil.
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
	if w.Args.CNI.MAC != nil { // an empty address cancels the others
		mac = parse(cni.CodeConfig, "args.cni.mac", *w.Args.CNI.MAC)
	}
	return mac
}

// refuse returns an error (code 7) that refuses a value.
func refuse(key, value string, reason any) error {
	return cni.Errorf(cni.CodeConfig, "%s: %q: %v", key, value, reason)
}

// allowList is the path of the administrator's list of sysctls that may be written. Each non-empty line is a regular
// expression for keys as the configuration spells them. If the file does not exist, all keys may be written.
type allowList string

// check returns an error (code 7) for the first setting that no line allows.
func (l allowList) check(settings []setting) error {
	if len(settings) == 0 {
		return nil
	}
	lines, err := l.read()
	if err != nil {
		return err
	}
	for _, s := range settings {
		allowed := false
		for i := 0; i < len(lines) && !allowed; i++ {
			// An invalid line after the matching one has never been an error, so the lines are compiled one by one.
			line, err := l.compile(lines[i])
			if err != nil {
				return err
			}
			allowed = line.MatchString(s.Raw)
		}
		if !allowed {
			return refuse(s.name(), s.Value, fmt.Sprintf("not allowed by %s, which allows %q", l, lines))
		}
	}
	return nil
}

// verify returns an error for each line that is not a regular expression.
func (l allowList) verify() error {
	lines, err := l.read()
	errs := []error{err}
	for _, line := range lines {
		_, err := l.compile(line)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (l allowList) compile(line string) (*regexp.Regexp, error) {
	expr, err := regexp.Compile(line)
	if err != nil {
		return nil, cni.Errorf(cni.CodeConfig, "%s: line %q: %w", l, line, err)
	}
	return expr, nil
}

// read returns the non-empty lines. If the file does not exist, it returns one line that matches every key. A file or
// directory that is a symbolic link to nothing is an error, not a missing list.
func (l allowList) read() (lines []string, err error) {
	path := string(l)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !policy.IsDangling(path) && !policy.IsDangling(filepath.Dir(path)) {
		return []string{""}, nil // matches every key
	}
	if err != nil {
		return nil, fmt.Errorf("allow-list: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
