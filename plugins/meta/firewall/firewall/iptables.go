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

// The reference's chains in table filter, and one of ours: acceptedChain accepts what carries the fwmark bit. The rules
// in it, and the one that leads to it, have no comment: the chain's name says whose they are.
const (
	filterTable       = "filter"
	forwardHook       = "FORWARD"
	cniForward        = "CNI-FORWARD"
	defaultAdminChain = "CNI-ADMIN"
	acceptedChain     = "HAWSER-ACCEPTED"
	stage1            = "CNI-ISOLATION-STAGE-1"
	stage2            = "CNI-ISOLATION-STAGE-2"
)

// commented is a rule with a comment of the reference's: what it matches, the comment, and the target.
func commented(chain, match, text, target string) ipt.Rule {
	return ipt.NewRule(chain,
		append(strings.Fields(match), "-m", "comment", "--comment", "CNI firewall plugin "+text, "-j", target)...)
}

// iptLegacy is the family's iptables-legacy.
func iptLegacy(f nft.Family) ipt.Tool { return ipt.Tool{Family: f, Variant: ipt.Legacy} }

// forwardChain is the reference's chain for all containers.
func forwardChain(f nft.Family) ipt.Chain {
	return ipt.Chain{Family: f, Table: filterTable, Name: cniForward}
}

// filter is the family's table filter, where iptables-nft keeps it.
func filter(f nft.Family) nft.Table { return nft.Table{Family: f, Name: filterTable} }

// addressRules are the reference's rules of an address.
func addressRules(a netip.Addr) []ipt.Rule {
	host := netip.PrefixFrom(a, a.BitLen()).String()
	return []ipt.Rule{
		ipt.NewRule(cniForward, "-d", host, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"),
		ipt.NewRule(cniForward, "-s", host, "-j", "ACCEPT"),
	}
}

// anyPolicy is the reference's comment of rules that are the same for both policies.
const anyPolicy = "rules (ingressPolicy: same-bridge|isolated)"

// bridgeRules are the reference's rules of a bridge, in the order of their chains; none for open.
func bridgeRules(bridge string, p policy) []ipt.Rule {
	own := "rules (ingressPolicy: " + string(p) + ")"
	isolation := []ipt.Rule{
		commented(stage1, "-i "+bridge+" -o "+bridge, own, "DROP"),
		commented(stage1, "-i "+bridge+" ! -o "+bridge, own, stage2),
		commented(stage2, "-o "+bridge, anyPolicy, "DROP")}
	switch p {
	case policyIsolated:
		return isolation
	case policySameBridge:
		return isolation[1:]
	}
	return nil
}

// ensurePolicy makes the rules of a bridge's policy, and deletes those of another policy.
func ensurePolicy(e *ipt.Edit, bridge string, p policy) {
	want := bridgeRules(bridge, p)
	all := slices.Concat(bridgeRules(bridge, policySameBridge), bridgeRules(bridge, policyIsolated))
	e.Delete(func(r ipt.Rule) bool { return slices.ContainsFunc(all, r.Equal) && !slices.ContainsFunc(want, r.Equal) })
	if p == policyOpen {
		return
	}
	e.Make(stage1, stage2)
	e.First(append(want, commented(forwardHook, "", anyPolicy, stage1))...)
	e.Last(commented(stage1, "", anyPolicy, "RETURN"), commented(stage2, "", anyPolicy, "RETURN"))
}

// policyIn is the strictest policy of which the table has rules for the bridge.
func policyIn(e *ipt.Edit, bridge string) policy {
	for _, p := range slices.Backward(policies()) {
		if rules := bridgeRules(bridge, p); len(rules) > 0 && e.Has(rules[0]) {
			return p
		}
	}
	return policyOpen
}

// ensureAll makes all that the reference makes for an attachment.
func ensureAll(e *ipt.Edit, r *record, f nft.Family, p policy) {
	ensureAdmin(e, r.AdminChain)
	for _, a := range ofFamily(f, r.Addrs) {
		e.Last(addressRules(a)...)
	}
	if r.Bridge != "" {
		ensurePolicy(e, r.Bridge, p)
	}
}

// inTable are the addresses whose rules a table has.
func (r *record) inTable(e *ipt.Edit, f nft.Family) []netip.Addr {
	return slices.DeleteFunc(ofFamily(f, r.Addrs), func(a netip.Addr) bool {
		return slices.ContainsFunc(addressRules(a), func(w ipt.Rule) bool { return !e.Has(w) })
	})
}

// findTools returns the programs for all families that ADD changes, and notes their variant in the record.
func (r *record) findTools(ctx context.Context, s *store) ([]ipt.Tool, error) {
	families, err := r.policyFamilies(s)
	var tools []ipt.Tool
	for _, f := range families {
		tool, missing := ipt.Find(ctx, f)
		if missing != nil {
			return nil, fmt.Errorf("firewall with iptables: %w", missing)
		}
		if len(ofFamily(f, r.Addrs)) > 0 {
			r.Variant = tool.Variant
		}
		tools = append(tools, tool)
	}
	return tools, err
}

func editFilters(ctx context.Context, tools []ipt.Tool, change func(*ipt.Edit, nft.Family)) error {
	for _, t := range tools {
		if err := t.Edit(ctx, filterTable, func(e *ipt.Edit) { change(e, t.Family) }); err != nil {
			return fmt.Errorf("firewall with iptables: %w", err)
		}
	}
	return nil
}

// delIPTables removes the rules of the attachment's addresses, except those that another attachment has by now, and
// gives its bridge the remaining policy. The policy ends only where no container of the reference needs it.
func (c call) delIPTables(ctx context.Context, s *store, r *record, remaining policy) error {
	keepsPolicy := func(*ipt.Edit) bool { return false }
	if remaining == policyOpen && r.Policy != policyOpen {
		var err error
		if keepsPolicy, err = c.hasReference(s, r); err != nil {
			return err
		}
	}
	own, err := r.ownAddrs(s)
	errs := []error{err}
	for _, f := range nft.Families() {
		var gone []ipt.Rule
		for _, a := range ofFamily(f, own) {
			gone = append(gone, addressRules(a)...)
		}
		if remaining == r.Policy && (len(gone) == 0 || c.delAtOnce(ctx, r.Variant, f, gone)) {
			continue
		}
		errs = append(errs, c.editFilter(ctx, r.Variant, f, func(e *ipt.Edit) {
			e.Delete(func(live ipt.Rule) bool { return slices.ContainsFunc(gone, live.Equal) })
			if remaining == r.Policy || keepsPolicy(e) {
				return
			}
			if remaining == policyOpen || policyIn(e, r.Bridge) != policyOpen {
				ensurePolicy(e, r.Bridge, remaining)
			}
		}))
	}
	return errors.Join(errs...)
}

// delAtOnce deletes the rules by one program, without a look, and says whether all of them were there.
func (c call) delAtOnce(ctx context.Context, v ipt.Variant, f nft.Family, rules []ipt.Rule) bool {
	var lines []string
	for _, r := range rules {
		lines = append(lines, r.Delete())
	}
	return v != "" && ipt.Tool{Family: f, Variant: v}.Restore(ctx, filterTable, lines) == nil
}

// editFilter changes table filter in each variant that has the reference's chains. Where ADD used iptables-nft,
// legacy's table has nothing of the attachment, so iptables-legacy may be missing.
func (c call) editFilter(ctx context.Context, used ipt.Variant, f nft.Family, change func(*ipt.Edit)) error {
	where, err := forwardChain(f).Variants(ctx, c.NF)
	if used == ipt.NFT && ipt.NotInstalled(err) {
		err = nil
	}
	for _, v := range where {
		err = errors.Join(err, ipt.Tool{Family: f, Variant: v}.Edit(ctx, filterTable, change))
	}
	return err
}

// verifyIPTables looks for the attachment's rules, in the variant that has them.
func (c call) verifyIPTables(ctx context.Context, r *record) error {
	var diffs []error
	for _, f := range r.families() {
		compare := func(e *ipt.Edit) (diffs []error) {
			ensureAll(e, r, f, stricter(r.Policy, policyIn(e, r.Bridge)))
			for _, line := range e.Lines {
				if !strings.HasPrefix(line, "-D ") { // a rule of another policy is no drift
					diffs = append(diffs, cni.Drift("iptables of %s: lacks %q", f, line))
				}
			}
			return diffs
		}
		diffs = append(diffs, forwardChain(f).Verify(ctx, c.NF, compare))
	}
	return errors.Join(diffs...)
}
