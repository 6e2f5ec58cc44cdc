package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// containerChain is the chain of the record's container, which CNI-HOSTPORT-DNAT leads to.
func (f family) containerChain(r *record) ipt.Chain {
	return ipt.Chain{Family: f.ipt, Table: natTable, Name: dnChain(r.Network, r.ContainerID), From: hostportDNAT}
}

// dnatChainOfAll is CNI-HOSTPORT-DNAT, which leads to the chains of all containers.
func (f family) dnatChainOfAll() ipt.Chain {
	return ipt.Chain{Family: f.ipt, Table: natTable, Name: hostportDNAT}
}

// variants says which variants of iptables have the chain. It is taken for absent from legacy iptables where the
// program is missing that could show it.
func (c *call) variants(ctx context.Context, chain ipt.Chain) ([]ipt.Variant, error) {
	where, err := chain.Variants(ctx, c.nf)
	if ipt.NotInstalled(err) {
		err = nil
	}
	return where, err
}

// usesIPTables says whether any container, not only this one, has host ports in iptables, in the families of
// the record's addresses. It warns where a program that could tell is missing.
func (c *call) usesIPTables(ctx context.Context, r *record) (bool, error) {
	for _, a := range r.served() {
		where, err := familyOf(a.v4()).dnatChainOfAll().Variants(ctx, c.nf)
		if ipt.NotInstalled(err) {
			c.Warn("chain %q may have rules of other plugins for the same ports: %v", hostportDNAT, err)
			err = nil
		}
		if err != nil || len(where) > 0 {
			return true, err
		}
	}
	return false, nil
}

// chainRemoved says whether the container's chain is missing while the chain that leads to it is there. Where
// both are missing somebody flushed everything, and the host ports are still the attachment's.
func (c *call) chainRemoved(ctx context.Context, r *record) (bool, error) {
	for _, a := range r.chainAddrs() {
		own, err := c.variants(ctx, familyOf(a.v4()).containerChain(r))
		if err != nil || len(own) > 0 {
			return false, err
		}
		shared, err := c.variants(ctx, familyOf(a.v4()).dnatChainOfAll())
		if err != nil || len(shared) == 0 {
			return false, err
		}
	}
	return len(r.chainAddrs()) > 0, nil
}

// addIPTables makes the rules of the reference: one restore for each family.
func (c *call) addIPTables(ctx context.Context, s *store, r *record) error {
	for _, a := range r.chainAddrs() {
		if err := c.addChain(ctx, s, r, a); err != nil {
			return fmt.Errorf("host ports with iptables: %w", err)
		}
	}
	return nil
}

func (c *call) addChain(ctx context.Context, s *store, r *record, a address) error {
	f := familyOf(a.v4())
	tool, err := ipt.Find(ctx, f.ipt)
	if err != nil {
		return err
	}
	own, err := c.variants(ctx, f.containerChain(r))
	if err != nil {
		return err
	}
	if len(own) > 0 {
		shared, err := siblings(s, r)
		if err != nil {
			return err
		}
		if len(shared) == 0 { // an ADD without DEL, or the reference, left it
			if err := errors.Join(c.delChains(ctx, f, s, r)...); err != nil {
				return err
			}
			own = nil
		}
	}
	keep := slices.Contains(own, tool.Variant)
	there, err := c.variants(ctx, f.dnatChainOfAll())
	if err != nil {
		return err
	}
	if slices.Contains(there, tool.Variant) {
		err := tool.Restore(ctx, natTable, r.steadyLines(a, keep))
		if err == nil || ctx.Err() != nil || errors.Is(err, statefile.ErrBusy) {
			return err
		}
	}
	// Something of what all share is missing.
	return tool.Change(ctx, natTable, func() ([]string, error) {
		var chains []string
		for _, name := range r.sharedChains() {
			where, err := c.variants(ctx, ipt.Chain{Family: f.ipt, Table: natTable, Name: name})
			if err != nil {
				return nil, err
			}
			if slices.Contains(where, tool.Variant) {
				chains = append(chains, name)
			}
		}
		live, err := tool.List(ctx, natTable, r.lookedAt()...)
		return r.firstLines(a, keep, chains, live), err
	})
}

// delChains removes the container's chain from either variant, also when the reference made it, and the one
// that an older version of the reference had beside it. Rules of its other attachments in the same chain stay.
func (c *call) delChains(ctx context.Context, f family, s *store, r *record) []error {
	own := f.containerChain(r)
	older := own
	older.Name, older.From = snPrefix+chainHash(r.Network, r.ContainerID), hostportSNAT
	var errs []error
	for _, chain := range []ipt.Chain{own, older} {
		where, err := chain.Variants(ctx, c.nf)
		errs = append(errs, err)
		for _, v := range where {
			if err := c.delChain(ctx, chain, v, func() ([]*record, error) { return siblings(s, r) }); err != nil {
				errs = append(errs, fmt.Errorf("chain %q of table nat (%s, iptables-%s): %w", chain.Name, f.Family, v,
					err))
			}
		}
	}
	return errs
}

func (c *call) delChain(ctx context.Context, chain ipt.Chain, v ipt.Variant, siblings func() ([]*record, error)) error {
	shared, err := siblings()
	if err != nil {
		return err
	}
	var kept []string
	for _, r := range shared {
		for _, a := range r.chainAddrs() {
			if familyOf(a.v4()).ipt == chain.Family && chain.From == hostportDNAT {
				kept = appendAll(appendAll(kept, r.chainRules(a)), r.entryRules(a.v4()))
			}
		}
	}
	if kept == nil {
		return chain.Remove(ctx, c.nf, v)
	}
	tool, err := ipt.FindVariant(ctx, chain.Family, v)
	if err != nil {
		return err
	}
	return tool.Change(ctx, natTable, func() ([]string, error) {
		_, jumps, err := chain.Live(ctx, tool)
		lines := chain.Fill(nil)
		for _, jump := range jumps {
			lines = append(lines, jump.Delete())
		}
		return append(lines, kept...), err
	})
}

// checkIPTables compares the attachment's rules and those that all share with what iptables has.
func (c *call) checkIPTables(ctx context.Context, r *record) error {
	var diffs []error
	for _, a := range r.chainAddrs() {
		f := familyOf(a.v4())
		chain := f.containerChain(r)
		where, err := c.variants(ctx, chain)
		if err != nil {
			return err
		}
		if len(where) == 0 {
			diffs = append(diffs, drift("%s chain %q: is missing", f.Family, chain.Name))
			continue
		}
		tool, err := ipt.FindVariant(ctx, f.ipt, where[0])
		if err != nil {
			return err
		}
		live, err := tool.List(ctx, natTable, append(r.lookedAt(), chain.Name)...)
		if err != nil {
			return err
		}
		for _, rule := range r.missing(a, live) {
			diffs = append(diffs, drift("%s table nat: rule %q is missing", f.Family, rule.Append()))
		}
	}
	return errors.Join(diffs...)
}

// missing are the attachment's rules, and the shared ones that it needs, that are not among the live ones.
func (r *record) missing(a address, live []ipt.Rule) []ipt.Rule {
	var out []ipt.Rule
	for _, want := range r.sharedRules() {
		if !slices.ContainsFunc(live, want.Equal) {
			out = append(out, want.Rule)
		}
	}
	// In the chain the order counts: a rule that sets the fwmark stands before the one that translates.
	chain := dnChain(r.Network, r.ContainerID)
	inChain := slices.DeleteFunc(slices.Clone(live), func(rule ipt.Rule) bool { return rule.Chain != chain })
	for _, want := range r.chainRules(a) {
		i := slices.IndexFunc(inChain, want.Equal)
		if i < 0 {
			out = append(out, want)
			continue
		}
		inChain = inChain[i+1:]
	}
	for _, want := range r.entryRules(a.v4()) {
		if !slices.ContainsFunc(live, func(rule ipt.Rule) bool { return isEntry(want, rule) }) {
			out = append(out, want)
		}
	}
	return out
}

// isEntry compares entry rules without their conditions, which iptables lists in words of its own.
func isEntry(want, live ipt.Rule) bool {
	same := func(option string) bool { return want.Option(option) == live.Option(option) }
	return want.Chain == live.Chain && same("--comment") && same("-p") && same("--dports") && same("-j")
}

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
	fwmark := fmt.Sprintf("%#x/%#x", 1<<r.Options.MarkBit, 1<<r.Options.MarkBit)
	return append(out,
		sharedRule{ipt.NewRule("POSTROUTING", "-m", "comment", "--comment", "CNI portfwd requiring masquerade", "-j",
			hostportMasq), true},
		sharedRule{Rule: ipt.NewRule(hostportSetMark, "-m", "comment", "--comment", "CNI portfwd masquerade mark", "-j",
			"MARK", "--set-xmark", fwmark)},
		sharedRule{Rule: ipt.NewRule(hostportMasq, "-m", "mark", "--mark", fwmark, "-j", "MASQUERADE")})
}

// lookedAt are the chains in which the shared rules stand: those of the kernel, and the reference's.
func (r *record) lookedAt() []string {
	return append([]string{"PREROUTING", "OUTPUT", "POSTROUTING"}, r.sharedChains()...)
}

// sharedChains are the reference's chains that all containers use.
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

// chainRules are the rules in the container's chain. For each port some set the fwmark of packets to be
// masqueraded, and the last one translates all packets.
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

// masqueraded are the matches that select the packets to be masqueraded, by their source.
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

// steadyLines are the lines of a restore that make a container's chain. It fails unless all shared rules are there.
func (r *record) steadyLines(a address, keepChain bool) []string {
	var lines []string
	for _, shared := range r.sharedRules() {
		lines = append(lines, "-C "+shared.String())
	}
	return append(lines, r.ownLines(a, keepChain)...)
}

// firstLines are those that also make the shared chains and rules that are missing.
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
