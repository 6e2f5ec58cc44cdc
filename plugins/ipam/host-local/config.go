package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the part of a network configuration that host-local reads.
type wireConfig struct {
	IPAM          wireIPAM          `json:"ipam"`
	RuntimeConfig wireRuntimeConfig `json:"runtimeConfig"`
	Args          struct {
		CNI struct {
			IPs []string `json:"ips" help:"addresses asked for"`
		} `json:"cni"`
	} `json:"args"`
	Capabilities struct {
		IPRanges bool `json:"ipRanges" help:"the runtime sends ranges in runtimeConfig"`
	} `json:"capabilities"`
}

type wireIPAM struct {
	Type string `json:"type" help:"\"host-local\""`
	wireRange
	Ranges             [][]wireRange `json:"ranges" help:"sets of ranges; a container gets one address of each set"`
	Routes             []wireRoute   `json:"routes" help:"routes, copied to the result"`
	DataDir            string        `json:"dataDir" help:"where the reservations are (default \"/var/lib/cni/networks\")"`
	ResolvConf         string        `json:"resolvConf" help:"a resolv.conf file whose content becomes the result's dns"`
	StatusOnExhaustion string        `json:"statusOnExhaustion" help:"what STATUS does about a full range: \"warn\" (default) or \"fail\""`
}

type wireRange struct {
	Subnet     *string `json:"subnet" help:"the network, as address/length"`
	RangeStart string  `json:"rangeStart" help:"first address to give away (default: the first of the subnet)"`
	RangeEnd   string  `json:"rangeEnd" help:"last address to give away (default: the last of the subnet, without the broadcast address)"`
	Gateway    string  `json:"gateway" help:"the gateway, never given away (default: the first of the subnet)"`
}

type wireRoute struct {
	Dst      string  `json:"dst" help:"destination, as address/length"`
	GW       string  `json:"gw" help:"gateway"`
	MTU      int     `json:"mtu" help:"MTU of the route, bytes"`
	AdvMSS   int     `json:"advmss" help:"maximum segment size to advertise, bytes"`
	Priority uint32  `json:"priority" help:"metric"`
	Table    *uint32 `json:"table" help:"routing table"`
	Scope    *int    `json:"scope" help:"scope (0 global, 253 link, 254 host)"`
}

type wireRuntimeConfig struct {
	IPs      []string      `json:"ips" help:"addresses asked for"`
	IPRanges [][]wireRange `json:"ipRanges" help:"sets of ranges, before those of ipam"`
}

const defaultDataDir = "/var/lib/cni/networks"

// config is what ADD, CHECK and STATUS act on.
type config struct {
	dataDir      string
	resolvConf   string // empty = none
	sets         []rangeSet
	routes       []cni.Route
	asked        []askedAddr
	failWhenFull bool
}

// askedAddr is an address that the runtime asked for.
type askedAddr struct {
	addr netip.Addr
	code uint   // of an error about it: CodeConfig or CodeEnvironment
	key  string // where it was asked for
}

// parseConfig reads and checks the whole configuration.
func parseConfig(req *skel.Request) (*config, error) {
	var wire wireConfig
	if err := req.Decode(&wire); err != nil {
		return nil, err
	}
	cfg, err := wire.parse()
	if err != nil {
		return nil, cni.Errorf(cni.CodeConfig, "%w", err)
	}
	if err := checkFamilies(cfg.sets, req.Version); err != nil {
		return nil, cni.Errorf(cni.CodeConfig, "%w", err)
	}
	cfg.asked, err = wire.parseAsked(req.Args)
	return cfg, err
}

// parseDataDir reads the one key that DEL and GC need, and nothing of what
// may be wrong with the others.
func parseDataDir(req *skel.Request) (string, error) {
	var wire struct {
		IPAM struct {
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	if err := req.Decode(&wire); err != nil {
		return "", err
	}
	if wire.IPAM.DataDir == "" {
		return defaultDataDir, nil
	}
	return wire.IPAM.DataDir, nil
}

func (w *wireConfig) parse() (*config, error) {
	cfg := &config{dataDir: w.IPAM.DataDir, resolvConf: w.IPAM.ResolvConf}
	if cfg.dataDir == "" {
		cfg.dataDir = defaultDataDir
	}
	switch w.IPAM.StatusOnExhaustion {
	case "", "warn":
	case "fail":
		cfg.failWhenFull = true
	default:
		return nil, fmt.Errorf("ipam.statusOnExhaustion: %q is neither \"warn\" nor \"fail\"", w.IPAM.StatusOnExhaustion)
	}
	var err error
	if cfg.sets, err = w.parseSets(); err != nil {
		return nil, err
	}
	for i, r := range w.IPAM.Routes {
		route, err := r.parse(fmt.Sprintf("ipam.routes[%d]", i))
		if err != nil {
			return nil, err
		}
		cfg.routes = append(cfg.routes, route)
	}
	return cfg, nil
}

// parseSets lists all sets in the order that last_reserved_ip.N counts them.
func (w *wireConfig) parseSets() ([]rangeSet, error) {
	var sets []rangeSet
	var paths []string
	add := func(path string, list []wireRange) error {
		set, err := parseSet(path, list)
		sets, paths = append(sets, set), append(paths, path)
		return err
	}
	for i, list := range w.RuntimeConfig.IPRanges {
		if err := add(fmt.Sprintf("runtimeConfig.ipRanges[%d]", i), list); err != nil {
			return nil, err
		}
	}
	if legacy := w.IPAM.wireRange; legacy.Subnet != nil {
		r, err := legacy.parse("ipam")
		if err != nil {
			return nil, err
		}
		sets, paths = append(sets, rangeSet{r}), append(paths, "ipam.subnet")
	} else if legacy != (wireRange{}) && len(w.IPAM.Ranges) == 0 && len(sets) == 0 {
		return nil, errors.New("ipam.subnet: is missing beside rangeStart, rangeEnd or gateway")
	}
	for i, list := range w.IPAM.Ranges {
		if err := add(fmt.Sprintf("ipam.ranges[%d]", i), list); err != nil {
			return nil, err
		}
	}
	if len(sets) == 0 && !w.Capabilities.IPRanges {
		return nil, errors.New("ipam.ranges: no ranges to give addresses from")
	}
	return sets, checkOverlap(sets, paths)
}

func parseSet(path string, list []wireRange) (rangeSet, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: is an empty set", path)
	}
	var set rangeSet
	for i, w := range list {
		r, err := w.parse(fmt.Sprintf("%s[%d]", path, i))
		if err != nil {
			return nil, err
		}
		if r.start.BitLen() != list0Bits(set, r) {
			return nil, fmt.Errorf("%s[%d].subnet: %s is not of the address family of %s", path, i, r.subnet, set[0].subnet)
		}
		for j, other := range set {
			if r.overlaps(other) {
				return nil, fmt.Errorf("%s[%d]: %s overlaps with [%d], %s", path, i, r, j, other)
			}
		}
		set = append(set, r)
	}
	return set, nil
}

func list0Bits(set rangeSet, r ipRange) int {
	if len(set) > 0 {
		r = set[0]
	}
	return r.start.BitLen()
}

func checkOverlap(sets []rangeSet, paths []string) error {
	for i, set := range sets {
		for j, other := range sets[:i] {
			for _, a := range set {
				for _, b := range other {
					if a.overlaps(b) {
						return fmt.Errorf("%s: %s overlaps with %s, %s", paths[i], a, paths[j], b)
					}
				}
			}
		}
	}
	return nil
}

// checkFamilies keeps a result printable in versions that have room for one
// address of each family.
func checkFamilies(sets []rangeSet, version string) error {
	if version != "0.1.0" && version != "0.2.0" {
		return nil
	}
	seen := map[int]bool{}
	for _, set := range sets {
		family := set[0].start.BitLen()
		if seen[family] {
			return fmt.Errorf("ipam.ranges: cniVersion %s has room for one address of each family, not for the set %s too", version, set)
		}
		seen[family] = true
	}
	return nil
}

// parseAsked collects the addresses that were asked for, from all the ways
// that there are to ask, each once.
func (w *wireConfig) parseAsked(args string) ([]askedAddr, error) {
	values, err := cni.ParseArgs(args, "IP")
	if err != nil {
		return nil, err
	}
	var list []askedAddr
	add := func(code uint, key, text string) error {
		addr, err := parseAskedAddr(text)
		if err != nil {
			return cni.Errorf(code, "%s: %w", key, err)
		}
		for _, a := range list {
			if a.addr == addr {
				return nil
			}
		}
		list = append(list, askedAddr{addr, code, key})
		return nil
	}
	if ip := values["IP"]; ip != "" {
		if err := add(cni.CodeEnvironment, "CNI_ARGS IP", ip); err != nil {
			return nil, err
		}
	}
	for _, source := range []struct {
		key string
		ips []string
	}{{"args.cni.ips", w.Args.CNI.IPs}, {"runtimeConfig.ips", w.RuntimeConfig.IPs}} {
		for i, ip := range source.ips {
			if err := add(cni.CodeConfig, fmt.Sprintf("%s[%d]", source.key, i), ip); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}
