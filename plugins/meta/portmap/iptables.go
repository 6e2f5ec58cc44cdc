package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// natChain names a chain of table nat: one to which CNI-HOSTPORT-DNAT leads, or that one itself.
func (f family) natChain(name string) ipt.Chain {
	return ipt.Chain{Family: f.Family, Table: natTable, Name: name, From: hostportDNAT}
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
		where, err := familyOf(a.v4()).natChain(hostportDNAT).Variants(ctx, c.nf)
		if ipt.NotInstalled(err) {
			c.warnOfOthers(err)
			err = nil
		}
		if err != nil || len(where) > 0 {
			return true, err
		}
	}
	return false, nil
}

// warnOfOthers says that the reference's rules could not be read for want of a program.
func (c *call) warnOfOthers(err error) {
	c.Warn("chain %q may have rules of other plugins for the same ports: %v", hostportDNAT, err)
}

// chainRemoved says whether the container's chain is missing while the chain that leads to it is there. Where
// both are missing somebody flushed everything, and the host ports are still the attachment's.
func (c *call) chainRemoved(ctx context.Context, r *record) (bool, error) {
	for _, a := range r.chainAddrs() {
		own, err := c.variants(ctx, familyOf(a.v4()).natChain(r.chain()))
		if err != nil || len(own) > 0 {
			return false, err
		}
		shared, err := c.variants(ctx, familyOf(a.v4()).natChain(hostportDNAT))
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
	tool, err := ipt.Find(ctx, f.Family)
	if err != nil {
		return err
	}
	own, err := c.variants(ctx, f.natChain(r.chain()))
	if err != nil {
		return err
	}
	if len(own) > 0 {
		others := siblings(s, r)
		shared, err := others()
		if err == nil && len(shared) == 0 { // an ADD without DEL, or the reference, left it
			err, own = errors.Join(c.delChains(ctx, r, others, f)...), nil
		}
		if err != nil {
			return err
		}
	}
	keep := slices.Contains(own, tool.Variant)
	err = tool.Restore(ctx, natTable, r.steadyLines(a, keep))
	if err == nil || ctx.Err() != nil || errors.Is(err, statefile.ErrBusy) {
		return err
	}
	// Something of what all share is missing.
	return tool.Change(ctx, natTable, func() ([]string, error) {
		live, err := tool.List(ctx, natTable, append(r.sharedChains(), "PREROUTING", "OUTPUT", postrouting)...)
		return r.firstLines(a, keep, live), err
	})
}

// sharers reads the records of attachments that share a container's chain.
type sharers = func() ([]*record, error)

// delChains removes the container's chains from either variant, also when the reference made them, and those
// that an older version of the reference had beside them. Rules of its other attachments in the same chain stay.
func (c *call) delChains(ctx context.Context, r *record, others sharers, families ...family) (errs []error) {
	for _, f := range families {
		own := f.natChain(r.chain())
		older := own
		older.Name, older.From = ipt.ContainerChain(snPrefix, r.Network, r.ContainerID), hostportSNAT
		for _, chain := range []ipt.Chain{own, older} {
			where, err := chain.Variants(ctx, c.nf)
			errs = append(errs, err)
			for _, v := range where {
				if err := c.delChain(ctx, chain, v, others); err != nil {
					err = fmt.Errorf("chain %q of table nat (%s, iptables-%s): %w", chain.Name, f.Family, v, err)
					errs = append(errs, err)
				}
			}
		}
	}
	return errs
}

func (c *call) delChain(ctx context.Context, chain ipt.Chain, v ipt.Variant, others sharers) error {
	shared, err := others()
	if err != nil {
		return err
	}
	var kept []ipt.Rule
	for _, r := range shared {
		for _, a := range r.chainAddrs() {
			if familyOf(a.v4()).Family == chain.Family && chain.From == hostportDNAT {
				kept = slices.Concat(kept, r.chainRules(a), r.entryRules(a.v4()))
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
		return append(lines, ipt.AppendAll(kept)...), err
	})
}

// checkIPTables compares the attachment's rules and those that all share with what iptables has.
func (c *call) checkIPTables(ctx context.Context, r *record) error {
	var diffs []error
	for _, a := range r.chainAddrs() {
		f := familyOf(a.v4())
		chain := f.natChain(r.chain())
		where, err := c.variants(ctx, chain)
		if err != nil {
			return err
		}
		if len(where) == 0 {
			diffs = append(diffs, drift("%s chain %q: is missing", f.Family, chain.Name))
			continue
		}
		want := slices.Concat(r.sharedRules(), r.chainRules(a), r.entryRules(a.v4()))
		if where[0] == ipt.NFT && chain.Has(ctx, want) {
			continue
		}
		live, err := ipt.Save(ctx, f.Family, where[0], natTable)
		if err != nil {
			return err
		}
		for _, rule := range r.missing(a, live.Rules) {
			diffs = append(diffs, drift("%s table nat: rule %q is missing", f.Family, rule.Append()))
		}
	}
	return errors.Join(diffs...)
}

// missing are the attachment's rules, and the shared ones that it needs, that are not among the live ones.
func (r *record) missing(a address, live []ipt.Rule) []ipt.Rule {
	// In the chain the order counts: a rule that sets the fwmark stands before the one that translates.
	out := append(ipt.Without(r.sharedRules(), live), ipt.Lacking(live, r.chainRules(a))...)
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
	natTable    = "nat"
	postrouting = "POSTROUTING"

	hostportDNAT    = "CNI-HOSTPORT-DNAT"
	hostportSetMark = "CNI-HOSTPORT-SETMARK"
	hostportMasq    = "CNI-HOSTPORT-MASQ"
	// An older version of the reference had the masquerade in chains of its own.
	hostportSNAT = "CNI-HOSTPORT-SNAT"

	dnPrefix = "CNI-DN-"
	snPrefix = "CNI-SN-"

	multiportMax = 15 // ports that the match multiport takes
)

// chain is the chain of the record's container.
func (r *record) chain() string { return dnChain(r.Network, r.ContainerID) }

func dnChain(network, containerID string) string {
	return ipt.ContainerChain(dnPrefix, network, containerID)
}

// entryPrefix begins the comments of the rules that lead to containers' chains.
const entryPrefix = "dnat "

// sharedRules are those that the attachment's rules rely on and that all containers use, in words as
// iptables lists them.
func (r *record) sharedRules() []ipt.Rule {
	local := []string{"-m", "addrtype", "--dst-type", "LOCAL", "-j", hostportDNAT}
	out := []ipt.Rule{ipt.NewRule("PREROUTING", local...), ipt.NewRule("OUTPUT", local...)}
	if !r.Options.SNAT || r.Options.MarkChain != "" {
		return out
	}
	fwmark := fmt.Sprintf("%#x/%#x", 1<<r.Options.MarkBit, 1<<r.Options.MarkBit)
	return append(out,
		ipt.NewRule(postrouting, "-m", "comment", "--comment", "CNI portfwd requiring masquerade", "-j", hostportMasq),
		ipt.NewRule(hostportSetMark, "-m", "comment", "--comment", "CNI portfwd masquerade mark", "-j", "MARK",
			"--set-xmark", fwmark),
		ipt.NewRule(hostportMasq, "-m", "mark", "--mark", fwmark, "-j", "MASQUERADE"))
}

// sharedLine is the line that makes a shared rule. The masquerade stands first in its chain.
func sharedLine(rule ipt.Rule) string {
	if rule.Chain == postrouting {
		return "-I " + rule.Chain + " 1" + strings.TrimPrefix(rule.String(), rule.Chain)
	}
	return rule.Append()
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
	ports := map[proto][]string{}
	for _, m := range r.Mappings {
		if !r.yields(m, v4) {
			ports[m.Proto] = append(ports[m.Proto], strconv.Itoa(int(m.HostPort)))
		}
	}
	conditions, _ := r.Options.conditions(v4)
	var out []ipt.Rule
	for _, proto := range protocols {
		for list := range slices.Chunk(ports[proto], multiportMax) {
			args := []string{"-p", proto.String(), "-m", "comment", "--comment",
				ipt.OwnerComment(entryPrefix, r.Network, r.ContainerID),
				"-m", "multiport", "--dports", strings.Join(list, ",")}
			args = append(args, conditions...)
			out = append(out, ipt.NewRule(hostportDNAT, append(args, "-j", r.chain())...))
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
			out = append(out, ipt.NewRule(r.chain(), append(slices.Concat(from, match), "-j", r.markChain())...))
		}
		out = append(out, ipt.NewRule(r.chain(), append(match, "-j", "DNAT", "--to-destination", p.To.String())...))
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

// steadyLines are the lines of a restore that make a container's chain. It fails unless all shared rules are there.
func (r *record) steadyLines(a address, keepChain bool) []string {
	var lines []string
	for _, shared := range r.sharedRules() {
		lines = append(lines, "-C "+shared.String())
	}
	return append(lines, r.ownLines(a, keepChain)...)
}

// firstLines are those that also make the shared chains and rules that are missing.
func (r *record) firstLines(a address, keepChain bool, live ipt.Saved) []string {
	var lines []string
	for _, c := range r.sharedChains() {
		if !slices.Contains(live.Chains, c) {
			lines = append(lines, "-N "+c)
		}
	}
	for _, shared := range ipt.Without(r.sharedRules(), live.Rules) {
		lines = append(lines, sharedLine(shared))
	}
	return append(lines, r.ownLines(a, keepChain)...)
}

func (r *record) ownLines(a address, keepChain bool) []string {
	lines := ipt.AppendAll(slices.Concat(r.chainRules(a), r.entryRules(a.v4())))
	if keepChain {
		return lines
	}
	return append([]string{":" + r.chain() + " - [0:0]"}, lines...)
}
