package dhcp

import (
	"cmp"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const defaultSocket = "/run/cni/dhcp.sock"

type wireConfig struct {
	skel.LogKey

	IPAM *wireIPAM `json:"ipam" schema:"required"`
}

type wireIPAM struct {
	Type     string        `json:"type" help:"dhcp"`
	Socket   string        `json:"daemonSocketPath" help:"socket of the daemon" default:"/run/cni/dhcp.sock" schema:"format=path empty"`
	Provide  []wireProvide `json:"provide" help:"options to send to the server"`
	Request  []wireRequest `json:"request" help:"options to request in addition to the default ones"`
	Priority uint32        `json:"priority" help:"metric of the routes"`
	IPv4     *bool         `json:"ipv4" help:"request an IPv4 address" default:"true"`
	IPv6     string        `json:"ipv6" help:"source of the IPv6 address" schema:"enum=dhcp|slaac empty"`
	DNS      *bool         `json:"dns" help:"request and return resolver settings" default:"true"`
}

type wireProvide struct {
	Option  string `json:"option" help:"name or number of the option" schema:"required format=dhcpoption"`
	Value   string `json:"value" help:"value of the option, as text of at most 255 bytes"`
	FromArg string `json:"fromArg" help:"key of CNI_ARGS whose value, if any, replaces value"`
}

type wireRequest struct {
	Option      string `json:"option" help:"name or number of the option" schema:"format=dhcpoption empty"`
	SkipDefault bool   `json:"skipDefault" help:"do not request subnet-mask and routers by default, if options are listed" default:"false"`
}

type config struct {
	socket string
	ipv4   bool
	options
}

// families returns the options of each lease that is requested: at most one for each address family.
func (c *config) families() (list []options) {
	if c.ipv4 {
		four := c.options
		four.IPv6 = ""
		list = append(list, four)
	}
	if c.IPv6 != "" {
		list = append(list, options{IPv6: c.IPv6, Priority: c.Priority, DNS: c.DNS})
	}
	return list
}

// options are the options of a lease: the DHCP options that the client sends and requests, and the settings of the
// plugin's result. Records contain them.
type options struct {
	Request  []byte           `json:"request"`
	Provide  map[uint8][]byte `json:"provide,omitempty"`
	Priority uint32           `json:"priority,omitempty"`
	DNS      bool             `json:"dns,omitempty"`
	IPv6     string           `json:"ipv6,omitempty"` // modeDHCP or modeSLAAC; empty: the lease is an IPv4 lease
}

// Values of the key ipv6: the source of an IPv6 address.
const (
	modeDHCP  = "dhcp"
	modeSLAAC = "slaac"
)

func (o options) isV6() bool { return o.IPv6 != "" }

// parseConfig parses and checks a configuration. The daemon also calls it, with the plugin's configuration.
func parseConfig(conf []byte, args string) (*config, error) {
	var wire wireConfig
	if err := cni.Unmarshal(conf, &wire); err != nil {
		return nil, err
	}
	if err := cni.CheckSizes(wire); err != nil {
		return nil, err
	}
	if wire.IPAM == nil {
		return nil, cni.Refuse("ipam", nil, "is missing")
	}
	var problems cni.Problems
	cfg := &config{socket: cmp.Or(wire.IPAM.Socket, defaultSocket), ipv4: wire.IPAM.IPv4 == nil || *wire.IPAM.IPv4,
		options: options{IPv6: wire.IPAM.IPv6, Priority: wire.IPAM.Priority, Provide: map[uint8][]byte{},
			DNS: wire.IPAM.DNS == nil || *wire.IPAM.DNS}}
	if !filepath.IsAbs(cfg.socket) {
		problems.Add(cni.Refuse("ipam.daemonSocketPath", cfg.socket, "is not an absolute path"))
	}
	if cfg.IPv6 != "" && cfg.IPv6 != modeDHCP && cfg.IPv6 != modeSLAAC {
		problems.Add(cni.Refuse("ipam.ipv6", cfg.IPv6,
			"is not a source of IPv6 addresses").Suggest(`"dhcp" or "slaac"`))
	}
	if !cfg.ipv4 && cfg.IPv6 == "" {
		problems.Add(cni.Refuse("ipam.ipv4", false, "leaves no address to request").
			Suggest(`set "ipv6" to "dhcp" or "slaac"`))
	}
	skipsDefaults := false
	for i, r := range wire.IPAM.Request {
		skipsDefaults = skipsDefaults || r.SkipDefault
		if r.Option == "" {
			continue
		}
		code, err := parseOption(fmt.Sprintf("ipam.request[%d].option", i), r.Option)
		problems.Add(err)
		cfg.Request = append(cfg.Request, code)
	}
	if !skipsDefaults || cfg.Request == nil { // the reference's client replaces an empty list with defaults
		cfg.Request = append(cfg.Request, 1, 3) // subnet mask and routers
	}
	if cfg.DNS {
		cfg.Request = append(cfg.Request, 6, 15, 119) // name servers, domain, search list
	}
	// RFC 3442 requires 121 before 3, but servers accept any order. slices.Sort would make the program larger.
	sort.Slice(cfg.Request, func(i, j int) bool { return cfg.Request[i] < cfg.Request[j] })
	cfg.Request = slices.Compact(cfg.Request)
	for i, p := range wire.IPAM.Provide {
		key := fmt.Sprintf("ipam.provide[%d].", i)
		code, err := parseOption(key+"option", p.Option)
		problems.Add(err)
		fromArgs, _ := cni.ParseArgs(cni.PairsOf(args, p.FromArg), p.FromArg) // other pairs may be invalid
		value := cmp.Or(fromArgs[p.FromArg], p.Value)
		if len(value) > 255 {
			problems.Add(cni.Refuse(key+"value", nil, fmt.Sprintf("value too long for option %q: %q", p.Option, value)))
		}
		if value != "" {
			cfg.Provide[code] = []byte(value)
		}
	}
	return cfg, problems.Err()
}

func parseOption(key, name string) (byte, error) {
	names := map[string]byte{ // the reference plugin's names
		"dhcp-client-identifier": 61, "subnet-mask": 1, "routers": 3, "host-name": 12, "user-class": 77,
		"vendor-class-identifier": 60,
	}
	if code, known := names[name]; known {
		return code, nil
	}
	// 53 is the message type; 0 and 255 are padding and the end of the options.
	code, err := strconv.ParseUint(name, 10, 8)
	if err != nil || code == 0 || code == 53 || code == 255 {
		return 0, cni.Refuse(key, name, "is not the name or number of an option").
			Suggest("write its number from RFC 2132, for example 12")
	}
	return byte(code), nil
}

// socketOf reads the only key that DEL and GC need. Other keys may be invalid.
func socketOf(req *skel.Request) (string, error) {
	var wire struct {
		IPAM struct {
			Socket string `json:"daemonSocketPath"`
		} `json:"ipam"`
	}
	err := req.Decode(&wire)
	return cmp.Or(wire.IPAM.Socket, defaultSocket), err
}

// flags are the flags of "dhcp daemon"; see parseFlags.
type flags struct {
	socket, hostPrefix, pidFile string
	broadcast                   bool
	timeout, maxPause, addTime  time.Duration
}

func parseFlags(env skel.Env) (f flags, err error) {
	set := flag.NewFlagSet("dhcp daemon", flag.ContinueOnError)
	set.SetOutput(env.Stderr)
	set.StringVar(&f.socket, "socketpath", defaultSocket, "socket on which plugins are served")
	set.StringVar(&f.hostPrefix, "hostprefix", "", "prefix of the paths of the socket, the leases and the namespaces")
	set.StringVar(&f.pidFile, "pidfile", "", "absolute path of the file to which the process ID is written")
	set.BoolVar(&f.broadcast, "broadcast", false, "ask servers to answer by broadcast (always done for ipvlan)")
	set.DurationVar(&f.timeout, "timeout", 4*time.Second, "longest pause between two packets of an ADD")
	set.DurationVar(&f.maxPause, "resendmax", 62*time.Second, "longest pause when no ADD waits")
	set.DurationVar(&f.addTime, "resendtimeout", time.Minute, "longest time that an ADD waits for a server")
	err = set.Parse(env.Args[1:])
	f.socket = cmp.Or(f.socket, defaultSocket)
	return f, err
}
