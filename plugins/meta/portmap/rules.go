package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
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

func dnChain(network, containerID string) string { return dnPrefix + chainHash(network, containerID) }

// chainHash is the reference's hash of a container on a network. It has no room for the interface, so all of
// the container's interfaces on that network share a chain.
func chainHash(network, containerID string) string { return cni.Digest(network+containerID, 21) }

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
func (r *record) sharedRules() []sharedRule {
	local := []string{"-m", "addrtype", "--dst-type", "LOCAL", "-j", hostportDNAT}
	out := []sharedRule{
		{Rule: ipt.NewRule("PREROUTING", local...)},
		{Rule: ipt.NewRule("OUTPUT", local...)},
	}
	if !r.Options.SNAT || r.Options.MarkChain != "" {
		return out
	}
	mark := fmt.Sprintf("%#x/%#x", 1<<r.Options.MarkBit, 1<<r.Options.MarkBit)
	return append(out,
		sharedRule{ipt.NewRule("POSTROUTING", "-m", "comment", "--comment", "CNI portfwd requiring masquerade", "-j",
			hostportMasq), true},
		sharedRule{Rule: ipt.NewRule(hostportSetMark, "-m", "comment", "--comment", "CNI portfwd masquerade mark", "-j",
			"MARK", "--set-xmark", mark)},
		sharedRule{Rule: ipt.NewRule(hostportMasq, "-m", "mark", "--mark", mark, "-j", "MASQUERADE")})
}

// lookedAt are all chains that hold shared rules.
func (r *record) lookedAt() []string {
	return append([]string{"PREROUTING", "OUTPUT", "POSTROUTING"}, r.sharedChains()...)
}

// sharedChains are those that hold or are led to by the shared rules.
func (r *record) sharedChains() []string {
	if !r.Options.SNAT || r.Options.MarkChain != "" {
		return []string{hostportDNAT}
	}
	return []string{hostportDNAT, hostportSetMark, hostportMasq}
}

// entryRules lead the container's ports to its chain: one rule for each protocol and fifteen ports. Ports of
// the other family are among them, as with the reference.
func (r *record) entryRules(v4 bool) []ipt.Rule {
	ports := map[string][]string{}
	for _, m := range r.Mappings {
		if !r.yields(m, v4) {
			ports[m.Proto.String()] = append(ports[m.Proto.String()], strconv.Itoa(int(m.HostPort)))
		}
	}
	var out []ipt.Rule
	for _, name := range protocolNames() {
		for list := range slices.Chunk(ports[name], multiportMax) {
			args := []string{"-p", name, "-m", "comment", "--comment", entryComment(r.Network, r.ContainerID),
				"-m", "multiport", "--dports", strings.Join(list, ",")}
			args = append(args, r.Options.conditions(v4)...)
			out = append(out, ipt.NewRule(hostportDNAT, append(args, "-j", dnChain(r.Network, r.ContainerID))...))
		}
	}
	return out
}

func (r *record) yields(m mapping, v4 bool) bool {
	return slices.ContainsFunc(r.Yielded, func(p hostPort) bool {
		return p.Proto == m.Proto && p.Port == m.HostPort && p.Addr.Is4() == v4 &&
			slices.Contains(m.hostAddrs(), p.Addr)
	})
}

// chainAddrs are the addresses that the container's chains are made for.
func (r *record) chainAddrs() []address {
	if r.Yielded == nil {
		return r.Addrs
	}
	return r.served()
}

// chainRules are those in the container's chain: for each port what has to be masqueraded is marked, and
// then everything is translated.
func (r *record) chainRules(a address) []ipt.Rule {
	chain := dnChain(r.Network, r.ContainerID)
	var out []ipt.Rule
	for _, p := range r.hostPorts() {
		if p.To.Addr() != a.Addr.Addr() {
			continue
		}
		var match []string
		if !p.Addr.IsUnspecified() {
			match = append(match, "-d", netip.PrefixFrom(p.Addr, p.Addr.BitLen()).String())
		}
		match = append(match, "-p", p.Proto.String(), "-m", p.Proto.String(), "--dport", strconv.Itoa(int(p.Port)))
		for _, from := range r.masqueraded(a) {
			out = append(out, ipt.NewRule(chain, append(slices.Concat(from, match), "-j", r.markChain())...))
		}
		out = append(out, ipt.NewRule(chain, append(match, "-j", "DNAT", "--to-destination", p.To.String())...))
	}
	return out
}

// masqueraded are the matches of the sources that are to be masqueraded.
func (r *record) masqueraded(a address) [][]string {
	switch {
	case !r.Options.SNAT:
		return nil
	case r.Options.MasqAll:
		return [][]string{nil}
	case a.v4():
		return [][]string{{"-s", a.Addr.Masked().String()}, {"-s", "127.0.0.1/32"}}
	}
	return [][]string{{"-s", a.Addr.Masked().String()}}
}

func (r *record) markChain() string {
	if r.Options.MarkChain != "" {
		return r.Options.MarkChain
	}
	return hostportSetMark
}

func (r sharedRule) line() string {
	if r.first {
		return "-I " + r.Chain + " 1" + strings.TrimPrefix(r.String(), r.Chain)
	}
	return r.Append()
}

func appendAll(lines []string, rules []ipt.Rule) []string {
	for _, rule := range rules {
		lines = append(lines, rule.Append())
	}
	return lines
}

// steadyLines make a container's chain where all that is shared is there.
func (r *record) steadyLines(a address, keepChain bool) []string {
	var lines []string
	for _, shared := range r.sharedRules() {
		lines = append(lines, "-C "+shared.String()) // fails, and the whole restore with it, unless it is there
	}
	return append(lines, r.ownLines(a, keepChain)...)
}

// firstLines make it where chains and rules may be missing.
func (r *record) firstLines(a address, keepChain bool, chains []string, live []ipt.Rule) []string {
	var lines []string
	for _, c := range r.sharedChains() {
		if !slices.Contains(chains, c) {
			lines = append(lines, "-N "+c)
		}
	}
	for _, shared := range r.sharedRules() {
		if !slices.ContainsFunc(live, shared.Equal) {
			lines = append(lines, shared.line())
		}
	}
	return append(lines, r.ownLines(a, keepChain)...)
}

func (r *record) ownLines(a address, keepChain bool) []string {
	var lines []string
	if !keepChain {
		lines = append(lines, ":"+dnChain(r.Network, r.ContainerID)+" - [0:0]")
	}
	return appendAll(appendAll(lines, r.chainRules(a)), r.entryRules(a.v4()))
}
