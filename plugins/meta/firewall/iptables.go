package main

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
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// The reference's chains in table filter, and one of ours: acceptedChain accepts what carries the fwmark bit. It
// has no comment that the reference's rules have not, and is known by its name.
const (
	filterTable   = "filter"
	forwardHook   = "FORWARD"
	cniForward    = "CNI-FORWARD"
	adminChain    = "CNI-ADMIN"
	acceptedChain = "HAWSER-ACCEPTED"
	stage1        = "CNI-ISOLATION-STAGE-1"
	stage2        = "CNI-ISOLATION-STAGE-2"
)

// takenChains are those that cannot be the administrator's.
func takenChains() []string {
	return []string{"INPUT", forwardHook, "OUTPUT", cniForward, acceptedChain, stage1, stage2}
}

func comment(text string) []string {
	return []string{"-m", "comment", "--comment", "CNI firewall plugin " + text}
}

func rule(chain string, args ...[]string) ipt.Rule {
	return ipt.NewRule(chain, slices.Concat(args...)...)
}

func jump(chain string) []string { return []string{"-j", chain} }

// filter is the family's table filter, where iptables-nft keeps it.
func filter(f nft.Family) nft.Table { return nft.Table{Family: f, Name: filterTable} }

// edit collects the lines of a restore that make of a table what it is to be.
type edit struct {
	saved ipt.Saved
	lines []string
}

// chains makes those that are missing: a chain that is named in a restore is emptied.
func (e *edit) chains(names ...string) {
	for _, name := range names {
		if !slices.Contains(e.saved.Chains, name) {
			e.lines = append(e.lines, ":"+name+" - [0:0]")
		}
	}
}

func (e *edit) has(r ipt.Rule) bool { return slices.ContainsFunc(e.saved.Rules, r.Equal) }

// first makes the rule the first one of its chain, unless the chain has it.
func (e *edit) first(r ipt.Rule) {
	if !e.has(r) {
		e.lines = append(e.lines, "-I "+r.String())
	}
}

// last appends the rule, unless its chain has it.
func (e *edit) last(r ipt.Rule) {
	if !e.has(r) {
		e.lines = append(e.lines, r.Append())
	}
}

// drop deletes the rules that match.
func (e *edit) drop(matches func(ipt.Rule) bool) {
	for _, r := range e.saved.Rules {
		if matches(r) {
			e.lines = append(e.lines, r.Delete())
		}
	}
}

// adminRules are the way from FORWARD through the administrator's chain, each the first one of its chain.
func adminRules(admin string) []ipt.Rule {
	return []ipt.Rule{rule(cniForward, comment("admin overrides"), jump(admin)),
		rule(forwardHook, comment("rules"), jump(cniForward))}
}

func (e *edit) admin(admin string) {
	e.chains(cniForward, admin)
	for _, r := range adminRules(admin) {
		e.first(r)
	}
}

// skeleton makes the rules that accept packets with the fwmark bit, behind the administrator's chain, and removes
// those that accept another bit.
func (e *edit) skeleton(w *way) {
	e.admin(w.admin)
	e.chains(acceptedChain)
	e.drop(func(r ipt.Rule) bool { return r.Chain == acceptedChain && !r.Equal(w.accept()) })
	e.last(w.accept())
	e.last(rule(cniForward, jump(acceptedChain)))
}

// addressRules are the reference's rules of an address.
func addressRules(a netip.Addr) []ipt.Rule {
	host := netip.PrefixFrom(a, a.BitLen()).String()
	return []ipt.Rule{
		ipt.NewRule(cniForward, "-d", host, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"),
		ipt.NewRule(cniForward, "-s", host, "-j", "ACCEPT"),
	}
}

// bridgeRules are the reference's rules of a bridge, in the order of their chains; none for open.
func bridgeRules(bridge string, p policy) []ipt.Rule {
	any, own := comment("rules (ingressPolicy: same-bridge|isolated)"), comment("rules (ingressPolicy: "+string(p)+")")
	within, leaving := []string{"-i", bridge, "-o", bridge}, []string{"-i", bridge, "!", "-o", bridge}
	var rules []ipt.Rule
	switch p {
	case open:
		return nil
	case isolated:
		rules = append(rules, rule(stage1, within, own, jump("DROP")))
	}
	return append(rules, rule(stage1, leaving, own, jump(stage2)),
		rule(stage2, []string{"-o", bridge}, any, jump("DROP")))
}

// policyRules are those of any policy of a bridge.
func policyRules(bridge string) []ipt.Rule {
	return slices.Concat(bridgeRules(bridge, sameBridge), bridgeRules(bridge, isolated))
}

// police makes the policy of a bridge: the rules of another one go.
func (e *edit) police(bridge string, p policy) {
	want, all := bridgeRules(bridge, p), policyRules(bridge)
	e.drop(func(r ipt.Rule) bool { return slices.ContainsFunc(all, r.Equal) && !slices.ContainsFunc(want, r.Equal) })
	if p == open {
		return
	}
	any := comment("rules (ingressPolicy: same-bridge|isolated)")
	e.chains(stage1, stage2)
	e.first(rule(forwardHook, any, jump(stage1)))
	for _, r := range slices.Backward(want) {
		e.first(r)
	}
	e.last(rule(stage1, any, jump("RETURN")))
	e.last(rule(stage2, any, jump("RETURN")))
}

// policyOf is the strictest policy of which the bridge has rules.
func (e *edit) policyOf(bridge string) policy {
	for _, p := range slices.Backward(policies()) {
		if rules := bridgeRules(bridge, p); len(rules) > 0 && e.has(rules[0]) {
			return p
		}
	}
	return open
}

// whole makes all that the reference makes for an attachment.
func (e *edit) whole(r *record, f nft.Family, p policy) {
	e.admin(r.AdminChain)
	for _, a := range r.of(f) {
		for _, own := range addressRules(a) {
			e.last(own)
		}
	}
	if r.Bridge != "" {
		e.police(r.Bridge, p)
	}
}

// restore makes the change in one variant of iptables, by one run to look and one to write; the latter only where
// something has to change.
func restore(ctx context.Context, f nft.Family, v ipt.Variant, change func(*edit)) error {
	tool, err := ipt.FindVariant(ctx, f, v)
	if err != nil {
		return err
	}
	return tool.Change(ctx, filterTable, func() ([]string, error) {
		saved, err := ipt.Save(ctx, f, v, filterTable)
		e := &edit{saved: saved}
		change(e)
		return e.lines, err
	})
}

// prepareIPTables makes sure that the programs for all families that ADD changes are installed, and notes their
// variant in the record. It returns these families.
func (c *call) prepareIPTables(ctx context.Context, r *record) ([]nft.Family, error) {
	own := r.families()
	for _, f := range own {
		tool, err := ipt.Find(ctx, f)
		if err != nil {
			return nil, err
		}
		r.Variant = tool.Variant
	}
	all, err := c.policyFamilies(ctx, r) // own first
	for _, f := range all[len(own):] {
		err = errors.Join(err, ipt.Installed(f))
	}
	return all, err
}

// changeIPTables makes the change for each of the families, with the programs that are plainly called iptables.
func changeIPTables(ctx context.Context, families []nft.Family, change func(*edit, nft.Family)) error {
	for _, f := range families {
		tool, err := ipt.Find(ctx, f)
		if err == nil {
			err = restore(ctx, f, tool.Variant, func(e *edit) { change(e, f) })
		}
		if err != nil {
			return fmt.Errorf("firewall with iptables: %w", err)
		}
	}
	return nil
}

// delIPTables removes the attachment's rules from both variants, and leaves its bridge the policy that others want.
// An address that another attachment has by now keeps its rules.
func (c *call) delIPTables(ctx context.Context, s *store, r *record) error {
	left, err := r.left(s)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range nft.Families() {
		var gone []ipt.Rule
		for _, a := range r.of(f) {
			used, err := r.othersHave(s, a)
			if err != nil {
				return err
			}
			if !used {
				gone = append(gone, addressRules(a)...)
			}
		}
		if left == open && r.Policy != open {
			used, err := c.referenceOn(ctx, s, r, f)
			err = r.ignoreOtherVariant(err)
			if errs = append(errs, err); !used && err == nil {
				gone = append(gone, policyRules(r.Bridge)...)
			}
		}
		if len(gone) > 0 {
			errs = append(errs, r.ignoreOtherVariant(c.delRules(ctx, f, gone)))
		}
	}
	if left == sameBridge && r.Policy == isolated {
		errs = append(errs, c.police(ctx, r, left))
	}
	return errors.Join(errs...)
}

// delReference removes what the reference made for the addresses in prevResult, but rules of an attachment of ours.
// Where it made anything, the first interface is its bridge, whose policy ends with the last container.
func (c *call) delReference(ctx context.Context, s *store, had *record) error {
	r := &record{Attachment: c.Attachment, Policy: open, Backend: iptables}
	for _, a := range addressesOf(c.PrevResult, c.IfName) {
		if had.Backend != iptables || !slices.Contains(had.Addrs, a) {
			r.Addrs = append(r.Addrs, a)
		}
	}
	made := false
	var lost error
	for _, f := range r.families() {
		have, err := c.named(ctx, f, cniForward)
		lost = errors.Join(lost, err)
		made = made || slices.ContainsFunc(r.of(f), func(a netip.Addr) bool { return have[string(a.AsSlice())] })
	}
	if made {
		if all := c.PrevResult.Interfaces; len(all) > 0 && cni.ValidIfName(all[0].Name) {
			r.Bridge, r.Policy = all[0].Name, isolated
		}
		lost = errors.Join(lost, c.delIPTables(ctx, s, r))
	}
	c.delReferenceSources(ctx, s, had)
	return c.tolerate(lost)
}

// tolerate warns of rules of the reference that stay for want of a program.
func (c *call) tolerate(err error) error {
	if ipt.NotInstalled(err) {
		c.Warn("rules of other plugins: %v", err)
		return nil
	}
	return err
}

// named are the addresses and interfaces that rules of a chain name, in either variant, as nf_tables compares them.
func (c *call) named(ctx context.Context, f nft.Family, chain string) (map[string]bool, error) {
	live, err := c.nf.Rules(filter(f), chain)
	if err := nft.IfSupported(err); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, r := range live {
		for _, value := range r.Compared(0) {
			out[string(value)] = true
		}
	}
	saved, err := ipt.Save(ctx, f, ipt.Legacy, filterTable)
	for _, r := range saved.Rules {
		if host, err := netip.ParsePrefix(r.Option("-s")); err == nil && r.Chain == chain {
			out[string(host.Addr().AsSlice())] = true
		}
		if name := r.Option("-o"); name != "" && r.Chain == chain {
			out[name+"\x00"] = true
		}
	}
	return out, err
}

// referenceOn says whether a container of the reference is on the record's bridge: one with rules for an address of
// which there is no record, and to which the bridge leads.
func (c *call) referenceOn(ctx context.Context, s *store, r *record, f nft.Family) (bool, error) {
	bridge, err := c.host.Link(r.Bridge)
	if errors.Is(err, rtnl.ErrNoLink) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	have, err := c.named(ctx, f, cniForward)
	for value := range have {
		a, ok := netip.AddrFromSlice([]byte(value))
		if !ok {
			continue
		}
		ours, anyErr := r.othersHave(s, a)
		index, _, noRoute := c.host.RouteTo(a)
		if !ours && !slices.Contains(r.Addrs, a) && noRoute == nil && index == bridge.Index {
			return true, errors.Join(err, anyErr)
		}
	}
	return false, err
}

// sweepIPTables removes the policies of bridges that nobody is on: those that the reference made have no other end.
func (c *call) sweepIPTables(ctx context.Context) error {
	var errs []error
	for _, f := range nft.Families() {
		bridges, err := c.named(ctx, f, stage2)
		errs = append(errs, err)
		for name := range bridges {
			name = strings.TrimRight(name, "\x00")
			unused, err := c.isUnused(name)
			if errs = append(errs, err); unused && err == nil {
				errs = append(errs, c.delRules(ctx, f, policyRules(name)))
			}
		}
	}
	return c.tolerate(errors.Join(errs...))
}

// delRules removes these rules: from nf_tables over netlink, without a program.
func (c *call) delRules(ctx context.Context, f nft.Family, gone []ipt.Rule) error {
	byChain := map[string][]nft.Rule{}
	for _, r := range gone {
		byChain[r.Chain] = append(byChain[r.Chain], r.InNFTables())
	}
	var errs []error
	for chain, rules := range byChain {
		left := nft.Leftover{Table: filter(f), Chain: chain, Rule: nft.OneOf(f, rules...)}
		errs = append(errs, nft.IfSupported(left.Remove(ctx, c.nf)))
	}
	err := dropLegacy(ctx, f, func(r ipt.Rule) bool { return slices.ContainsFunc(gone, r.Equal) })
	return errors.Join(append(errs, err)...)
}

// dropLegacy removes the rules that match from legacy's table.
func dropLegacy(ctx context.Context, f nft.Family, matches func(ipt.Rule) bool) error {
	saved, err := ipt.Save(ctx, f, ipt.Legacy, filterTable)
	if slices.ContainsFunc(saved.Rules, matches) {
		err = restore(ctx, f, ipt.Legacy, func(e *edit) { e.drop(matches) })
	}
	return err
}

// checkIPTables looks for the attachment's rules, in the variant that has them.
func (c *call) checkIPTables(ctx context.Context, r *record) error {
	var diffs []error
	for _, f := range r.families() {
		where, err := ipt.Chain{Family: f, Table: filterTable, Name: cniForward}.Variants(ctx, c.nf)
		if len(where) == 0 {
			if err == nil {
				err = drift("%s chain %q: is missing", f, cniForward)
			}
			diffs = append(diffs, err)
			continue
		}
		saved, err := ipt.Save(ctx, f, where[0], filterTable)
		if err != nil {
			return err
		}
		e := &edit{saved: saved}
		e.whole(r, f, stricter(r.Policy, e.policyOf(r.Bridge)))
		for _, line := range e.lines {
			if !strings.HasPrefix(line, "-D ") { // what is left of another policy
				diffs = append(diffs, drift("iptables of %s: lacks %q", f, line))
			}
		}
	}
	return errors.Join(diffs...)
}
