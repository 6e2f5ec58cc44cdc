package main

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

// way is the rules that lead packets with the fwmark bit through FORWARD of one family, for all containers on
// nftables: an accept in nftables does not overrule a drop in FORWARD. Others flush these chains now and then, so
// each ADD makes again what is missing.
type way struct {
	call
	nft.Family
	r         *record
	inForward []nft.LiveRule // the rules of FORWARD in nf_tables
	// In which variant the rules belong. FORWARD is made there if it is missing, for the day on which somebody has it
	// drop.
	inNFT, inLegacy bool
}

// ways are those of the attachment's families, or with all those of both: a new layout may be for another bit, and no
// rule may be left that accepts the old one. Only the backend nftables has any.
func (c call) ways(ctx context.Context, r *record, all bool) (ways []*way, err error) {
	if r.Backend != nftables {
		return nil, nil
	}
	for _, f := range nft.Families() {
		wanted := len(ofFamily(f, r.Addrs)) > 0
		if !wanted && !all {
			continue
		}
		if !wanted { // by other containers, perhaps
			live, err := c.NF.Elements(table, addrSet(f))
			if err := nft.IfSupported(err); err != nil {
				return nil, err
			}
			wanted = len(live) > 0
		}
		w := &way{call: c, Family: f, r: r}
		if err := w.findForward(ctx, wanted); err != nil {
			return nil, err
		}
		ways = append(ways, w)
	}
	return ways, nil
}

// findForward looks for FORWARD in nf_tables, and decides where one that is wanted is made: in the variant that
// iptables are on this host, in nf_tables where there are no programs.
func (w *way) findForward(ctx context.Context, wanted bool) (err error) {
	w.inForward, err = w.NF.Rules(filter(w.Family), forwardHook)
	if w.inNFT = len(w.inForward) > 0; err != nil || w.inNFT {
		return err
	}
	there, err := w.NF.Chain(filter(w.Family), forwardHook)
	if w.inNFT = there != nil; err != nil || w.inNFT || !wanted {
		return err
	}
	tool, missing := ipt.Find(ctx, w.Family)
	w.inLegacy = missing == nil && tool.Variant == ipt.Legacy
	w.inNFT = !w.inLegacy
	return nil
}

// accept is the rule that makes the difference.
func (w *way) accept() ipt.Rule {
	fwmark := fmt.Sprintf("%#x/%#[1]x", fwmarkOf(w.r.Bit))
	return ipt.NewRule(acceptedChain, "-m", "mark", "--mark", fwmark, "-j", "ACCEPT")
}

// rules are all that lead through nf_tables, in the order in which they are made: those of the administrator's chain
// become the first ones of theirs.
func (w *way) rules() []ipt.Rule {
	return append([]ipt.Rule{w.accept(), ipt.NewRule(cniForward, "-j", acceptedChain)}, adminRules(w.r.AdminChain)...)
}

// missing returns the rules that nf_tables lack, and what else there is in acceptedChain. It asks over netlink,
// without a program.
func (w *way) missing() (rules []ipt.Rule, stale []nft.LiveRule, err error) {
	if !w.inNFT {
		return nil, nil, nil
	}
	live := map[string][]nft.LiveRule{forwardHook: w.inForward}
	for _, chain := range []string{cniForward, acceptedChain} {
		if live[chain], err = w.NF.Rules(filter(w.Family), chain); err != nil {
			return nil, nil, err
		}
	}
	ours := []nft.Rule{w.inNFTables(w.accept()), {nft.FwmarkHas(fwmarkOf(w.r.Bit)), nft.Accept()}}
	accepts := func(l nft.LiveRule) bool { return l.IsOneOf(w.Family, ours...) }
	for _, r := range w.rules() {
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
func (w *way) stage(tx *nft.Tx) error {
	rules, stale, err := w.missing()
	if err != nil || len(rules)+len(stale) == 0 {
		return err
	}
	t := filter(w.Family)
	forward := nft.Chain{Name: forwardHook, Hook: &nft.Hook{Type: "filter", Point: nft.Forward}}
	err = tx.EnsureLayout(nft.Layout{Table: t,
		Chains: []nft.Chain{forward, {Name: w.r.AdminChain}, {Name: cniForward}, {Name: acceptedChain}}})
	for _, l := range stale {
		tx.DeleteRule(t, acceptedChain, l.Handle)
	}
	for _, r := range rules {
		place := tx.AddRule
		if r.Option("--comment") != "" { // an administrator's
			place = tx.InsertRule
		}
		made := w.inNFTables(r)
		place(t, r.Chain, slices.Insert(made, len(made)-1, nft.Counter()))
	}
	return err
}

// inNFTables is one of the rules as iptables-nft writes it.
func (w *way) inNFTables(r ipt.Rule) nft.Rule {
	if r.Chain == acceptedChain {
		// struct xt_mark_mtinfo1. Programs before 1.8.8 know fwmarks in this form alone, and take a rule that compares
		// them in another form for a rule without a match.
		info := make([]byte, 16)
		binary.NativeEndian.PutUint32(info, fwmarkOf(w.r.Bit))
		binary.NativeEndian.PutUint32(info[4:], fwmarkOf(w.r.Bit))
		return nft.Rule{nft.XTMatch("mark", 1, info), nft.Accept()}
	}
	var out nft.Rule
	if text := r.Option("--comment"); text != "" {
		const size = 256
		out = append(out, nft.XTMatch("comment", 0, append([]byte(text), make([]byte, size-len(text))...)))
	}
	return append(out, nft.Jump(r.Option("-j")))
}

// ensureLegacy makes what is missing in legacy's table. Where nobody has made FORWARD there yet, it may be more than
// the kernel can do: then an error is no error of the call.
func (w *way) ensureLegacy(ctx context.Context) error {
	mustWork := true
	err := iptLegacy(w.Family).Edit(ctx, filterTable, func(e *ipt.Edit) {
		mustWork = e.HasChain(forwardHook)
		w.ensureIn(e)
	})
	if err != nil && (ipt.NotInstalled(err) || !mustWork) {
		w.Warn("what chain FORWARD of %s (iptables-legacy) drops stays dropped: %v", w.Family, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("chain FORWARD of %s (iptables-legacy): %w", w.Family, err)
	}
	return nil
}

// ensureIn makes the rules in legacy's table where it has FORWARD, or is to have it: those that accept packets with
// the fwmark bit, behind the administrator's chain.
func (w *way) ensureIn(e *ipt.Edit) {
	if e.HasChain(forwardHook) || w.inLegacy {
		ensureAdmin(e, w.r.AdminChain)
		e.Fill(acceptedChain, []ipt.Rule{w.accept()})
		e.Last(ipt.NewRule(cniForward, "-j", acceptedChain))
	}
}

// check compares the way with what it is to be, in both variants.
func (w *way) check(ctx context.Context) error {
	rules, stale, err := w.missing()
	if err != nil {
		return err
	}
	var diffs []error
	differs := func(v ipt.Variant, format string, args ...any) {
		where := fmt.Sprintf("chain FORWARD of %s (iptables-%s)", w.Family, v)
		diffs = append(diffs, cni.Drift("%s: %s", where, fmt.Sprintf(format, args...)))
	}
	for _, r := range rules {
		differs(ipt.NFT, "nothing leads from %s to %q", r.Chain, r.Option("-j"))
	}
	if len(stale) > 0 {
		differs(ipt.NFT, "%s accepts more than bit %d of the fwmark", acceptedChain, w.r.Bit)
	}
	legacy, err := iptLegacy(w.Family).Look(ctx, filterTable)
	if err != nil && !ipt.NotInstalled(err) {
		return err
	}
	if err == nil {
		if w.ensureIn(legacy); len(legacy.Lines) > 0 {
			differs(ipt.Legacy, "it lacks %s", legacy.Lines[0])
		}
	}
	return errors.Join(diffs...)
}

// retire takes away what touches packets when nobody is left whom it serves: the chains, and before them what accepts
// the fwmark bit in FORWARD. Sets, and the chains of iptables, stay.
func (c call) retire(ctx context.Context, s *store) error {
	used, err := s.Any(func(o record) bool { return o.Backend != iptables })
	if err != nil || used {
		return err
	}
	chains, err := c.NF.Chains(table)
	if err != nil || !slices.ContainsFunc(chains, func(l nft.LiveChain) bool { return isOurs(l.Name) }) {
		return nft.IfSupported(err)
	}
	for _, set := range append(elements().Sets, policedSet) { // their records may be lost
		if live, err := c.NF.Elements(table, set); err != nil || len(live) > 0 {
			return err
		}
	}
	for _, f := range nft.Families() {
		err := iptLegacy(f).Edit(ctx, filterTable, func(e *ipt.Edit) {
			e.Delete(func(r ipt.Rule) bool { return r.Chain == acceptedChain })
		})
		// Without the program ADD made nothing there, or it was removed since.
		what := fmt.Sprintf("chain %s of %s (iptables-legacy): not looked at", acceptedChain, f)
		if err := ipt.Tolerate(c.Warn, what, err); err != nil {
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
