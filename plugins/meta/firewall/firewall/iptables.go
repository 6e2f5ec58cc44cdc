package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// commentedRule returns a rule with one of the reference plugin's comments.
func commentedRule(chain, match, text, target string) ipt.Rule {
	return ipt.NewRule(chain,
		append(strings.Fields(match), "-m", "comment", "--comment", "CNI firewall plugin "+text, "-j", target)...)
}

func iptLegacy(f nft.Family) ipt.Tool { return ipt.Tool{Family: f, Variant: ipt.Legacy} }

// forwardChain returns CNI-FORWARD, the reference plugin's chain for all containers.
func forwardChain(f nft.Family) ipt.Chain {
	return ipt.Chain{Family: f, Table: filterTable, Name: cniForward}
}

// filter returns the family's table filter in nf_tables, which iptables-nft uses.
func filter(f nft.Family) nft.Table { return nft.Table{Family: f, Name: filterTable} }

// addressRules returns the reference plugin's rules for an address.
func addressRules(a netip.Addr) []ipt.Rule {
	host := netip.PrefixFrom(a, a.BitLen()).String()
	return []ipt.Rule{
		ipt.NewRule(cniForward, "-d", host, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"),
		ipt.NewRule(cniForward, "-s", host, "-j", "ACCEPT"),
	}
}

// commonComment is the reference plugin's comment on rules that same-bridge and isolated have in common.
const commonComment = "rules (ingressPolicy: same-bridge|isolated)"

// bridgeRules returns the reference plugin's rules for a bridge's policy, in the order of their chains: none for open.
func bridgeRules(bridge string, p policy) []ipt.Rule {
	comment := "rules (ingressPolicy: " + string(p) + ")"
	rules := []ipt.Rule{
		commentedRule(stage1, "-i "+bridge+" -o "+bridge, comment, "DROP"),
		commentedRule(stage1, "-i "+bridge+" ! -o "+bridge, comment, stage2),
		commentedRule(stage2, "-o "+bridge, commonComment, "DROP")}
	switch p {
	case policyIsolated:
		return rules
	case policySameBridge:
		return rules[1:]
	}
	return nil
}

// editPolicy sets a bridge's policy in iptables: it adds the policy's rules, and deletes the rules of other policies.
func editPolicy(e *ipt.Edit, bridge string, p policy) {
	want := bridgeRules(bridge, p)
	all := slices.Concat(bridgeRules(bridge, policySameBridge), bridgeRules(bridge, policyIsolated))
	e.Delete(func(r ipt.Rule) bool { return slices.ContainsFunc(all, r.Equal) && !slices.ContainsFunc(want, r.Equal) })
	if p == policyOpen {
		return
	}
	e.CreateChains(stage1, stage2)
	e.Prepend(append(want, commentedRule(forwardHook, "", commonComment, stage1))...)
	e.Append(commentedRule(stage1, "", commonComment, "RETURN"), commentedRule(stage2, "", commonComment, "RETURN"))
}

// iptablesPolicy returns the strictest policy whose rules the table has for the bridge.
func iptablesPolicy(e *ipt.Edit, bridge string) policy {
	for _, p := range slices.Backward(policies()) {
		if rules := bridgeRules(bridge, p); len(rules) > 0 && e.Has(rules[0]) {
			return p
		}
	}
	return policyOpen
}

// editAll adds all rules of an attachment. They are the same as the reference plugin's.
func editAll(e *ipt.Edit, r *record, f nft.Family, p policy) {
	ensureAdmin(e, r.AdminChain)
	for _, a := range familyAddrs(f, r.Addrs) {
		e.Append(addressRules(a)...)
	}
	if r.Bridge != "" {
		editPolicy(e, r.Bridge, p)
	}
}

// presentAddrs returns the addresses whose rules the table has.
func (r *record) presentAddrs(e *ipt.Edit, f nft.Family) []netip.Addr {
	return slices.DeleteFunc(familyAddrs(f, r.Addrs), func(a netip.Addr) bool {
		return slices.ContainsFunc(addressRules(a), func(w ipt.Rule) bool { return !e.Has(w) })
	})
}

// findTools returns the programs for all families that ADD edits, and sets their variant in the record.
func (r *record) findTools(ctx context.Context, s *store) ([]ipt.Tool, error) {
	families, err := r.editedFamilies(s)
	var tools []ipt.Tool
	for _, f := range families {
		tool, findErr := ipt.FindTool(ctx, f)
		if findErr != nil {
			return nil, fmt.Errorf("firewall with iptables: %w", findErr)
		}
		if len(familyAddrs(f, r.Addrs)) > 0 {
			r.Variant = tool.Variant
		}
		tools = append(tools, tool)
	}
	return tools, err
}

// editedFamilies returns the families whose rules in iptables ADD edits: the families of the attachment's addresses
// and, if its bridge has a policy, of the addresses of the bridge's other attachments.
func (r *record) editedFamilies(s *store) ([]nft.Family, error) {
	if r.Bridge == "" {
		return r.families(), nil
	}
	all := record{Addrs: slices.Clone(r.Addrs)}
	_, err := s.Any(func(o record) bool {
		if r.sharesBridge(o) && stricter(r.Policy, o.Policy) != policyOpen {
			all.Addrs = append(all.Addrs, o.Addrs...)
		}
		return len(all.families()) == len(nft.Families())
	})
	return all.families(), err
}

func editFilters(ctx context.Context, tools []ipt.Tool, change func(*ipt.Edit, nft.Family)) error {
	for _, t := range tools {
		if err := t.Edit(ctx, filterTable, func(e *ipt.Edit) { change(e, t.Family) }); err != nil {
			return fmt.Errorf("firewall with iptables: %w", err)
		}
	}
	return nil
}

// delIPTables removes the rules of the attachment's addresses, except addresses that another attachment has, and sets
// the policy of its bridge to remaining. It keeps a policy in a table that has rules of a reference plugin's container
// on the bridge.
func (c call) delIPTables(ctx context.Context, s *store, r *record, remaining policy) error {
	needsPolicy := func(*ipt.Edit) bool { return false }
	if remaining == policyOpen && r.Policy != policyOpen {
		var err error
		if needsPolicy, err = c.referenceFinder(s, r); err != nil {
			return err
		}
	}
	own, err := r.ownAddrs(s)
	errs := []error{err}
	for _, f := range nft.Families() {
		var stale []ipt.Rule
		for _, a := range familyAddrs(f, own) {
			stale = append(stale, addressRules(a)...)
		}
		if remaining == r.Policy && (len(stale) == 0 || c.deleteDirectly(ctx, r.Variant, f, stale)) {
			continue
		}
		errs = append(errs, c.editFilter(ctx, r.Variant, f, func(e *ipt.Edit) {
			e.Delete(func(live ipt.Rule) bool { return slices.ContainsFunc(stale, live.Equal) })
			if remaining == r.Policy || needsPolicy(e) {
				return
			}
			if remaining == policyOpen || iptablesPolicy(e, r.Bridge) != policyOpen {
				editPolicy(e, r.Bridge, remaining)
			}
		}))
	}
	return errors.Join(errs...)
}

// deleteDirectly deletes the rules with one run of iptables-restore, without reading the table, and reports whether
// that succeeded. It fails if a rule is missing.
func (c call) deleteDirectly(ctx context.Context, v ipt.Variant, f nft.Family, rules []ipt.Rule) bool {
	var lines []string
	for _, r := range rules {
		lines = append(lines, r.Delete())
	}
	return v != "" && ipt.Tool{Family: f, Variant: v}.Restore(ctx, filterTable, lines) == nil
}

// editFilter edits table filter in each variant that has the reference plugin's chains. recorded is the variant that
// ADD used, or empty if it is not known. If it is iptables-nft, a missing program for iptables-legacy is not an error,
// because iptables-legacy has no rules of the attachment.
func (c call) editFilter(ctx context.Context, recorded ipt.Variant, f nft.Family, change func(*ipt.Edit)) error {
	variants, err := forwardChain(f).Variants(ctx, c.NF)
	if recorded == ipt.NFT && ipt.NotInstalled(err) {
		err = nil
	}
	for _, v := range variants {
		err = errors.Join(err, ipt.Tool{Family: f, Variant: v}.Edit(ctx, filterTable, change))
	}
	return err
}

// verifyIPTables verifies that the attachment's rules exist, in the variant that has the chains.
func (c call) verifyIPTables(ctx context.Context, r *record) error {
	var diffs []error
	for _, f := range r.families() {
		compare := func(e *ipt.Edit) (diffs []error) {
			editAll(e, r, f, stricter(r.Policy, iptablesPolicy(e, r.Bridge)))
			for _, line := range e.Lines {
				if !strings.HasPrefix(line, "-D ") { // leftover rules of another policy are not drift
					diffs = append(diffs, cni.Drift("iptables of %s: lacks %q", f, line))
				}
			}
			return diffs
		}
		diffs = append(diffs, forwardChain(f).Verify(ctx, c.NF, compare))
	}
	return errors.Join(diffs...)
}
