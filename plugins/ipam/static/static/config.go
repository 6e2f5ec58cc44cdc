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

	Parsed json.RawMessage `json:"Address" schema:"-"` // ignored; programs that encode the reference plugin's struct write it
}

type config struct {
	ips      []cni.IP
	routes   []cni.Route
	dns      cni.DNS
	warnings []string
}

// source is an address and where it comes from.
type source struct {
	cni.IP
	key  string // for errors
	code uint   // code of errors about it: CodeConfig or CodeEnvironment
}

// parseConfig parses and checks all sources, including those that others replace.
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
		if hasBroadcast(s.Address) && s.Address == s.Address.Masked() {
			cfg.warnings = append(cfg.warnings, fmt.Sprintf(
				"%s: %s is the network address, to which some hosts do not send packets", s.key, s.Address))
		}
	}
	return cfg
}

// sources returns the addresses of runtimeConfig.ips. If it is empty, it returns the addresses of args.cni.ips or, if
// both are empty, the addresses of ipam.addresses and of IP in CNI_ARGS.
func (wire *wireConfig) sources(args string) (list []source, err error) {
	var problems cni.Problems
	var configured []source
	for i, w := range wire.IPAM.Addresses {
		s, err := w.parse(fmt.Sprintf("ipam.addresses[%d]", i))
		problems.Add(err)
		configured = append(configured, s)
	}
	list = slices.Clone(configured)
	add := func(key string, code uint, text string) {
		s, err := source{key: key, code: code}.parse(text, configured)
		problems.Add(err)
		list = append(list, s)
	}
	values, err := cni.ParseArgs(args, "IP", "GATEWAY")
	problems.Add(err)
	split := func(r rune) bool { return r == ',' || r == ' ' }
	for _, text := range strings.FieldsFunc(values["IP"], split) {
		if len(list) >= maxAddresses {
			problems.Add(cni.Refuse("CNI_ARGS IP", nil, fmt.Sprintf("makes more than %d addresses", maxAddresses)).
				WithCode(cni.CodeEnvironment))
			break
		}
		add("CNI_ARGS IP", cni.CodeEnvironment, text)
	}
	// Each gateway in GATEWAY is assigned to every address whose subnet contains it.
	for _, text := range strings.FieldsFunc(values["GATEWAY"], split) {
		gateway, err := cni.ParseAddr("CNI_ARGS GATEWAY", text)
		isUsed := err != nil || len(wire.Args.CNI.IPs)+len(wire.RuntimeConfig.IPs) > 0
		for i := range list {
			if list[i].Address.Masked().Contains(gateway) {
				list[i].Gateway, isUsed = gateway, true
			}
		}
		if !isUsed {
			err = cni.Refuse("CNI_ARGS GATEWAY", gateway, "is not in the subnet of any address")
		}
		if err != nil {
			problems.Add(cni.AsError(err).WithCode(cni.CodeEnvironment))
		}
	}
	for _, override := range []struct {
		key string
		ips []string
	}{{"args.cni.ips", wire.Args.CNI.IPs}, {"runtimeConfig.ips", wire.RuntimeConfig.IPs}} {
		if len(override.ips) > 0 {
			list = nil
		}
		for i, text := range override.ips {
			add(fmt.Sprintf("%s[%d]", override.key, i), cni.CodeConfig, text)
		}
	}
	return list, problems.Err()
}

const maxAddresses = 64 // limits the addresses of the configuration and CNI_ARGS together

const notCIDR = "%s in CIDR notation, got: '%s'" // format of the reference plugin's message

func (w wireAddress) parse(key string) (source, error) {
	s := source{key: key + ".address", code: cni.CodeConfig}
	var problems cni.Problems
	var err error
	if s.Address, err = cni.ParsePrefix(s.key, w.Address); err != nil {
		problems.Add(cni.Refuse(s.key, nil, fmt.Sprintf(notCIDR, "the 'address' field is expected to be", w.Address)))
	}
	if w.Gateway != "" {
		s.Gateway, err = cni.ParseAddr(key+".gateway", w.Gateway)
		problems.Add(err)
	}
	return s, problems.Err()
}

// parse parses an address that the runtime lists. configured has the addresses of ipam.addresses. An address without a
// length gets the length of the smallest configured subnet that contains it. Every address gets the gateway of the
// configured address in the same subnet.
func (s source) parse(text string, configured []source) (source, error) {
	prefix, err := cni.ParsePrefix(s.key, text)
	if addr, noAddr := cni.ParseAddr(s.key, text); noAddr == nil {
		for _, o := range configured {
			if o.Address.Masked().Contains(addr) && o.Address.Bits() > prefix.Bits() {
				prefix, err = netip.PrefixFrom(addr, o.Address.Bits()), nil
			}
		}
	}
	if err != nil {
		subject := "an entry in the 'ips' field is NOT"
		if s.code == cni.CodeEnvironment {
			subject = "the 'ip' field is expected to be"
		}
		return s, cni.Refuse(s.key, nil, fmt.Sprintf(notCIDR, subject, text)).WithCode(s.code).
			Suggest("write it as address/length; without a length it must be in a subnet of ipam.addresses")
	}
	s.Address = prefix
	isSameSubnet := func(o source) bool { return o.Gateway.IsValid() && o.Address.Masked() == prefix.Masked() }
	if i := slices.IndexFunc(configured, isSameSubnet); i >= 0 {
		s.Gateway = configured[i].Gateway
	}
	return s, nil
}

// verify refuses addresses that an interface cannot have, and combinations of addresses that it cannot have.
func verify(list []source, version string) error {
	var problems cni.Problems
	families := map[bool]bool{}
	for i, s := range list {
		addr, v4 := s.Address.Addr(), s.Address.Addr().Is4()
		refuseIf := func(wrong bool, format string, args ...any) {
			if wrong {
				problems.Add(cni.Refuse(s.key, s.Address, fmt.Sprintf(format, args...)).WithCode(s.code))
			}
		}
		refuseIf(addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback(), "is not an address for a container")
		refuseIf(hasBroadcast(s.Address) && addr == cni.LastOf(s.Address), "is the broadcast address of its subnet")
		refuseIf(slices.ContainsFunc(list[:i], func(o source) bool { return o.Address.Addr() == addr }),
			"is listed twice")
		refuseIf(s.Gateway.IsValid() && s.Gateway.Is4() != v4, "has a gateway of another family, %s", s.Gateway)
		refuseIf(s.Gateway == addr, "is its own gateway")
		refuseIf(families[v4] && (version == "0.1.0" || version == "0.2.0"),
			"CNI version %s does not support more than 1 address per family, and this is one more", version)
		families[v4] = true
	}
	return problems.Err()
}

// hasBroadcast reports whether a subnet has a network address and a broadcast address.
func hasBroadcast(p netip.Prefix) bool { return p.Addr().Is4() && p.Bits() < 31 }
