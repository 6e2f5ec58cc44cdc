package portmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// The reference plugin's chains, in table nat of both families.
const (
	natTable    = "nat"
	postrouting = "POSTROUTING"

	hostportDNAT    = "CNI-HOSTPORT-DNAT"
	hostportSetMark = "CNI-HOSTPORT-SETMARK"
	hostportMasq    = "CNI-HOSTPORT-MASQ"

	dnPrefix = "CNI-DN-"

	multiportMax = 15 // maximum number of ports in the match multiport
)

const entryPrefix = "dnat " // beginning of the comments on entry rules, which jump to containers' chains

// natChain identifies a chain in table nat: CNI-HOSTPORT-DNAT, or a chain that it jumps to.
func natChain(f nft.Family, name string) ipt.Chain {
	return ipt.Chain{Family: f, Table: natTable, Name: name, From: hostportDNAT}
}

func (r *record) chain() string { return ipt.ContainerChain(dnPrefix, r.Network, r.ContainerID) }

// chainAddrs returns the addresses with a chain: all addresses, as for the reference plugin, unless ports are skipped.
func (r *record) chainAddrs() []address {
	if r.Skipped == nil {
		return r.Addrs
	}
	return r.publishedAddrs()
}

// variants returns the variants that have the chain. Without its program, iptables-legacy is assumed to lack the chain.
func (c call) variants(ctx context.Context, chain ipt.Chain) ([]ipt.Variant, error) {
	variants, err := chain.Variants(ctx, c.NF)
	if ipt.NotInstalled(err) {
		err = nil
	}
	return variants, err
}

// chainSharers returns the records of the attachments that share r's chain: the container's other attachments to the
// network on the backend iptables, except attachments whose DEL has begun.
func chainSharers(s *store, r *record) ([]*record, error) {
	all, err := s.All()
	return slices.DeleteFunc(all, func(o *record) bool {
		return o.Backend != iptables || o.Network != r.Network || o.ContainerID != r.ContainerID ||
			o.IfName == r.IfName || o.Ending
	}), err
}

// addChain adds the reference plugin's rules for an address, with one run of iptables-restore.
func (c call) addChain(ctx context.Context, s *store, r *record, a address) error {
	tool, err := ipt.FindTool(ctx, a.family())
	if err != nil {
		return err
	}
	variants, err := c.variants(ctx, natChain(a.family(), r.chain()))
	if err != nil {
		return err
	}
	if len(variants) > 0 {
		others, err := chainSharers(s, r)
		if err == nil && len(others) == 0 { // the chain is from an ADD without DEL, or the reference plugin's
			err, variants = c.delChains(ctx, s, r, a.family()), nil
		}
		if err != nil {
			return err
		}
	}
	if len(variants) == 0 {
		err := tool.Restore(ctx, natTable, r.newChainLines(a))
		if err == nil || ctx.Err() != nil || errors.Is(err, statefile.ErrBusy) {
			return err
		}
	}
	return tool.Edit(ctx, natTable, func(e *ipt.Edit) { r.edit(e, a) })
}

// restoreChain restores an address's rules from the record. One run of iptables-restore replaces the container's chain.
func (c call) restoreChain(ctx context.Context, s *store, r *record, a address) error {
	tool, err := ipt.FindTool(ctx, a.family())
	if err != nil {
		return err
	}
	others, err := chainSharers(s, r)
	if err != nil {
		return err
	}
	chain := natChain(a.family(), r.chain())
	rules, entries := rulesOf(chain, append(others, r))
	isEntry := ipt.IsOneOf(entries)
	return tool.Edit(ctx, natTable, func(e *ipt.Edit) {
		e.Delete(func(r ipt.Rule) bool { return chain.IsJump(r) && !isEntry(r) })
		e.SetRules(chain.Name, rules)
		r.edit(e, a)
	})
}

// rulesOf returns, for the attachments that share a chain, the rules in the chain and the rules that jump to it.
func rulesOf(chain ipt.Chain, all []*record) (rules, entries []ipt.Rule) {
	for _, r := range all {
		for _, a := range r.chainAddrs() {
			if a.family() == chain.Family && r.chain() == chain.Name {
				rules = append(rules, r.chainRules(a)...)
				entries = append(entries, r.entryRules(a.family())...)
			}
		}
	}
	return rules, entries
}

// newChainLines returns lines for iptables-restore that add the chain, so that the table need not be read. They fail if
// a shared rule is missing, which is unusual.
func (r *record) newChainLines(a address) (lines []string) {
	e := &ipt.Edit{}
	e.Chains, e.Rules = r.sharedRules()
	for _, rule := range e.Rules {
		lines = append(lines, "-C "+rule.String())
	}
	r.edit(e, a)
	return append(lines, e.Lines...)
}

// edit adds the rules of the container's chain for an address, and the shared rules. The rule in POSTROUTING becomes
// the first of its chain.
func (r *record) edit(e *ipt.Edit, a address) {
	chains, rules := r.sharedRules()
	e.CreateChains(chains...)
	for _, rule := range rules {
		if rule.Chain == postrouting {
			e.Prepend(rule)
		} else {
			e.Append(rule)
		}
	}
	if e.HasChain(r.chain()) {
		e.Append(r.chainRules(a)...)
	} else {
		e.SetRules(r.chain(), r.chainRules(a))
	}
	e.Append(r.entryRules(a.family())...)
}

// delChains removes the container's chains from both variants, even if the reference plugin created them. Rules of the
// container's other attachments stay.
func (c call) delChains(ctx context.Context, s *store, r *record, families ...nft.Family) error {
	others := sync.OnceValues(func() ([]*record, error) { return chainSharers(s, r) })
	var errs []error
	for _, f := range families {
		for _, chain := range []ipt.Chain{natChain(f, r.chain()), referenceSNATChain(f, r)} {
			variants, err := chain.Variants(ctx, c.NF)
			errs = append(errs, err)
			for _, v := range variants {
				sharers, err := others()
				if err == nil {
					err = c.delChain(ctx, chain, v, sharers)
				}
				if err != nil {
					err = fmt.Errorf("chain %q of table nat (%s, iptables-%s): %w", chain.Name, f, v, err)
				}
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (c call) delChain(ctx context.Context, chain ipt.Chain, v ipt.Variant, others []*record) error {
	rules, entries := rulesOf(chain, others)
	if len(entries) == 0 {
		return chain.Remove(ctx, c.NF, v, nil)
	}
	isEntry := ipt.IsOneOf(entries)
	return ipt.Tool{Family: chain.Family, Variant: v}.Edit(ctx, natTable, func(e *ipt.Edit) {
		e.Delete(func(r ipt.Rule) bool { return chain.IsJump(r) && !isEntry(r) })
		e.SetRules(chain.Name, rules)
		e.Append(entries...)
	})
}

func (c call) verifyIPTables(ctx context.Context, r *record) error {
	var diffs []error
	for _, a := range r.chainAddrs() {
		compare := func(e *ipt.Edit) (diffs []error) {
			for _, rule := range r.missingRules(a, e.Rules) {
				diffs = append(diffs, cni.Drift("%s table nat: rule %q is missing", a.family(), rule.Append()))
			}
			return diffs
		}
		diffs = append(diffs, natChain(a.family(), r.chain()).Verify(ctx, c.NF, compare))
	}
	return errors.Join(diffs...)
}

// missingRules returns the attachment's rules and the shared rules that are not in live.
func (r *record) missingRules(a address, live []ipt.Rule) []ipt.Rule {
	// The order in the chain matters: the rule that sets the fwmark must precede the one that translates.
	_, shared := r.sharedRules()
	out := append(ipt.Subtract(shared, live), ipt.MissingInOrder(live, r.chainRules(a))...)
	for _, want := range r.entryRules(a.family()) {
		if !slices.ContainsFunc(live, func(rule ipt.Rule) bool { return isSameEntry(want, rule) }) {
			out = append(out, want)
		}
	}
	return out
}

// isSameEntry compares entry rules without their conditions, which iptables lists in another form.
func isSameEntry(want, live ipt.Rule) bool {
	isSame := func(option string) bool { return want.Option(option) == live.Option(option) }
	return want.Chain == live.Chain && isSame("--comment") && isSame("-p") && isSame("--dports") && isSame("-j")
}

// sharedRules returns the chains and rules that all containers use, in the form in which iptables lists them.
func (r *record) sharedRules() (chains []string, rules []ipt.Rule) {
	local := []string{"-m", "addrtype", "--dst-type", "LOCAL", "-j", hostportDNAT}
	chains = []string{hostportDNAT}
	rules = []ipt.Rule{ipt.NewRule("PREROUTING", local...), ipt.NewRule("OUTPUT", local...)}
	if !r.Options.SNAT || r.Options.MarkChain != "" {
		return chains, rules
	}
	fwmark := fmt.Sprintf("%#x/%#[1]x", uint32(1)<<r.Options.MarkBit) // an int of 32 bits would be negative
	return append(chains, hostportSetMark, hostportMasq), append(rules,
		ipt.NewRule(postrouting, "-m", "comment", "--comment", "CNI portfwd requiring masquerade", "-j", hostportMasq),
		ipt.NewRule(hostportSetMark, "-m", "comment", "--comment", "CNI portfwd masquerade mark", "-j", "MARK",
			"--set-xmark", fwmark),
		ipt.NewRule(hostportMasq, "-m", "mark", "--mark", fwmark, "-j", "MASQUERADE"))
}

// entryRules returns the jumps to the container's chain, one for each protocol and fifteen ports. Like the reference
// plugin's, they include ports of the other family, but no ports that are skipped in family f.
func (r *record) entryRules(f nft.Family) (out []ipt.Rule) {
	ports := map[string][]string{}
	for _, m := range r.Mappings {
		isSkipped := func(p hostPort) bool {
			return p.Proto == m.Proto && p.Port == m.HostPort && nft.FamilyOf(p.Addr) == f &&
				slices.Contains(m.hostAddrs(), p.Addr)
		}
		if name := m.Proto.String(); !slices.ContainsFunc(r.Skipped, isSkipped) {
			ports[name] = append(ports[name], strconv.Itoa(int(m.HostPort)))
		}
	}
	conditions, _ := r.Options.conditions(f)
	for _, proto := range slices.Sorted(maps.Keys(ports)) {
		for list := range slices.Chunk(ports[proto], multiportMax) {
			args := []string{"-p", proto, "-m", "comment", "--comment",
				ipt.OwnerComment(entryPrefix, r.Network, r.ContainerID),
				"-m", "multiport", "--dports", strings.Join(list, ",")}
			args = append(args, conditions...)
			out = append(out, ipt.NewRule(hostportDNAT, append(args, "-j", r.chain())...))
		}
	}
	return out
}

// testConditions has iptables parse the attachment's conditions. It runs before the call locks the records, because
// iptables may take long for text from a configuration.
func (r *record) testConditions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	for _, a := range r.chainAddrs() {
		conditions, key := r.Options.conditions(a.family())
		if len(conditions) == 0 {
			continue
		}
		tool, err := ipt.FindTool(ctx, a.family())
		if err != nil {
			return fmt.Errorf("host ports with iptables: %w", err)
		}
		lines := []string{":" + hostportDNAT + " -", ":" + r.chain() + " -"}
		for _, rule := range r.entryRules(a.family()) {
			lines = append(lines, rule.Append())
		}
		err = tool.Test(ctx, natTable, lines)
		if errors.As(err, new(*process.ExitError)) && !errors.As(err, new(*cni.Error)) {
			return cni.Errorf(cni.CodeConfig, "%s: %q: refused by iptables: %w", key, conditions, err)
		}
		if err != nil {
			return fmt.Errorf("%s: iptables must parse them: %w", key, err)
		}
	}
	return nil
}

const testTimeout = 10 * time.Second // time limit of testConditions

// chainRules returns the rules in the container's chain: for each port, the rules that set the fwmark, and then the
// rule that translates.
func (r *record) chainRules(a address) (out []ipt.Rule) {
	markChain := cmp.Or(r.Options.MarkChain, hostportSetMark)
	for _, p := range r.addrPorts(a) {
		var match []string
		if !p.Addr.IsUnspecified() {
			match = append(match, "-d", netip.PrefixFrom(p.Addr, p.Addr.BitLen()).String())
		}
		match = append(match, "-p", p.Proto.String(), "-m", p.Proto.String(), "--dport", strconv.Itoa(int(p.Port)))
		for _, source := range r.masqueradeMatches(a) {
			out = append(out, ipt.NewRule(r.chain(), append(slices.Concat(source, match), "-j", markChain)...))
		}
		out = append(out, ipt.NewRule(r.chain(), append(match, "-j", "DNAT", "--to-destination", p.Target.String())...))
	}
	return out
}

// masqueradeMatches returns matches of the sources whose packets are masqueraded. A nil match selects all packets.
func (r *record) masqueradeMatches(a address) [][]string {
	switch {
	case !r.Options.SNAT:
		return nil
	case r.Options.MasqAll:
		return [][]string{nil}
	case a.family() == nft.IPv4:
		return [][]string{{"-s", a.Addr.Masked().String()}, {"-s", "127.0.0.1/32"}}
	}
	return [][]string{{"-s", a.Addr.Masked().String()}}
}
