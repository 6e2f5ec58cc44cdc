package portmap

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"

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
	MasqAll              bool     `json:"masqAll" help:"masquerade all forwarded packets; needs snat" default:"false"`
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
		ConditionsV4: slices.Concat(w.ConditionsV4), ConditionsV6: slices.Concat(w.ConditionsV6)}} // nil for []
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

const chainNameReason = "is not a valid chain name (1 to 28 bytes, no blank, not beginning with - or !)"

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

// syntaxOf returns the backend whose syntax a condition has.
func syntaxOf(tokens []string) ipt.Backend {
	if first := tokens[0]; strings.HasPrefix(first, "-") || strings.HasPrefix(first, "!") {
		return iptables
	}
	return nftables
}

// isModprobe reports whether a token is iptables' option -M, --modprobe or an abbreviation. The options --mode and
// --monthdays of matches are not treated as abbreviations.
func isModprobe(token string) bool {
	short, isOption := strings.CutPrefix(token, "-")
	long, _, _ := strings.Cut(token, "=")
	return isOption && strings.HasPrefix(strings.TrimLeft(short, "fbvnx46"), "M") ||
		long == "--mo" || long == "--mod" || strings.HasPrefix(token, "--modp")
}

// isStatement reports whether a token belongs to a statement of nft that changes packets or sets, adds a set to the
// table, or refers to another set or chain. "@" begins the name of a set, but also a raw payload expression, such as
// @th,16,16, which is permitted.
func isStatement(token string) bool {
	_, rest, hasAt := strings.Cut(token, "@")
	headers := []string{"ll,", "nh,", "th,", "ih,"}
	for ; hasAt; _, rest, hasAt = strings.Cut(rest, "@") {
		if !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(rest, h) }) {
			return true
		}
	}
	isSeparator := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/-_.", r)
	}
	for word := range strings.FieldsFuncSeq(token, isSeparator) {
		for _, keyword := range []string{"set", "vmap", "meter", "flow", "reset", "tproxy"} {
			number, isLast := strings.CutSuffix(word, keyword) // nft separates a keyword from a number before it
			if isLast && strings.Trim(number, "0123456789abcdefABCDEF/-_.") == "" {
				return true
			}
		}
	}
	return false
}

const (
	conditionMax = 1 << 14 // bytes of all conditions of a family
	rulesMax     = 256     // rules in iptables for one port
)

// checkTokens returns an error for tokens that would end the condition or make iptables run a program. They are refused
// because tenants may write conditions.
func checkTokens(key string, tokens []string) error {
	var problems cni.Problems
	if len(strings.Join(tokens, " ")) > conditionMax {
		return cni.Refuse(key, nil, fmt.Sprintf("has more than %d bytes", conditionMax))
	}
	rules := 1
	for i, t := range tokens {
		if strings.ContainsAny(t, ".:") { // addresses: iptables adds a rule for each
			rules *= min(1+strings.Count(t, ","), rulesMax+1)
		}
		if syntaxOf(tokens) == iptables && rules > rulesMax {
			return cni.Refuse(key, nil, fmt.Sprintf("has lists of addresses that make more than %d rules", rulesMax))
		}
		path := fmt.Sprintf("%s[%d]", key, i)
		switch {
		case t == "":
			problems.Add(cni.Refuse(path, t, "is empty"))
		case strings.ContainsFunc(t, unicode.IsControl):
			problems.Add(cni.Refuse(path, t, "has a control character"))
		case syntaxOf(tokens) == nftables && strings.ContainsAny(t, ";#"):
			problems.Add(cni.Refuse(path, t, "would end the condition"))
		case syntaxOf(tokens) == nftables && isStatement(t):
			problems.Add(cni.Refuse(path, t, "is not a match: it names or changes more than the network's ports"))
		case syntaxOf(tokens) == iptables && isModprobe(t):
			problems.Add(cni.Refuse(path, t, "is not a match: it names a program that iptables runs"))
		}
	}
	return problems.Err()
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
