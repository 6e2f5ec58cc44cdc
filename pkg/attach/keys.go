package attach

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// MTUKeys are the configuration keys of an interface's MTU.
type MTUKeys struct {
	MTU     json.RawMessage `json:"mtu" help:"bytes, or \"auto\": the smallest MTU of the links of the host's default routes (the kernel's, or the master's)" schema:"type=integer min=68 max=65535 zero or=auto"`
	MTUFrom string          `json:"mtuFrom" help:"link of the host whose MTU \"auto\" uses instead" schema:"format=ifname empty"`
}

// LinkKeys are the other configuration keys of plugins that create an interface.
type LinkKeys struct {
	DNS  cni.DNS `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	Args struct {
		CNI struct {
			MAC string `json:"mac" help:"MAC address of the container's interface; takes precedence over MAC in CNI_ARGS" schema:"format=mac empty"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac" help:"MAC address of the container's interface (capability mac); takes precedence over all others" schema:"format=mac empty"`
	} `json:"runtimeConfig"`
}

// IPAMKeys are the configuration keys of plugins that need no IPAM plugin.
type IPAMKeys struct {
	IPAM IPAM `json:"ipam" help:"the IPAM plugin's part (none: layer 2 only)"`
}

// IPAM is the key ipam of plugins that need no IPAM plugin.
type IPAM struct {
	Type string `json:"type" help:"IPAM plugin that assigns the addresses" schema:"format=file empty"`
}

// Check returns code 7 for a type that cannot be the name of a plugin.
func (i IPAM) Check() error {
	if i.Type == "" {
		return nil
	}
	return ipam.CheckType(i.Type)
}

// RequiredIPAM is the key ipam of plugins that need an IPAM plugin.
type RequiredIPAM struct {
	Type string `json:"type" help:"IPAM plugin that assigns the addresses; required" schema:"required format=file"`
}

// Check returns code 7 for a type that is missing or cannot be the name of a plugin. For a missing type, the error
// contains reason, which explains why the type is required, and suggests example.
func (i RequiredIPAM) Check(reason, example string) error {
	if i.Type == "" {
		return cni.Refuse("ipam.type", nil, "missing; "+reason).Suggest(`write "ipam": {"type": %q, ...}`, example)
	}
	return ipam.CheckType(i.Type)
}

// LinkConfig describes the interface that ADD creates.
type LinkConfig struct {
	Netkit   bool             // the pair is of kind netkit instead of veth
	MTU      int              // bytes; 0 = the kernel's choice, or "auto" before ResolveMTU
	AutoFrom *string          // key mtuFrom, for the MTU "auto"; nil = the MTU is not "auto"
	MAC      net.HardwareAddr // of the container's interface; nil = random
	DNS      cni.DNS          // for the result, instead of IPAM's
	Fallback *cni.Result      // addresses and routes to use if there is no IPAM plugin; nil = none
	OwnAddrs []cni.IP         // addresses that the interface already has; the result lists them after IPAM's
}

// Parse checks the keys, and the value of the plugin's own key mac (empty for a plugin without that key). The MAC
// address comes from the first of: runtimeConfig.mac, args.cni.mac, CNI_ARGS, mac. An invalid value is code 7, or code
// 4 in CNI_ARGS. MAC in CNI_ARGS is not checked if another key overrides it.
func (k LinkKeys) Parse(problems *cni.Problems, mtu MTUKeys, cniArgs, mac string) LinkConfig {
	l := LinkConfig{DNS: k.DNS}
	l.MTU, l.AutoFrom = mtu.parse(problems)
	args, err := cni.ParseArgs(cniArgs, "MAC")
	problems.Add(err)
	if k.RuntimeConfig.MAC != "" || k.Args.CNI.MAC != "" {
		args = nil
	}
	for _, source := range []struct {
		code      uint
		key, text string
	}{
		{cni.CodeConfig, "runtimeConfig.mac", k.RuntimeConfig.MAC},
		{cni.CodeConfig, "args.cni.mac", k.Args.CNI.MAC},
		{cni.CodeEnvironment, "CNI_ARGS MAC", args["MAC"]},
		{cni.CodeConfig, "mac", mac},
	} {
		address, err := cni.ParseMAC(source.code, source.key, source.text)
		if err == nil && source.text != "" && len(address) != 6 {
			err = cni.RefuseMAC(source.code, source.key, source.text,
				fmt.Sprintf("it has %d bytes, not 6", len(address)))
		}
		problems.Add(err)
		if l.MAC == nil {
			l.MAC = address
		}
	}
	return l
}

// MTUMin6 is the smallest MTU of a link that carries IPv6, in bytes (RFC 8200, section 5). The kernel disables IPv6 on
// a link with a smaller MTU.
const MTUMin6 = 1280

// Result returns a copy of IPAM's answer in which the addresses belong to the interface with this index, and the DNS is
// the configured one. It returns code 7 if the MTU is too small for an IPv6 address.
func (l LinkConfig) Result(answer *cni.Result, index int) (*cni.Result, error) {
	res := answer.Clone()
	for i := range res.IPs {
		res.IPs[i].Interface = new(index)
		if addr := res.IPs[i].Address; l.MTU != 0 && l.MTU < MTUMin6 && addr.Addr().Is6() {
			return nil, cni.Errorf(cni.CodeConfig, "mtu: %d is too small for IPv6 (%d), which address %s needs",
				l.MTU, MTUMin6, addr)
		}
	}
	if l.DNS.IsSet() {
		res.DNS = l.DNS
	}
	return res, nil
}

// MasqKeys are the configuration keys of the masquerade.
type MasqKeys struct {
	IPMasq        json.RawMessage `json:"ipMasq" help:"masquerade packets that leave the containers' subnets; \"v4\" or \"v6\": only of that family" default:"false" schema:"type=boolean or=v4|v6"`
	IPMasqBackend *string         `json:"ipMasqBackend" help:"nftables or iptables (nftables, if the kernel has it)" schema:"enum=nftables|iptables"`
	Exclude       []string        `json:"masqExclude" help:"destinations that are not masqueraded, each an address or a network" each:"format=network"`
	RandomFully   bool            `json:"masqRandomFully" help:"choose the source ports of masqueraded packets at random" default:"false"`
	Ports         string          `json:"masqPorts" help:"source ports of masqueraded TCP and UDP packets, as first-last" schema:"format=ports empty"`
}

// Parse checks the keys.
func (k MasqKeys) Parse(problems *cni.Problems) Masq {
	backend, err := ipt.ParseBackend("ipMasqBackend", k.IPMasqBackend)
	problems.Add(err)
	m := Masq{Backend: backend, Special: masq.Special{RandomFully: k.RandomFully}}
	family, err := cni.ParseEither("ipMasq", k.IPMasq, &m.Enabled, "v4", "v6")
	problems.Add(err)
	switch family {
	case "v4":
		m.Enabled, m.Family = true, nft.IPv4
	case "v6":
		m.Enabled, m.Family = true, nft.IPv6
	}
	needsMasq := func(key string, isSet bool, value any) {
		if isSet && !m.Enabled {
			problems.Add(cni.Refuse(key, value, "has no effect without ipMasq").Suggest("leave it out"))
		}
	}
	m.Exclude, err = cni.ParseNetworks("masqExclude", k.Exclude)
	problems.Add(err)
	needsMasq("masqExclude", len(k.Exclude) > 0, nil)
	needsMasq("masqRandomFully", k.RandomFully, true)
	m.Ports, err = parsePorts("masqPorts", k.Ports)
	problems.Add(err)
	needsMasq("masqPorts", k.Ports != "", k.Ports)
	return m
}

// parsePorts parses the value "first-last" of key. It returns zeros for an empty value.
func parsePorts(key, text string) (ports [2]uint16, err error) {
	if text == "" {
		return ports, nil
	}
	first, last, _ := strings.Cut(text, "-")
	for i, end := range []string{first, last} {
		n, err := strconv.ParseUint(end, 10, 16)
		if err != nil || n == 0 {
			return ports, cni.Refuse(key, text, "is not a port range").Suggest(`write it as "32768-60999"`)
		}
		ports[i] = uint16(n)
	}
	if ports[0] > ports[1] {
		return ports, cni.Refuse(key, text, "ends before it begins")
	}
	return ports, nil
}
