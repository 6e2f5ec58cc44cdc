package portmap

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type wireConfig struct {
	skel.LogKey

	Backend              *string  `json:"backend" help:"nftables or iptables (nftables, if the kernel and the other keys permit)" schema:"enum=nftables|iptables"`
	SNAT                 *bool    `json:"snat" help:"masquerade packets from the host's loopback and from the container's subnet" default:"true"`
	MasqAll              bool     `json:"masqAll" help:"masquerade all packets to the host ports; needs snat" default:"false"`
	MarkMasqBit          *int     `json:"markMasqBit" help:"fwmark bit of packets to be masqueraded, 0 to 31" default:"13" schema:"min=0 max=31"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain" help:"chain of other software that sets its own fwmark; iptables only, not with markMasqBit" schema:"format=chain"`
	ConditionsV4         []string `json:"conditionsV4" help:"matches that IPv4 packets must meet, in the syntax of nft or iptables" each:"format=token"`
	ConditionsV6         []string `json:"conditionsV6" help:"matches that IPv6 packets must meet, in the syntax of nft or iptables" each:"format=token"`
	RuntimeConfig        struct {
		PortMappings []wireMapping `json:"portMappings" help:"the mappings (capability portMappings); without them portmap does nothing" most:"16384"`
	} `json:"runtimeConfig"`
}

type wireMapping struct {
	HostPort      *int64 `json:"hostPort" help:"port of the host, 1 to 65535" schema:"required min=1 max=65535"`
	ContainerPort *int64 `json:"containerPort" help:"port of the container, 1 to 65535" schema:"required min=1 max=65535"`
	Protocol      string `json:"protocol" help:"tcp, udp or sctp" schema:"required fold=tcp|udp|sctp"`
	HostIP        string `json:"hostIP" help:"address of the host (all; 0.0.0.0 or :: are all of a family)" schema:"format=address empty"`
}

const (
	auto     = ipt.Auto
	nftables = ipt.NFTables
	iptables = ipt.IPTables
)

type config struct {
	backend  ipt.Backend // requested, or required by other keys
	options  options
	mappings []mapping
}

const defaultMarkBit = 13

func parseConfig(_ *skel.Request, w wireConfig, problems *cni.Problems) config {
	c := config{options: options{SNAT: w.SNAT == nil || *w.SNAT, MasqAll: w.MasqAll, MarkBit: defaultMarkBit,
		ConditionsV4: slices.Concat(w.ConditionsV4), ConditionsV6: slices.Concat(w.ConditionsV6)}} // [] becomes nil
	var err error
	c.backend, err = ipt.ParseBackend("backend", w.Backend)
	problems.Add(err)
	if w.MarkMasqBit != nil {
		c.options.MarkBit = *w.MarkMasqBit
	}
	if chain := w.ExternalSetMarkChain; chain != nil {
		c.options.MarkChain = *chain
		if *chain == "" {
			problems.Add(cni.Refuse("externalSetMarkChain", "", chainNameReason))
		}
		if w.MarkMasqBit != nil {
			problems.Add(cni.Refuse("markMasqBit", *w.MarkMasqBit,
				"cannot be set together with externalSetMarkChain, which decides the mark").
				Suggest("leave out one of them"))
		}
	}
	problems.Add(c.options.check())
	for _, f := range nft.Families() {
		tokens, key := c.options.conditions(f)
		problems.Add(checkMatches(key, tokens))
		if n := len(w.RuntimeConfig.PortMappings); ruleCount(tokens)*n > allRulesMax*multiportMax {
			problems.Add(cni.Refuse(key, nil, fmt.Sprintf("has lists of addresses that make more than %d rules for %d "+
				"port mappings", allRulesMax, n)))
		}
	}
	problems.Add(c.resolveBackend())
	c.mappings, err = parseMappings(w.RuntimeConfig.PortMappings)
	problems.Add(err)
	return c
}

// resolveBackend sets the backend that other keys require. It returns an error if keys contradict each other.
func (c *config) resolveBackend() error {
	keys := map[ipt.Backend][]string{}
	if c.options.MarkChain != "" {
		keys[iptables] = append(keys[iptables], "externalSetMarkChain")
	}
	for _, f := range nft.Families() {
		if tokens, key := c.options.conditions(f); len(tokens) > 0 {
			keys[syntaxOf(tokens)] = append(keys[syntaxOf(tokens)], key)
		}
	}
	if len(keys[nftables]) > 0 && len(keys[iptables]) > 0 {
		return cni.Refuse(keys[nftables][0], nil,
			fmt.Sprintf("in the syntax of nftables, but %s is for iptables", keys[iptables][0]))
	}
	for required, list := range keys {
		if c.backend != auto && c.backend != required {
			return cni.Refuse("backend", nil, fmt.Sprintf(
				"%s backend was requested but configuration contains %s-specific options %v", c.backend, required,
				list)).Suggest("leave backend out: it follows the other keys")
		}
		c.backend = required
	}
	return nil
}

// options are the keys that an attachment's rules depend on, except its ports.
type options struct {
	SNAT         bool     `json:"snat"`
	MasqAll      bool     `json:"masqAll,omitempty"`
	MarkBit      int      `json:"markBit"`
	MarkChain    string   `json:"markChain,omitempty"`
	ConditionsV4 []string `json:"conditionsV4,omitempty"`
	ConditionsV6 []string `json:"conditionsV6,omitempty"`
}

// conditions returns the conditions of a family, and the name of their key.
func (o options) conditions(f nft.Family) (tokens []string, key string) {
	if f == nft.IPv4 {
		return o.ConditionsV4, "conditionsV4"
	}
	return o.ConditionsV6, "conditionsV6"
}

// check returns an error for values that no rule can have.
func (o options) check() error {
	var problems cni.Problems
	problems.Add(cni.InRange("markMasqBit", &o.MarkBit, 0, 31))
	if o.MarkChain != "" && !ipt.IsChainName(o.MarkChain) {
		problems.Add(cni.Refuse("externalSetMarkChain", o.MarkChain, chainNameReason))
	}
	for _, f := range nft.Families() {
		tokens, key := o.conditions(f)
		problems.Add(checkTokens(key, tokens))
	}
	return problems.Err()
}

const chainNameReason = "is not a valid chain name (1 to 28 bytes, no blank, no leading - or !; not a target)"

// mapping is one entry of portMappings: a port of the host and one of the container.
type mapping struct {
	Proto         proto      `json:"proto"`
	HostIP        netip.Addr `json:"hostIP"` // zero = all addresses of both families
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"port"`
}

// proto is the number of a transport protocol.
type proto uint8

// protocol returns the protocol with this name, if it has ports and both backends support it; otherwise 0.
func protocol(name string) proto {
	for _, p := range []proto{unix.IPPROTO_SCTP, unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		if p.String() == name {
			return p
		}
	}
	return 0
}

func (p proto) String() string {
	switch p {
	case unix.IPPROTO_SCTP:
		return "sctp"
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	}
	return ""
}

// hostAddrs returns the mapping's address on the host, or the unspecified address of each family.
func (m mapping) hostAddrs() []netip.Addr {
	if m.HostIP.IsValid() {
		return []netip.Addr{m.HostIP}
	}
	return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
}

// parseMappings checks and returns the entries. It omits duplicate entries.
func parseMappings(wire []wireMapping) (out []mapping, err error) {
	targets := map[hostPort]uint16{} // container port of each host port
	var problems cni.Problems
	for i, w := range wire {
		entry := fmt.Sprintf("runtimeConfig.portMappings[%d]", i)
		m, err := w.parse(entry)
		if err != nil {
			problems.Add(err)
			continue
		}
		isNew := false
		for _, addr := range m.hostAddrs() {
			port := hostPort{Proto: m.Proto, Addr: addr, Port: m.HostPort}
			target, exists := targets[port]
			if exists && target != m.ContainerPort {
				problems.Add(cni.Refuse(entry, nil,
					fmt.Sprintf("host port %s is already forwarded to container port %d, not to %d", port, target,
						m.ContainerPort)))
			}
			if !exists {
				targets[port], isNew = m.ContainerPort, true
			}
		}
		if isNew {
			out = append(out, m)
		}
	}
	return out, problems.Err()
}

func (w wireMapping) parse(entry string) (m mapping, err error) {
	var problems cni.Problems
	port := func(key string, number *int64) uint16 {
		if number == nil {
			problems.Add(cni.Refuse(entry+key, nil, "missing"))
			return 0
		}
		problems.Add(cni.InRange(entry+key, number, 1, 65535))
		return uint16(*number)
	}
	m.HostPort, m.ContainerPort = port(".hostPort", w.HostPort), port(".containerPort", w.ContainerPort)
	m.Proto = protocol(strings.ToLower(w.Protocol))
	switch {
	case w.Protocol == "":
		problems.Add(cni.Refuse(entry+".protocol", nil, "missing").
			Suggest(`write "protocol": "tcp", "udp" or "sctp"`))
	case m.Proto == 0:
		problems.Add(cni.Refuse(entry+".protocol", w.Protocol, "is not tcp, udp or sctp"))
	}
	if w.HostIP != "" {
		m.HostIP, err = cni.ParseAddr(entry+".hostIP", w.HostIP)
		problems.Add(err)
	}
	if m.HostIP.IsMulticast() || m.HostIP == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		problems.Add(cni.Refuse(entry+".hostIP", w.HostIP, "is not an address that a host can have"))
	}
	return m, problems.Err()
}
