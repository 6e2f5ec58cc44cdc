package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// forwardPath has the rules that lead packets with the fwmark bit through FORWARD of a family: an accept in nftables
// does not overrule a drop there. Others flush these chains now and then, so each ADD makes the missing rules again.
type forwardPath struct {
	call
	nft.Family
	r         *record
	inForward []nft.LiveRule // the rules of FORWARD in nf_tables
	// inNFT and inLegacy say to which variant the rules belong. If FORWARD is missing there, ADD makes it: somebody may
	// have it drop later.
	inNFT, inLegacy bool
}

// forwardPaths are those of the attachment's families, or with all those of both families: a new layout may be for
// another bit, and rules that accept the former bit have to go. Only the backend nftables has any.
func (c call) forwardPaths(ctx context.Context, r *record, all bool) (paths []*forwardPath, err error) {
	if r.Backend != nftables {
		return nil, nil
	}
	for _, f := range nft.Families() {
		wanted := len(ofFamily(f, r.Addrs)) > 0
		if !wanted && !all {
			continue
		}
		if !wanted { // other containers may need it
			live, err := c.NF.Elements(table, addrSet(f))
			if err := nft.IfSupported(err); err != nil {
				return nil, err
			}
			wanted = len(live) > 0
		}
		p := &forwardPath{call: c, Family: f, r: r}
		if err := p.findForward(ctx, wanted); err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// findForward looks for FORWARD in nf_tables. If it is missing and wanted, the variant of the host's program iptables
// decides where it is made; without the program it is made in nf_tables.
func (p *forwardPath) findForward(ctx context.Context, wanted bool) (err error) {
	p.inForward, err = p.NF.Rules(filter(p.Family), forwardHook)
	p.inNFT = len(p.inForward) > 0
	if err != nil || p.inNFT {
		return err
	}
	there, err := p.NF.Chain(filter(p.Family), forwardHook)
	p.inNFT = there != nil
	if err != nil || p.inNFT || !wanted {
		return err
	}
	tool, missing := ipt.Find(ctx, p.Family)
	p.inLegacy = missing == nil && tool.Variant == ipt.Legacy
	p.inNFT = !p.inLegacy
	return nil
}

// accept is the rule that accepts packets with the fwmark bit.
func (p *forwardPath) accept() ipt.Rule {
	fwmark := fmt.Sprintf("%#x/%#[1]x", fwmarkOf(p.r.Bit))
	return ipt.NewRule(acceptedChain, "-m", "mark", "--mark", fwmark, "-j", "ACCEPT")
}

// rules are all that lead through nf_tables, in order. Those of the administrator's chain come first in their chains.
func (p *forwardPath) rules() []ipt.Rule {
	return append([]ipt.Rule{p.accept(), ipt.NewRule(cniForward, "-j", acceptedChain)}, adminRules(p.r.AdminChain)...)
}

// missing returns, over netlink, the rules that nf_tables lack, and as stale the other rules in acceptedChain.
func (p *forwardPath) missing() (rules []ipt.Rule, stale []nft.LiveRule, err error) {
	if !p.inNFT {
		return nil, nil, nil
	}
	live := map[string][]nft.LiveRule{forwardHook: p.inForward}
	for _, chain := range []string{cniForward, acceptedChain} {
		if live[chain], err = p.NF.Rules(filter(p.Family), chain); err != nil {
			return nil, nil, err
		}
	}
	ours := []nft.Rule{p.inNFTables(p.accept()), {nft.FwmarkHas(fwmarkOf(p.r.Bit)), nft.Accept()}}
	accepts := func(l nft.LiveRule) bool { return l.IsOneOf(p.Family, ours...) }
	for _, r := range p.rules() {
		leads := func(l nft.LiveRule) bool { return l.Target == r.Option("-j") }
		if r.Chain == acceptedChain {
			leads = accepts
		}
		if !slices.ContainsFunc(live[r.Chain], leads) {
			rules = append(rules, r)
		}
	}
	return rules, slices.DeleteFunc(live[acceptedChain], accepts), nil
}

// stage stages what is missing in nf_tables, in the form of iptables-nft.
func (p *forwardPath) stage(tx *nft.Tx) error {
	rules, stale, err := p.missing()
	if err != nil || len(rules)+len(stale) == 0 {
		return err
	}
	t := filter(p.Family)
	if p.r.AdminChain != defaultAdminChain && slices.ContainsFunc(rules, adminJump(p.r.AdminChain).Equal) {
		live, err := p.NF.Rules(t, cniForward)
		if err != nil {
			return err
		}
		for _, l := range slices.Backward(live) { // chains that packets already pass stay before the configured one
			if jump := adminJump(l.Target); l.IsOneOf(p.Family, p.inNFTables(jump)) {
				stale, rules = append(stale, l), append(rules, jump)
			}
		}
	}
	forward := nft.Chain{Name: forwardHook, Hook: &nft.Hook{Type: "filter", Point: nft.Forward}}
	chains := []nft.Chain{forward, {Name: p.r.AdminChain}, {Name: cniForward}, {Name: acceptedChain}}
	if err := tx.EnsureLayout(nft.Layout{Table: t, Chains: chains}); err != nil {
		return err
	}
	for _, l := range stale {
		tx.DeleteRule(t, l.Chain, l.Handle)
	}
	for _, r := range rules {
		place := tx.AddRule
		if r.Option("--comment") != "" { // it leads through the administrator's chain
			place = tx.InsertRule
		}
		made := p.inNFTables(r)
		place(t, r.Chain, slices.Insert(made, len(made)-1, nft.Counter()))
	}
	return nil
}

// inNFTables is one of the rules as iptables-nft writes it.
func (p *forwardPath) inNFTables(r ipt.Rule) nft.Rule {
	if r.Chain == acceptedChain {
		// struct xt_mark_mtinfo1. Programs before 1.8.8 know fwmarks in this form alone, and take a rule that compares
		// them in another form for a rule without a match.
		info := make([]byte, 16)
		binary.NativeEndian.PutUint32(info, fwmarkOf(p.r.Bit))
		binary.NativeEndian.PutUint32(info[4:], fwmarkOf(p.r.Bit))
		return nft.Rule{nft.XTMatch("mark", 1, info), nft.Accept()}
	}
	var out nft.Rule
	if text := r.Option("--comment"); text != "" {
		const size = 256
		out = append(out, nft.XTMatch("comment", 0, append([]byte(text), make([]byte, size-len(text))...)))
	}
	return append(out, nft.Jump(r.Option("-j")))
}

// probe says whether the kernel can hold what the rules match, in a table that is not kept.
func (p *forwardPath) probe() error {
	probe := nft.Chain{Name: "probe"}
	for _, r := range p.rules() {
		made := p.inNFTables(r)
		probe.Rules = append(probe.Rules, append(made[:len(made)-1], nft.Accept())) // no chain to lead to
	}
	t := nft.Table{Family: p.Family, Name: "hawser_probe"}
	return p.NF.Probe(nft.Layout{Table: t, Chains: []nft.Chain{probe}})
}

// ensureLegacy makes what is missing in legacy's table. A kernel that cannot make FORWARD there is a warning.
func (p *forwardPath) ensureLegacy(ctx context.Context) error {
	mustWork := true
	err := iptLegacy(p.Family).Edit(ctx, filterTable, func(e *ipt.Edit) {
		mustWork = e.HasChain(forwardHook)
		p.ensureIn(e)
	})
	if err != nil && (ipt.NotInstalled(err) || !mustWork) {
		p.Req.Warn("what chain FORWARD of %s (iptables-legacy) drops stays dropped: %v", p.Family, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("chain FORWARD of %s (iptables-legacy): %w", p.Family, err)
	}
	return nil
}

// ensureIn makes the rules in legacy's table where it has FORWARD, or is to have it: those that accept packets with
// the fwmark bit, behind the administrator's chain.
func (p *forwardPath) ensureIn(e *ipt.Edit) {
	if e.HasChain(forwardHook) || p.inLegacy {
		ensureAdmin(e, p.r.AdminChain)
		e.Fill(acceptedChain, []ipt.Rule{p.accept()})
		e.Last(ipt.NewRule(cniForward, "-j", acceptedChain))
	}
}

// verify compares the rules with what they are to be, in both variants.
func (p *forwardPath) verify(ctx context.Context) error {
	rules, stale, err := p.missing()
	if err != nil {
		return err
	}
	var diffs []error
	differs := func(v ipt.Variant, format string, args ...any) {
		where := fmt.Sprintf("chain FORWARD of %s (iptables-%s)", p.Family, v)
		diffs = append(diffs, cni.Drift("%s: %s", where, fmt.Sprintf(format, args...)))
	}
	if len(rules) > 0 && errors.Is(p.probe(), nft.ErrUnsupported) {
		rules = nil // ADD made none, and said so
	}
	for _, r := range rules {
		differs(ipt.NFT, "nothing leads from %s to %q", r.Chain, r.Option("-j"))
	}
	if len(stale) > 0 {
		differs(ipt.NFT, "%s accepts more than bit %d of the fwmark", acceptedChain, p.r.Bit)
	}
	legacy, err := iptLegacy(p.Family).Look(ctx, filterTable)
	if err != nil && !ipt.NotInstalled(err) {
		return err
	}
	if err == nil {
		if p.ensureIn(legacy); len(legacy.Lines) > 0 {
			differs(ipt.Legacy, "it lacks %s", legacy.Lines[0])
		}
	}
	return errors.Join(diffs...)
}

// retire deletes what touches packets when no container is left: the rules in FORWARD that accept the fwmark bit, and
// then the chains. Sets, and the chains of iptables, stay.
func (c call) retire(ctx context.Context, s *store) error {
	used, err := s.Any(func(o record) bool { return o.Backend != iptables })
	if err != nil || used {
		return err
	}
	chains, err := c.NF.Chains(table)
	if err != nil || !slices.ContainsFunc(chains, func(l nft.LiveChain) bool { return isOurs(l.Name) }) {
		return nft.IfSupported(err)
	}
	for _, set := range append(elements().Sets, policedSet) { // an element's record may be lost
		if live, err := c.NF.Elements(table, set); err != nil || len(live) > 0 {
			return err
		}
	}
	for _, f := range nft.Families() {
		err := iptLegacy(f).Edit(ctx, filterTable, func(e *ipt.Edit) {
			e.Delete(func(r ipt.Rule) bool { return r.Chain == acceptedChain })
		})
		// If the program is missing ADD made nothing there, or the program was removed later.
		what := fmt.Sprintf("chain %s of %s (iptables-legacy): not looked at", acceptedChain, f)
		if err := ipt.WarnIfMissing(c.Req.Warn, what, err); err != nil {
			return err
		}
	}
	return elements().Update(ctx, c.NF, func(tx *nft.Tx) error {
		for _, f := range nft.Families() {
			anyRule := func(nft.LiveRule) bool { return true }
			if err := (nft.Removal{Table: filter(f), Chain: acceptedChain, Rule: anyRule}).Stage(tx); err != nil {
				return err
			}
		}
		return tx.DeleteChains(table, isOurs)
	})
}
