package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/ipt"
)

// The chains of the reference, in table nat of both families.
const (
	natTable = "nat"

	hostportDNAT    = "CNI-HOSTPORT-DNAT"
	hostportSetMark = "CNI-HOSTPORT-SETMARK"
	hostportMasq    = "CNI-HOSTPORT-MASQ"
	// An older version of the reference had the masquerade in chains of its own.
	hostportSNAT = "CNI-HOSTPORT-SNAT"

	dnPrefix = "CNI-DN-"
	snPrefix = "CNI-SN-"

	multiportMax = 15  // ports that the match multiport takes
	commentMax   = 255 // bytes that the match comment takes
)

func dnChain(network, containerID string) string { return dnPrefix + groupOf(network, containerID) }

// entryComment is the comment of the rules that lead to a container's chain.
func entryComment(network, containerID string) string {
	c := fmt.Sprintf(`dnat name: "%s" id: "%s"`, network, containerID)
	if len(c) > commentMax {
		c = c[:commentMax-3] + "..."
	}
	return c
}

// parseComment is the reverse of entryComment, for those that were not cut.
func parseComment(comment string) (network, containerID string, ok bool) {
	n, err := fmt.Sscanf(comment, "dnat name: %q id: %q", &network, &containerID)
	return network, containerID, n == 2 && err == nil
}

// sharedRule is a rule that all containers use.
type sharedRule struct {
	ipt.Rule
	first bool // stands first in its chain
}

// sharedRules are those that the attachment's rules rely on, in words as
// iptables lists them.
func (s *state) sharedRules() []sharedRule {
	local := []string{"-m", "addrtype", "--dst-type", "LOCAL", "-j", hostportDNAT}
	out := []sharedRule{
		{Rule: ipt.NewRule("PREROUTING", local...)},
		{Rule: ipt.NewRule("OUTPUT", local...)},
	}
	if !s.Options.SNAT || s.Options.MarkChain != "" {
		return out
	}
	mark := fmt.Sprintf("%#x/%#x", s.Options.mark(), s.Options.mark())
	return append(out,
		sharedRule{ipt.NewRule("POSTROUTING", "-m", "comment", "--comment", "CNI portfwd requiring masquerade", "-j", hostportMasq), true},
		sharedRule{Rule: ipt.NewRule(hostportSetMark, "-m", "comment", "--comment", "CNI portfwd masquerade mark", "-j", "MARK", "--set-xmark", mark)},
		sharedRule{Rule: ipt.NewRule(hostportMasq, "-m", "mark", "--mark", mark, "-j", "MASQUERADE")})
}

// watched are all chains that hold shared rules.
func (s *state) watched() []string {
	return append([]string{"PREROUTING", "OUTPUT", "POSTROUTING"}, s.sharedChains()...)
}

// sharedChains are those that hold or are led to by the shared rules.
func (s *state) sharedChains() []string {
	if !s.Options.SNAT || s.Options.MarkChain != "" {
		return []string{hostportDNAT}
	}
	return []string{hostportDNAT, hostportSetMark, hostportMasq}
}

// entryRules lead the container's ports to its chain: one rule for each
// protocol and fifteen ports. Ports of the other family are among them, as with
// the reference.
func (s *state) entryRules(v4 bool) []ipt.Rule {
	ports := map[proto][]string{}
	for _, m := range s.Mappings {
		ports[m.Proto] = append(ports[m.Proto], strconv.Itoa(int(m.HostPort)))
	}
	var names []string
	for p := range ports {
		names = append(names, p.String())
	}
	slices.Sort(names)
	var out []ipt.Rule
	for _, name := range names {
		for list := range slices.Chunk(ports[protocols[name]], multiportMax) {
			args := []string{"-p", name, "-m", "comment", "--comment", entryComment(s.Network, s.ContainerID),
				"-m", "multiport", "--dports", strings.Join(list, ",")}
			args = append(args, s.Options.conditions(v4)...)
			out = append(out, ipt.NewRule(hostportDNAT, append(args, "-j", dnChain(s.Network, s.ContainerID))...))
		}
	}
	return out
}

// chainRules are those in the container's chain: for each port what has to be
// masqueraded is marked, and then everything is translated.
func (s *state) chainRules(t target) []ipt.Rule {
	chain := dnChain(s.Network, s.ContainerID)
	var out []ipt.Rule
	for _, m := range s.Mappings {
		if m.HostIP.IsValid() && m.HostIP.Is4() != t.v4() {
			continue
		}
		var match []string
		if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() {
			match = append(match, "-d", netip.PrefixFrom(m.HostIP, m.HostIP.BitLen()).String())
		}
		p := m.Proto.String()
		match = append(match, "-p", p, "-m", p, "--dport", strconv.Itoa(int(m.HostPort)))
		for _, from := range s.masqueraded(t) {
			out = append(out, ipt.NewRule(chain, append(slices.Concat(from, match), "-j", s.markChain())...))
		}
		to := netip.AddrPortFrom(t.Addr.Addr(), m.Port).String()
		out = append(out, ipt.NewRule(chain, append(match, "-j", "DNAT", "--to-destination", to)...))
	}
	return out
}

// masqueraded are the matches of the sources that are to be masqueraded.
func (s *state) masqueraded(t target) [][]string {
	switch {
	case !s.Options.SNAT:
		return nil
	case s.Options.MasqAll:
		return [][]string{nil}
	case t.v4():
		return [][]string{{"-s", t.Addr.Masked().String()}, {"-s", "127.0.0.1/32"}}
	}
	return [][]string{{"-s", t.Addr.Masked().String()}}
}

func (s *state) markChain() string {
	if s.Options.MarkChain != "" {
		return s.Options.MarkChain
	}
	return hostportSetMark
}

// The lines of a restore for what a rule is not enough for.

func newChain(chain string) string    { return "-N " + chain }
func emptyChain(chain string) string  { return ":" + chain + " - [0:0]" }
func removeChain(chain string) string { return "-X " + chain }

// checkLine is the line that fails, and the whole restore with it, unless the rule
// is there.
func checkLine(r ipt.Rule) string { return "-C " + r.String() }

func (r sharedRule) line() string {
	if r.first {
		return "-I " + r.Chain + " 1" + strings.TrimPrefix(r.String(), r.Chain)
	}
	return r.Append()
}

func appendAll(lines []string, rules []ipt.Rule) []string {
	for _, r := range rules {
		lines = append(lines, r.Append())
	}
	return lines
}

// steadyLines make a container's chain where all that is shared is there.
func (s *state) steadyLines(t target, keepChain bool) []string {
	var lines []string
	for _, r := range s.sharedRules() {
		lines = append(lines, checkLine(r.Rule))
	}
	return append(lines, s.ownLines(t, keepChain)...)
}

// firstLines make it where chains and rules may be missing.
func (s *state) firstLines(t target, keepChain bool, missing []string, live []ipt.Rule) []string {
	var lines []string
	for _, c := range missing {
		lines = append(lines, newChain(c))
	}
	for _, r := range s.sharedRules() {
		if !slices.ContainsFunc(live, r.Equal) {
			lines = append(lines, r.line())
		}
	}
	return append(lines, s.ownLines(t, keepChain)...)
}

func (s *state) ownLines(t target, keepChain bool) []string {
	var lines []string
	if !keepChain {
		lines = append(lines, emptyChain(dnChain(s.Network, s.ContainerID)))
	}
	return appendAll(appendAll(lines, s.chainRules(t)), s.entryRules(t.v4()))
}
