package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.Keys

	Backend              *string  `json:"backend" help:"nftables or iptables (nftables, where the kernel and the other keys permit)" schema:"enum=nftables|iptables"`
	SNAT                 *bool    `json:"snat" help:"masquerade what comes from the host's loopback and from the container's own subnet" default:"true"`
	MasqAll              bool     `json:"masqAll" help:"masquerade everything that is forwarded; needs snat" default:"false"`
	MarkMasqBit          *int     `json:"markMasqBit" help:"bit of the fwmark that asks for masquerading, 0 to 31" default:"13" schema:"min=0 max=31"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain" help:"chain of other software that marks what is to be masqueraded; iptables only, not with markMasqBit" schema:"format=chain"`
	ConditionsV4         []string `json:"conditionsV4" help:"matches that IPv4 packets must meet, in the backend's syntax" each:"format=token"`
	ConditionsV6         []string `json:"conditionsV6" help:"matches that IPv6 packets must meet, in the backend's syntax" each:"format=token"`
	RuntimeConfig        struct {
		PortMappings []wireMapping `json:"portMappings" help:"the ports (capability portMappings); none: nothing is done"`
	} `json:"runtimeConfig"`
}

type wireMapping struct {
	HostPort      *int64 `json:"hostPort" help:"port of the host, 1 to 65535" schema:"required min=1 max=65535"`
	ContainerPort *int64 `json:"containerPort" help:"port of the container, 1 to 65535" schema:"required min=1 max=65535"`
	Protocol      string `json:"protocol" help:"tcp, udp or sctp" schema:"required fold=tcp|udp|sctp"`
	HostIP        string `json:"hostIP" help:"address of the host (all; 0.0.0.0 and :: are all of a family)" schema:"format=address empty"`
}

// backend is where the rules are.
type backend string

const (
	auto     backend = ""
	nftables backend = "nftables"
	iptables backend = "iptables"
)

// config is the configuration with every value checked.
type config struct {
	asked    backend // by the key backend
	needed   backend // by other keys, which exist in one backend only
	options  options
	mappings []mapping
}

// options are the keys on which an attachment's rules depend, besides its ports.
type options struct {
	SNAT         bool     `json:"snat"`
	MasqAll      bool     `json:"masqAll,omitempty"`
	MarkBit      int      `json:"markBit"`
	MarkChain    string   `json:"markChain,omitempty"`
	ConditionsV4 []string `json:"conditionsV4,omitempty"`
	ConditionsV6 []string `json:"conditionsV6,omitempty"`
}

// conditions are those of a family.
func (o options) conditions(v4 bool) []string {
	if v4 {
		return o.ConditionsV4
	}
	return o.ConditionsV6
}

const (
	defaultMarkBit = 13
	chainNameMax   = 28 // bytes that iptables takes
)

// parseConfig reads and checks the configuration. Everything that it refuses
// is code 7 with key and value.
func parseConfig(req *skel.Request) (config, error) {
	var w wireConfig
	if err := req.Decode(&w); err != nil {
		return config{}, err
	}
	var problems cni.Problems
	c := config{options: options{SNAT: true, MasqAll: w.MasqAll, MarkBit: defaultMarkBit,
		ConditionsV4: slices.Concat(w.ConditionsV4), ConditionsV6: slices.Concat(w.ConditionsV6)}} // nil for []
	if w.SNAT != nil {
		c.options.SNAT = *w.SNAT
	}
	if w.Backend != nil {
		c.asked = backend(*w.Backend)
		if c.asked != nftables && c.asked != iptables {
			problems.Add(cni.Refuse("backend", *w.Backend, `is neither "nftables" nor "iptables"`).
				Suggest("leave it out for the one that fits the kernel and the other keys"))
			c.asked = auto // and no contradiction to any key
		}
	}
	problems.Add(c.parseMark(w))
	problems.Add(c.parseNeeds(w))
	var err error
	c.mappings, err = parseMappings(w.RuntimeConfig.PortMappings)
	problems.Add(err)
	return c, problems.Err()
}

func (c *config) parseMark(w wireConfig) error {
	var problems cni.Problems
	if w.MarkMasqBit != nil {
		switch {
		case w.ExternalSetMarkChain != nil:
			problems.Add(cni.Refuse("markMasqBit", *w.MarkMasqBit,
				"cannot be set together with externalSetMarkChain, which decides the mark").
				Suggest("leave out one of them"))
		case *w.MarkMasqBit < 0 || *w.MarkMasqBit > 31:
			problems.Add(cni.Refuse("markMasqBit", *w.MarkMasqBit, "is not between 0 and 31"))
		}
		c.options.MarkBit = *w.MarkMasqBit
	}
	if w.ExternalSetMarkChain == nil {
		return problems.Err()
	}
	name := *w.ExternalSetMarkChain
	if !isChainName(name) {
		problems.Add(cni.Refuse("externalSetMarkChain", name,
			fmt.Sprintf("is no name of a chain (1 to %d bytes, no blank, not beginning with - or !)", chainNameMax)))
	}
	c.options.MarkChain = name
	return problems.Err()
}

func isChainName(name string) bool {
	return name != "" && len(name) <= chainNameMax && !strings.ContainsAny(name[:1], "-!") &&
		!strings.ContainsFunc(name, notPlain)
}

func notPlain(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }

// parseNeeds decides which backend the other keys ask for, and refuses
// contradictions.
func (c *config) parseNeeds(w wireConfig) error {
	var problems cni.Problems
	keys := map[backend][]string{}
	if c.options.MarkChain != "" {
		keys[iptables] = append(keys[iptables], "externalSetMarkChain")
	}
	for _, cond := range []struct {
		key    string
		tokens []string
	}{{"conditionsV4", w.ConditionsV4}, {"conditionsV6", w.ConditionsV6}} {
		if len(cond.tokens) == 0 {
			continue
		}
		syntax := syntaxOf(cond.tokens)
		keys[syntax] = append(keys[syntax], cond.key)
		problems.Add(checkTokens(cond.key, cond.tokens, syntax))
	}
	if len(keys[nftables]) > 0 && len(keys[iptables]) > 0 {
		problems.Add(cni.Refuse(keys[nftables][0], nil,
			fmt.Sprintf("in the syntax of nftables, but %s is for iptables", keys[iptables][0])))
		return problems.Err()
	}
	for b, list := range keys {
		c.needed = b
		if c.asked != auto && c.asked != b {
			problems.Add(cni.Refuse("backend", string(c.asked),
				fmt.Sprintf("was asked for, but %s is for %s", strings.Join(list, " and "), b)).
				Suggest("leave backend out: it follows the other keys"))
		}
	}
	return problems.Err()
}

func syntaxOf(tokens []string) backend {
	if first := tokens[0]; strings.HasPrefix(first, "-") || strings.HasPrefix(first, "!") {
		return iptables
	}
	return nftables
}

// checkTokens refuses tokens that would end the statement or the line of which
// the condition becomes a part.
func checkTokens(key string, tokens []string, syntax backend) error {
	var problems cni.Problems
	for i, t := range tokens {
		where := fmt.Sprintf("%s[%d]", key, i)
		switch {
		case t == "":
			problems.Add(cni.Refuse(where, t, "is empty"))
		case strings.ContainsFunc(t, unicode.IsControl):
			problems.Add(cni.Refuse(where, t, "has a control character"))
		case syntax == nftables && strings.ContainsAny(t, ";#"):
			problems.Add(cni.Refuse(where, t, "would end the condition"))
		}
	}
	return problems.Err()
}
