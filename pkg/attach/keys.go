package attach

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// MTUKeys are the configuration keys of an interface's MTU.
type MTUKeys struct {
	MTU     json.RawMessage `json:"mtu" help:"bytes, or \"auto\": the smallest of the links of the host's default routes (the kernel's, or the master's)" schema:"type=integer min=68 max=65535 zero or=auto"`
	MTUFrom string          `json:"mtuFrom" help:"link of the host whose MTU \"auto\" takes instead" schema:"format=ifname empty"`
}

// LinkKeys are the configuration keys of plugins that make an interface.
type LinkKeys struct {
	MTUKeys
	DNS  cni.DNS `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	Args struct {
		CNI struct {
			MAC string `json:"mac" help:"MAC address of the container's end; wins over MAC in CNI_ARGS" schema:"format=mac empty"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac" help:"MAC address of the container's end (capability mac); wins over all" schema:"format=mac empty"`
	} `json:"runtimeConfig"`
}

// IPAMKeys are the configuration keys of plugins that need no IPAM plugin.
type IPAMKeys struct {
	IPAM IPAM `json:"ipam" help:"the IPAM plugin's part (none: layer 2 only)"`
}

// IPAM is the key ipam of plugins that need no IPAM plugin.
type IPAM struct {
	Type string `json:"type" help:"IPAM plugin that gives the addresses" schema:"format=file empty"`
}

// Check refuses a type that can be no plugin's name.
func (i IPAM) Check() error {
	if i.Type == "" {
		return nil
	}
	return ipam.CheckType(i.Type)
}

// RequiredIPAM is the key ipam of plugins that need an IPAM plugin.
type RequiredIPAM struct {
	Type string `json:"type" help:"IPAM plugin that gives the addresses; required" schema:"required format=file"`
}

// Check refuses a type that is missing, for the reason given, or can be no plugin's name. It suggests the example.
func (i RequiredIPAM) Check(reason, example string) error {
	if i.Type == "" {
		return cni.Refuse("ipam.type", nil, "missing; "+reason).Suggest(`write "ipam": {"type": %q, ...}`, example)
	}
	return ipam.CheckType(i.Type)
}

// LinkConfig is how an interface is to be made.
type LinkConfig struct {
	Netkit bool             // of a pair: of the kind netkit instead of veth
	MTU    int              // bytes; 0 = the kernel's, or not yet known
	Auto   *string          // the link that MTU is to come from, empty for the default routes'; nil = MTU is settled
	MAC    net.HardwareAddr // of the container's end; nil = random
	DNS    cni.DNS          // of the result, instead of IPAM's
	// Given has addresses and routes for where there is no IPAM plugin; nil = layer 2 then.
	Given *cni.Result
}

// Parse checks the keys, and the plugin's own key mac (empty where it has none). The first source of the MAC
// address wins. A bad value is code 7, in CNI_ARGS code 4; CNI_ARGS that another key overrides are not looked at.
func (k LinkKeys) Parse(problems *cni.Problems, cniArgs, mac string) LinkConfig {
	l := LinkConfig{DNS: k.DNS}
	l.MTU, l.Auto = k.MTUKeys.parse(problems)
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

// mtuMin6 is the smallest MTU of a link that carries IPv6, in bytes (RFC 8200,
// section 5). Below it the kernel has no IPv6 on a link at all.
const mtuMin6 = 1280

// Result begins a result with IPAM's answer: the addresses become those of the index-th
// interface, the DNS the configuration's. An mtu that is too small for IPv6 is code 7.
func (l LinkConfig) Result(answer *cni.Result, index int) (*cni.Result, error) {
	res := answer.Clone()
	for i := range res.IPs {
		res.IPs[i].Interface = new(index)
		if addr := res.IPs[i].Address; l.MTU != 0 && l.MTU < mtuMin6 && addr.Addr().Is6() {
			return nil, cni.Errorf(cni.CodeConfig, "mtu: %d is too small for IPv6 (%d), which address %s needs",
				l.MTU, mtuMin6, addr)
		}
	}
	if l.DNS.IsSet() {
		res.DNS = l.DNS
	}
	return res, nil
}

// MasqKeys are the configuration keys of the masquerade.
type MasqKeys struct {
	IPMasq        json.RawMessage `json:"ipMasq" help:"masquerade what leaves the containers' subnets; \"v4\" or \"v6\": of that family alone" default:"false" schema:"type=boolean or=v4|v6"`
	IPMasqBackend *string         `json:"ipMasqBackend" help:"nftables or iptables (nftables, where the kernel has it)" schema:"enum=nftables|iptables"`
	Exclude       []string        `json:"masqExclude" help:"destinations that are not masqueraded, each an address or a network" each:"format=network"`
	RandomFully   bool            `json:"masqRandomFully" help:"choose the source ports of masqueraded packets at random" default:"false"`
	Ports         string          `json:"masqPorts" help:"the source ports that masqueraded packets of TCP and UDP get, as first-last" schema:"format=ports empty"`
}

// Masq says whether ADD masquerades, what, and with what.
type Masq struct {
	On      bool
	Only    nft.Family // 0 = both families
	Backend ipt.Backend
	Link    string // the host's interface that the packets come from, or its VRF; empty: the host end
	masq.Special
}

// Parse checks the keys.
func (k MasqKeys) Parse(problems *cni.Problems) Masq {
	backend, err := ipt.ParseBackend("ipMasqBackend", k.IPMasqBackend)
	problems.Add(err)
	m := Masq{Backend: backend, Special: masq.Special{RandomFully: k.RandomFully}}
	family, err := cni.ParseEither("ipMasq", k.IPMasq, &m.On, "v4", "v6")
	problems.Add(err)
	switch family {
	case "v4":
		m.On, m.Only = true, nft.IPv4
	case "v6":
		m.On, m.Only = true, nft.IPv6
	}
	needsMasq := func(key string, isGiven bool, value any) {
		if isGiven && !m.On {
			problems.Add(cni.Refuse(key, value, "means nothing without ipMasq").Suggest("leave it out"))
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

// parsePorts reads a key, "first-last"; it is zero without a value.
func parsePorts(key, text string) (ports [2]uint16, err error) {
	if text == "" {
		return ports, nil
	}
	first, last, _ := strings.Cut(text, "-")
	for i, end := range []string{first, last} {
		n, err := strconv.ParseUint(end, 10, 16)
		if err != nil || n == 0 {
			return ports, cni.Refuse(key, text, "is no range of ports").Suggest(`write it as "32768-60999"`)
		}
		ports[i] = uint16(n)
	}
	if ports[0] > ports[1] {
		return ports, cni.Refuse(key, text, "ends before it begins")
	}
	return ports, nil
}

// of is the masquerade of an attachment's addresses.
func (m Masq) of(a cni.Attachment, ips []cni.IP) masq.Config {
	addrs := slices.DeleteFunc(cni.Addresses(ips), func(p netip.Prefix) bool {
		return m.Only != 0 && nft.FamilyOf(p.Addr()) != m.Only
	})
	return masq.Config{Attachment: a, Backend: m.Backend, Link: m.Link, Addrs: addrs, Special: m.Special}
}

// Ingress is the interface by which rules behind routing know the packets that come from a link: its VRF if it has one.
func Ingress(host *rtnl.Conn, link rtnl.Link) (string, error) {
	if link.Master == 0 {
		return link.Name, nil
	}
	vrf, err := host.LinkByIndex(link.Master)
	return vrf.Name, err
}

// from sets the masquerade's interface to that of the host end, if the plugin has set none.
func (m *Masq) from(host *rtnl.Conn, hostEnd rtnl.Link) (err error) {
	if m.Link == "" {
		m.Link, err = Ingress(host, hostEnd)
	}
	return err
}
