package static

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the part of a network configuration that static reads.
type wireConfig struct {
	skel.LogKey

	IPAM          *wireIPAM `json:"ipam" schema:"required"`
	RuntimeConfig struct {
		IPs []string `json:"ips" help:"addresses from the runtime, before all others" each:"format=asked" most:"64"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips" help:"addresses, before those of ipam" each:"format=asked" most:"64"`
		} `json:"cni"`
	} `json:"args"`
}

type wireIPAM struct {
	Type      string          `json:"type" help:"static"`
	Addresses []wireAddress   `json:"addresses" help:"addresses of the container" most:"64"`
	Routes    []cni.WireRoute `json:"routes" help:"routes, copied to the result" most:"1024"`
	DNS       cni.DNS         `json:"dns" help:"resolver settings, copied to the result"`
}

type wireAddress struct {
	Address string `json:"address" help:"the address, with its subnet's length" schema:"required format=prefix"`
	Gateway string `json:"gateway" help:"gateway of the address" schema:"format=address empty"`

	Parsed json.RawMessage `json:"Address" schema:"-"` // ignored: programs write the reference's struct, which has both
}

// config is what ADD and CHECK act on.
type config struct {
	ips      []cni.IP
	routes   []cni.Route
	dns      cni.DNS
	warnings []string
}

// source is an address, and where it stands.
type source struct {
	cni.IP
	key  string
	code uint // of an error about it: CodeConfig or CodeEnvironment
}

// parseConfig reads and checks all sources, also those that others replace.
func parseConfig(req *skel.Request, wire wireConfig, problems *cni.Problems) (cfg config) {
	if wire.IPAM == nil {
		problems.Add(cni.Refuse("ipam", nil, "IPAM config missing 'ipam' key"))
		return cfg
	}
	routes, err := cni.ParseRoutes(wire.IPAM.Routes)
	problems.AddIn("ipam", err)
	cfg = config{routes: routes, dns: wire.IPAM.DNS}
	list, err := wire.sources(req.Args)
	problems.Add(err)
	if problems.Err() == nil {
		problems.Add(verify(list, req.Version))
	}
	for _, s := range list {
		cfg.ips = append(cfg.ips, s.IP)
		if hasEdges(s.Address) && s.Address == s.Address.Masked() {
			cfg.warnings = append(cfg.warnings, fmt.Sprintf(
				"%s: %s is the network's own address, to which some hosts do not send", s.key, s.Address))
		}
	}
	return cfg
}

// sources lists the addresses that count: runtimeConfig.ips, else args.cni.ips, else those of ipam and of CNI_ARGS.
func (wire *wireConfig) sources(args string) (list []source, err error) {
	var problems cni.Problems
	var own []source
	for i, w := range wire.IPAM.Addresses {
		s, err := w.parse(fmt.Sprintf("ipam.addresses[%d]", i))
		problems.Add(err)
		own = append(own, s)
	}
	list = slices.Clone(own)
	add := func(key string, code uint, text string) {
		s, err := source{key: key, code: code}.parse(text, own)
		problems.Add(err)
		list = append(list, s)
	}
	values, err := cni.ParseArgs(args, "IP", "GATEWAY")
	problems.Add(err)
	split := func(r rune) bool { return r == ',' || r == ' ' }
	for _, text := range strings.FieldsFunc(values["IP"], split) {
		if len(list) > addressesMax {
			problems.Add(cni.Refuse("CNI_ARGS IP", nil, fmt.Sprintf("makes more than %d addresses", addressesMax)).
				WithCode(cni.CodeEnvironment))
			break
		}
		add("CNI_ARGS IP", cni.CodeEnvironment, text)
	}
	// Each GATEWAY is assigned to every address whose subnet contains it.
	for _, text := range strings.FieldsFunc(values["GATEWAY"], split) {
		gateway, err := cni.ParseAddr("CNI_ARGS GATEWAY", text)
		isUsed := err != nil || len(wire.Args.CNI.IPs)+len(wire.RuntimeConfig.IPs) > 0
		for i := range list {
			if list[i].Address.Masked().Contains(gateway) {
				list[i].Gateway, isUsed = gateway, true
			}
		}
		if !isUsed {
			err = cni.Refuse("CNI_ARGS GATEWAY", gateway, "is in no subnet of an address")
		}
		if err != nil {
			problems.Add(cni.AsError(err).WithCode(cni.CodeEnvironment))
		}
	}
	for _, asked := range []struct {
		key string
		ips []string
	}{{"args.cni.ips", wire.Args.CNI.IPs}, {"runtimeConfig.ips", wire.RuntimeConfig.IPs}} {
		if len(asked.ips) > 0 {
			list = nil
		}
		for i, text := range asked.ips {
			add(fmt.Sprintf("%s[%d]", asked.key, i), cni.CodeConfig, text)
		}
	}
	return list, problems.Err()
}

// addressesMax is how many addresses the configuration and CNI_ARGS may have together.
const addressesMax = 64

// noPrefix has the reference's words.
const noPrefix = "%s in CIDR notation, got: '%s'"

func (w wireAddress) parse(key string) (source, error) {
	s := source{key: key + ".address", code: cni.CodeConfig}
	var problems cni.Problems
	var err error
	if s.Address, err = cni.ParsePrefix(s.key, w.Address); err != nil {
		problems.Add(cni.Refuse(s.key, nil, fmt.Sprintf(noPrefix, "the 'address' field is expected to be", w.Address)))
	}
	if w.Gateway != "" {
		s.Gateway, err = cni.ParseAddr(key+".gateway", w.Gateway)
		problems.Add(err)
	}
	return s, problems.Err()
}

// parse reads an address that the runtime names. Without a length it gets that of the smallest subnet of
// ipam.addresses, own, that contains it. Its gateway is that of the own address in the same subnet.
func (s source) parse(text string, own []source) (source, error) {
	prefix, err := cni.ParsePrefix(s.key, text)
	if addr, noAddr := cni.ParseAddr(s.key, text); noAddr == nil {
		for _, o := range own {
			if o.Address.Masked().Contains(addr) && o.Address.Bits() > prefix.Bits() {
				prefix, err = netip.PrefixFrom(addr, o.Address.Bits()), nil
			}
		}
	}
	if err != nil {
		what := "an entry in the 'ips' field is NOT"
		if s.code == cni.CodeEnvironment {
			what = "the 'ip' field is expected to be"
		}
		return s, cni.Refuse(s.key, nil, fmt.Sprintf(noPrefix, what, text)).WithCode(s.code).
			Suggest("write it as address/length; without length it must be in a subnet of ipam.addresses")
	}
	s.Address = prefix
	same := func(o source) bool { return o.Gateway.IsValid() && o.Address.Masked() == prefix.Masked() }
	if i := slices.IndexFunc(own, same); i >= 0 {
		s.Gateway = own[i].Gateway
	}
	return s, nil
}

// verify refuses addresses that no interface can have, or not beside each other.
func verify(list []source, version string) error {
	var problems cni.Problems
	families := map[bool]bool{}
	for i, s := range list {
		addr, v4 := s.Address.Addr(), s.Address.Addr().Is4()
		refuse := func(wrong bool, format string, args ...any) {
			if wrong {
				problems.Add(cni.Refuse(s.key, s.Address, fmt.Sprintf(format, args...)).WithCode(s.code))
			}
		}
		refuse(addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback(), "is no address for a container")
		refuse(hasEdges(s.Address) && addr == cni.LastOf(s.Address), "is the broadcast address of its subnet")
		refuse(slices.ContainsFunc(list[:i], func(o source) bool { return o.Address.Addr() == addr }), "is there twice")
		refuse(s.Gateway.IsValid() && s.Gateway.Is4() != v4, "has a gateway of another family, %s", s.Gateway)
		refuse(s.Gateway == addr, "is its own gateway")
		refuse(families[v4] && (version == "0.1.0" || version == "0.2.0"),
			"CNI version %s does not support more than 1 address per family, and this is one more", version)
		families[v4] = true
	}
	return problems.Err()
}

// hasEdges reports whether a subnet has an address of its own and a broadcast address.
func hasEdges(p netip.Prefix) bool { return p.Addr().Is4() && p.Bits() < 31 }
