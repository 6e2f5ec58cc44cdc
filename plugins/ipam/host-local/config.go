package main

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the part of a network configuration that host-local reads.
type wireConfig struct {
	skel.Keys

	IPAM          wireIPAM          `json:"ipam"`
	RuntimeConfig wireRuntimeConfig `json:"runtimeConfig"`
	Args          struct {
		CNI struct {
			IPs []string `json:"ips" help:"addresses asked for" each:"format=asked"`
		} `json:"cni"`
	} `json:"args"`
	Capabilities struct {
		IPRanges bool `json:"ipRanges" help:"the runtime sends ranges in runtimeConfig" default:"false"`
	} `json:"capabilities"`
}

type wireIPAM struct {
	Type string `json:"type" help:"host-local"`
	wireRange
	Ranges             [][]wireRange `json:"ranges" help:"sets of ranges; a container gets one address of each set"`
	Routes             []wireRoute   `json:"routes" help:"routes, copied to the result"`
	DataDir            string        `json:"dataDir" help:"where the reservations are" default:"/var/lib/cni/networks"`
	ResolvConf         string        `json:"resolvConf" help:"a resolv.conf file whose content becomes the result's dns"`
	StatusOnExhaustion string        `json:"statusOnExhaustion" help:"what STATUS does about a full range: warn or fail" default:"warn" schema:"enum=warn|fail empty"`
}

type wireRange struct {
	Subnet     *string `json:"subnet" help:"the network, as address/length" schema:"required format=prefix"`
	RangeStart string  `json:"rangeStart" help:"first address to give away (the first of the subnet)" schema:"format=address empty"`
	RangeEnd   string  `json:"rangeEnd" help:"last address to give away (the last of the subnet, without the broadcast address)" schema:"format=address empty"`
	Gateway    string  `json:"gateway" help:"the gateway, never given away (the first of the subnet)" schema:"format=address empty"`
}

type wireRoute struct {
	Dst      string  `json:"dst" help:"destination, as address/length" schema:"required format=prefix"`
	GW       string  `json:"gw" help:"gateway (that of the range)" schema:"format=address empty"`
	MTU      int     `json:"mtu" help:"MTU of the route, bytes" schema:"min=0 max=2147483647"`
	AdvMSS   int     `json:"advmss" help:"maximum segment size to advertise, bytes" schema:"min=0 max=2147483647"`
	Priority uint32  `json:"priority" help:"metric"`
	Table    *uint32 `json:"table" help:"routing table"`
	Scope    *int    `json:"scope" help:"scope (0 global, 253 link, 254 host)" schema:"min=0 max=255"`
}

type wireRuntimeConfig struct {
	IPs      []string      `json:"ips" help:"addresses asked for" each:"format=asked"`
	IPRanges [][]wireRange `json:"ipRanges" help:"sets of ranges, before those of ipam"`
}

const defaultDataDir = "/var/lib/cni/networks"

// nameMax is how long the name of a file may be, in bytes.
const nameMax = 255

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
	var problems cni.Problems
	problems.Add(req.Decode(&wire))
	cfg, err := wire.parse()
	problems.Add(err)
	problems.Add(checkFamilies(cfg.sets, req.Version))
	if len(req.Network) > nameMax {
		problems.Add(cni.Refuse("name", req.Network, fmt.Sprintf("is longer than %d bytes, and no directory can be called so", nameMax)))
	}
	cfg.asked, err = wire.parseAsked(req.Args)
	problems.Add(err)
	return cfg, problems.Err()
}

// parse is parseConfig, and refuses addresses that were asked for and are in no
// range. The ranges may be the runtime's to send.
func parse(req *skel.Request) (*config, error) {
	cfg, err := parseConfig(req)
	if err == nil && len(cfg.sets) > 0 {
		_, err = assign(cfg.sets, cfg.asked)
	}
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
	var problems cni.Problems
	switch w.IPAM.StatusOnExhaustion {
	case "", "warn":
	case "fail":
		cfg.failWhenFull = true
	default:
		problems.Add(cni.Refuse("ipam.statusOnExhaustion", w.IPAM.StatusOnExhaustion, `is neither "warn" nor "fail"`))
	}
	var err error
	cfg.sets, err = w.parseSets()
	problems.Add(err)
	for i, r := range w.IPAM.Routes {
		route, err := r.parse(fmt.Sprintf("ipam.routes[%d]", i))
		problems.Add(err)
		cfg.routes = append(cfg.routes, route)
	}
	return cfg, problems.Err()
}

// parseSets lists all sets in the order that last_reserved_ip.N counts them.
func (w *wireConfig) parseSets() ([]rangeSet, error) {
	var sets []rangeSet
	var paths []string
	var problems cni.Problems
	add := func(path string, set rangeSet, err error) {
		if err == nil {
			sets, paths = append(sets, set), append(paths, path)
		}
		problems.Add(err)
	}
	for i, list := range w.RuntimeConfig.IPRanges {
		path := fmt.Sprintf("runtimeConfig.ipRanges[%d]", i)
		set, err := parseSet(path, list)
		add(path, set, err)
	}
	if legacy := w.IPAM.wireRange; legacy.Subnet != nil {
		r, err := legacy.parse("ipam")
		add("ipam.subnet", rangeSet{r}, err)
	} else if legacy != (wireRange{}) && len(w.IPAM.Ranges) == 0 && len(w.RuntimeConfig.IPRanges) == 0 {
		problems.Add(cni.Refuse("ipam.subnet", nil, "is missing beside rangeStart, rangeEnd or gateway"))
	}
	for i, list := range w.IPAM.Ranges {
		path := fmt.Sprintf("ipam.ranges[%d]", i)
		set, err := parseSet(path, list)
		add(path, set, err)
	}
	if len(sets) == 0 && problems.Err() == nil && !w.Capabilities.IPRanges {
		problems.Add(cni.Refuse("ipam.ranges", nil, "no ranges to give addresses from").
			Suggest(`write "ranges": [[{"subnet": "10.1.0.0/16"}]]`))
	}
	problems.Add(checkOverlap(sets, paths))
	return sets, problems.Err()
}

func parseSet(path string, list []wireRange) (rangeSet, error) {
	if len(list) == 0 {
		return nil, cni.Refuse(path, nil, "is an empty set")
	}
	var set rangeSet
	var problems cni.Problems
	for i, w := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		r, err := w.parse(at)
		if err != nil {
			problems.Add(err)
			continue
		}
		if len(set) > 0 && r.start.BitLen() != set[0].start.BitLen() {
			problems.Add(cni.Refuse(at+".subnet", r.subnet, fmt.Sprintf("is not of the address family of %s", set[0].subnet)).
				Suggest("give each family a set of its own"))
			continue
		}
		for j, other := range set {
			if r.overlaps(other) {
				problems.Add(cni.Refuse(at, r, fmt.Sprintf("overlaps with [%d], %s", j, other)))
			}
		}
		set = append(set, r)
	}
	return set, problems.Err()
}

func checkOverlap(sets []rangeSet, paths []string) error {
	var problems cni.Problems
	for i, set := range sets {
		for j, other := range sets[:i] {
			for _, a := range set {
				for _, b := range other {
					if a.overlaps(b) {
						problems.Add(cni.Refuse(paths[i], a, fmt.Sprintf("overlaps with %s, %s", paths[j], b)))
					}
				}
			}
		}
	}
	return problems.Err()
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
			return cni.Refuse("ipam.ranges", nil, fmt.Sprintf("CNI version %s does not support more than 1 address per family, and the set %s is one more", version, set)).
				Suggest("use cniVersion 0.3.0 or later")
		}
		seen[family] = true
	}
	return nil
}

// parseAsked collects the addresses that were asked for, from all the ways
// that there are to ask, each once.
func (w *wireConfig) parseAsked(args string) ([]askedAddr, error) {
	var problems cni.Problems
	values, err := cni.ParseArgs(args, "IP")
	problems.Add(err)
	var list []askedAddr
	add := func(code uint, key, text string) {
		addr, err := parseAskedAddr(text)
		if err != nil {
			problems.Add(cni.Refuse(key, text, err.Error()).WithCode(code))
			return
		}
		if !slices.ContainsFunc(list, func(a askedAddr) bool { return a.addr == addr }) {
			list = append(list, askedAddr{addr, code, key})
		}
	}
	if ip := values["IP"]; ip != "" {
		add(cni.CodeEnvironment, "CNI_ARGS IP", ip)
	}
	for _, source := range []struct {
		key string
		ips []string
	}{{"args.cni.ips", w.Args.CNI.IPs}, {"runtimeConfig.ips", w.RuntimeConfig.IPs}} {
		for i, ip := range source.ips {
			add(cni.CodeConfig, fmt.Sprintf("%s[%d]", source.key, i), ip)
		}
	}
	return list, problems.Err()
}
