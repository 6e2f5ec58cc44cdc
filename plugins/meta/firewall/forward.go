package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// way is the rules that lead packets with the fwmark bit through FORWARD of one family, for all containers on
// nftables: an accept in nftables does not overrule a drop in FORWARD. Others flush these chains now and then, so
// each ADD makes again what is missing.
type way struct {
	*call
	nft.Family
	admin     string
	bit       int
	inForward []nft.LiveRule // the rules of FORWARD in nf_tables
	// In which variant the rules belong. FORWARD is made there if it is missing, for the day on which somebody has it
	// drop.
	inNFT, inLegacy bool
}

// ways are those of the attachment's families, or with all those of both: a new layout may be for another bit, and no
// rule may be left that accepts the old one. Only the backend nftables has any.
func (c *call) ways(ctx context.Context, r *record, all bool) (ways []*way, err error) {
	if r.Backend != nftables {
		return nil, nil
	}
	for _, f := range nft.Families() {
		wanted := len(r.of(f)) > 0
		if !wanted && !all {
			continue
		}
		if !wanted { // by other containers, perhaps
			live, err := c.nf.Elements(table, addrSet(f))
			if err := nft.IfSupported(err); err != nil {
				return nil, err
			}
			wanted = len(live) > 0
		}
		w := &way{call: c, Family: f, admin: r.AdminChain, bit: r.bit()}
		if w.inForward, err = c.nf.Rules(filter(f), forwardHook); err == nil {
			err = w.findForward(ctx, wanted)
		}
		if err != nil {
			return nil, err
		}
		ways = append(ways, w)
	}
	return ways, nil
}

// findForward looks for FORWARD in nf_tables, and decides where one that is wanted is made: in the variant that
// iptables are on this host, in nf_tables where there are no programs.
func (w *way) findForward(ctx context.Context, wanted bool) error {
	if w.inNFT = len(w.inForward) > 0; w.inNFT {
		return nil
	}
	there, err := w.nf.Chain(filter(w.Family), forwardHook)
	if w.inNFT = there != nil; err != nil || w.inNFT || !wanted {
		return err
	}
	tool, err := ipt.Find(ctx, w.Family)
	w.inLegacy = err == nil && tool.Variant == ipt.Legacy
	w.inNFT = !w.inLegacy
	return nil
}

// accept is the rule that makes the difference.
func (w *way) accept() ipt.Rule {
	fwmark := fmt.Sprintf("%#x/%#[1]x", fwmarkOf(w.bit))
	return ipt.NewRule(acceptedChain, "-m", "mark", "--mark", fwmark, "-j", "ACCEPT")
}

// rules are all that lead through nf_tables, in the order in which they are made: those of the administrator's chain
// become the first ones of theirs.
func (w *way) rules() []ipt.Rule {
	return append([]ipt.Rule{w.accept(), rule(cniForward, jump(acceptedChain))}, adminRules(w.admin)...)
}

// missing returns the rules that nf_tables lack, and what else there is in acceptedChain. It asks over netlink,
// without a program.
func (w *way) missing() (rules []ipt.Rule, stale []nft.LiveRule, err error) {
	if !w.inNFT {
		return nil, nil, nil
	}
	live := map[string][]nft.LiveRule{forwardHook: w.inForward}
	for _, chain := range []string{cniForward, acceptedChain} {
		if live[chain], err = w.nf.Rules(filter(w.Family), chain); err != nil {
			return nil, nil, err
		}
	}
	accepts := nft.OneOf(w.Family, w.accept().InNFTables(), nft.Rule{nft.FwmarkHas(fwmarkOf(w.bit)), nft.Accept()})
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
	_, err = tx.Ensure(nft.Layout{Table: t,
		Chains: []nft.Chain{forward, {Name: w.admin}, {Name: cniForward}, {Name: acceptedChain}}})
	for _, l := range stale {
		tx.DeleteRule(t, acceptedChain, l.Handle)
	}
	inserted := adminRules(w.admin)
	for _, r := range rules {
		place := tx.AddRule
		if slices.ContainsFunc(inserted, r.Equal) {
			place = tx.InsertRule
		}
		made := r.InNFTables()
		place(t, r.Chain, slices.Insert(made, len(made)-1, nft.Counter()))
	}
	return err
}

// ensureLegacy makes what is missing in legacy's table. Where nobody has made that yet, it may be more than the
// kernel can do.
func (w *way) ensureLegacy(ctx context.Context) error {
	lacking, mustWork, err := w.lackingLegacy(ctx)
	if lacking != "" {
		err = restore(ctx, w.Family, ipt.Legacy, func(e *edit) { e.skeleton(w) })
	}
	switch {
	case err == nil:
		return nil
	case ipt.NotInstalled(err), !mustWork:
		w.Warn("what chain FORWARD of %s (iptables-legacy) drops stays dropped: %v", w.Family, err)
		return nil
	}
	return fmt.Errorf("chain FORWARD of %s (iptables-legacy): %w", w.Family, err)
}

// lackingLegacy returns the first line that legacy's table lacks, empty if none. mustWork says that FORWARD is
// there, or may be: then an error of the program is an error of the call.
func (w *way) lackingLegacy(ctx context.Context) (line string, mustWork bool, err error) {
	saved, err := ipt.Save(ctx, w.Family, ipt.Legacy, filterTable)
	if err != nil {
		return "", true, err
	}
	e := &edit{saved: saved}
	e.skeleton(w)
	mustWork = slices.Contains(saved.Chains, forwardHook)
	if len(e.lines) > 0 && (mustWork || w.inLegacy) {
		line = e.lines[0]
	}
	return line, mustWork, nil
}

// check compares the way with what it is to be, in both variants.
func (w *way) check(ctx context.Context) error {
	rules, stale, err := w.missing()
	if err != nil {
		return err
	}
	var diffs []error
	differs := func(v ipt.Variant, format string, args ...any) {
		diffs = append(diffs, drift("chain FORWARD of %s (iptables-%s): %s", w.Family, v, fmt.Sprintf(format, args...)))
	}
	for _, r := range rules {
		differs(ipt.NFT, "nothing leads from %s to %q", r.Chain, r.Option("-j"))
	}
	if len(stale) > 0 {
		differs(ipt.NFT, "%s accepts more than bit %d of the fwmark", acceptedChain, w.bit)
	}
	lacking, _, err := w.lackingLegacy(ctx)
	if lacking != "" {
		differs(ipt.Legacy, "it lacks %s", lacking)
	}
	if err != nil && !ipt.NotInstalled(err) {
		return err
	}
	return errors.Join(diffs...)
}

// retire takes away what touches packets when nobody is left whom it serves: the chains, and before them what accepts
// the fwmark bit in FORWARD. Sets, and the chains of iptables, stay.
func (c *call) retire(ctx context.Context, s *store) error {
	used, err := s.Any(func(o record) bool { return o.Backend != iptables })
	if err != nil || used {
		return err
	}
	chains, err := c.nf.Chains(table)
	if err != nil || !slices.ContainsFunc(chains, func(l nft.LiveChain) bool { return isOurs(l.Name) }) {
		return nft.IfSupported(err)
	}
	for _, set := range append(elements().Sets, policedSet) { // their records may be lost
		if live, err := c.nf.Elements(table, set); err != nil || len(live) > 0 {
			return err
		}
	}
	inAccepted := func(r ipt.Rule) bool { return r.Chain == acceptedChain }
	for _, f := range nft.Families() {
		err := dropLegacy(ctx, f, inAccepted)
		if ipt.NotInstalled(err) { // then ADD made nothing there, or the program was removed since
			c.Warn("chain %s of %s (iptables-legacy): not looked at: %v", acceptedChain, f, err)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return elements().Update(ctx, c.nf, func(ch *nft.Change) error {
		for _, f := range nft.Families() {
			left := nft.Leftover{Table: filter(f), Chain: acceptedChain, Rule: func(nft.LiveRule) bool { return true }}
			if err := left.Stage(ch.Tx); err != nil {
				return err
			}
		}
		return ch.DeleteChains(table, isOurs)
	})
}
