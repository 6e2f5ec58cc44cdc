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

// forwardTable is table filter of one family, whose chain FORWARD must accept packets with the fwmark bit, because an
// accept in nftables does not overrule a drop there. Other programs sometimes flush these chains, so each ADD adds the
// missing rules. They exist only on the backend nftables, in each variant of iptables that has FORWARD:
//
//	FORWARD -> CNI-FORWARD -> the administrator's chain
//	                       -> HAWSER-ACCEPTED: accept packets with the bit
//
// In nf_tables they have the form of iptables-nft byte for byte, so that iptables can list and edit them.
type forwardTable struct {
	call   call
	family nft.Family
	r      *record

	forward []nft.LiveRule // rules of FORWARD in nf_tables
	// needsNFT and needsLegacy are true if nf_tables and iptables-legacy must have the rules. If FORWARD is missing
	// there, ADD creates it, because another program may make it drop packets later.
	needsNFT, needsLegacy bool
}

// forwardTables returns the tables of the attachment's families or, if all is set, of both families. ADD needs both if
// it creates the layout, because the bit may have changed and rules that accept the former bit must be removed.
func (c call) forwardTables(ctx context.Context, r *record, all bool) (tables []*forwardTable, err error) {
	if r.Backend != nftables {
		return nil, nil
	}
	for _, f := range nft.Families() {
		isNeeded := len(familyAddrs(f, r.Addrs)) > 0
		if !isNeeded && !all {
			continue
		}
		if !isNeeded { // other containers may need its rules
			live, err := c.NF.Elements(table, addrSet(f))
			if err := nft.IfSupported(err); err != nil {
				return nil, err
			}
			isNeeded = len(live) > 0
		}
		ft := &forwardTable{call: c, family: f, r: r}
		if err := ft.findForward(ctx, isNeeded); err != nil {
			return nil, err
		}
		tables = append(tables, ft)
	}
	return tables, nil
}

// findForward finds FORWARD in nf_tables. If FORWARD is missing and needed, it must be created in the variant of the
// host's program iptables, or in nf_tables if there is no such program.
func (ft *forwardTable) findForward(ctx context.Context, isNeeded bool) (err error) {
	ft.forward, err = ft.call.NF.Rules(filter(ft.family), forwardHook)
	ft.needsNFT = len(ft.forward) > 0
	if err != nil || ft.needsNFT {
		return err
	}
	chain, err := ft.call.NF.Chain(filter(ft.family), forwardHook)
	ft.needsNFT = chain != nil
	if err != nil || ft.needsNFT || !isNeeded {
		return err
	}
	tool, findErr := ipt.FindTool(ctx, ft.family)
	ft.needsLegacy = findErr == nil && tool.Variant == ipt.Legacy
	ft.needsNFT = !ft.needsLegacy
	return nil
}

// accept returns the rule that accepts packets with the fwmark bit.
func (ft *forwardTable) accept() ipt.Rule {
	fwmark := fmt.Sprintf("%#x/%#[1]x", fwmarkOf(ft.r.Bit))
	return ipt.NewRule(acceptedChain, "-m", "mark", "--mark", fwmark, "-j", "ACCEPT")
}

// rules returns the wanted rules. A missing rule with a comment, which sends packets to the administrator's chain, is
// inserted at the beginning of its chain.
func (ft *forwardTable) rules() []ipt.Rule {
	return append([]ipt.Rule{ft.accept(), ipt.NewRule(cniForward, "-j", acceptedChain)}, adminRules(ft.r.AdminChain)...)
}

// compare returns the wanted rules that are missing in nf_tables, and the rules in acceptedChain that are not wanted.
func (ft *forwardTable) compare() (missing []ipt.Rule, stale []nft.LiveRule, err error) {
	if !ft.needsNFT {
		return nil, nil, nil
	}
	live := map[string][]nft.LiveRule{forwardHook: ft.forward}
	for _, chain := range []string{cniForward, acceptedChain} {
		if live[chain], err = ft.call.NF.Rules(filter(ft.family), chain); err != nil {
			return nil, nil, err
		}
	}
	forms := []nft.Rule{ft.nftRule(ft.accept()), {nft.FwmarkHas(fwmarkOf(ft.r.Bit)), nft.Accept()}}
	isAccept := func(l nft.LiveRule) bool { return l.IsOneOf(ft.family, forms...) }
	for _, r := range ft.rules() {
		isRule := func(l nft.LiveRule) bool { return l.Target == r.Option("-j") }
		if r.Chain == acceptedChain {
			isRule = isAccept
		}
		if !slices.ContainsFunc(live[r.Chain], isRule) {
			missing = append(missing, r)
		}
	}
	return missing, slices.DeleteFunc(live[acceptedChain], isAccept), nil
}

// stage stages the changes that nf_tables needs.
func (ft *forwardTable) stage(tx *nft.Tx) error {
	rules, stale, err := ft.compare()
	if err != nil || len(rules)+len(stale) == 0 {
		return err
	}
	t := filter(ft.family)
	if ft.r.AdminChain != defaultAdminChain && slices.ContainsFunc(rules, adminJump(ft.r.AdminChain).Equal) {
		live, err := ft.call.NF.Rules(t, cniForward)
		if err != nil {
			return err
		}
		for _, l := range slices.Backward(live) { // as in ensureAdmin
			if jump := adminJump(l.Target); l.IsOneOf(ft.family, ft.nftRule(jump)) {
				stale, rules = append(stale, l), append(rules, jump)
			}
		}
	}
	forward := nft.Chain{Name: forwardHook, Hook: &nft.Hook{Type: "filter", Point: nft.Forward}}
	chains := []nft.Chain{forward, {Name: ft.r.AdminChain}, {Name: cniForward}, {Name: acceptedChain}}
	if err := tx.EnsureLayout(nft.Layout{Table: t, Chains: chains}); err != nil {
		return err
	}
	for _, l := range stale {
		tx.DeleteRule(t, l.Chain, l.Handle)
	}
	for _, r := range rules {
		addRule := tx.AddRule
		if r.Option("--comment") != "" { // see rules
			addRule = tx.InsertRule
		}
		rule := ft.nftRule(r)
		addRule(t, r.Chain, slices.Insert(rule, len(rule)-1, nft.Counter()))
	}
	return nil
}

// nftRule returns one of the rules in the form of iptables-nft, without its counter.
func (ft *forwardTable) nftRule(r ipt.Rule) nft.Rule {
	if r.Chain == acceptedChain {
		// struct xt_mark_mtinfo1. iptables before 1.8.8 does not know other forms of this comparison, and would list
		// the rule without a match.
		info := make([]byte, 16)
		binary.NativeEndian.PutUint32(info, fwmarkOf(ft.r.Bit))
		binary.NativeEndian.PutUint32(info[4:], fwmarkOf(ft.r.Bit))
		return nft.Rule{nft.XTMatch("mark", 1, info), nft.Accept()}
	}
	var out nft.Rule
	if text := r.Option("--comment"); text != "" {
		const size = 256
		out = append(out, nft.XTMatch("comment", 0, append([]byte(text), make([]byte, size-len(text))...)))
	}
	return append(out, nft.Jump(r.Option("-j")))
}

// probe returns an error if the kernel lacks the rules' matches. It sends them in a batch that is not committed.
func (ft *forwardTable) probe() error {
	probe := nft.Chain{Name: "probe"}
	for _, r := range ft.rules() {
		rule := ft.nftRule(r)
		probe.Rules = append(probe.Rules, append(rule[:len(rule)-1], nft.Accept())) // the table has no chain to jump to
	}
	t := nft.Table{Family: ft.family, Name: "hawser_probe"}
	return ft.call.NF.Probe(nft.Layout{Table: t, Chains: []nft.Chain{probe}})
}

// ensureLegacy adds the missing rules in iptables-legacy. It only warns if the program is missing, or if FORWARD does
// not exist there and cannot be created.
func (ft *forwardTable) ensureLegacy(ctx context.Context) error {
	hasForward := true
	err := iptLegacy(ft.family).Edit(ctx, filterTable, func(e *ipt.Edit) {
		hasForward = e.HasChain(forwardHook)
		ft.editLegacy(e)
	})
	if err != nil && (ipt.NotInstalled(err) || !hasForward) {
		ft.call.Req.Warn("chain FORWARD of %s (iptables-legacy) may drop the container's packets: %v", ft.family, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("chain FORWARD of %s (iptables-legacy): %w", ft.family, err)
	}
	return nil
}

// editLegacy adds the rules to a table of iptables-legacy that has FORWARD, or must have it.
func (ft *forwardTable) editLegacy(e *ipt.Edit) {
	if e.HasChain(forwardHook) || ft.needsLegacy {
		ensureAdmin(e, ft.r.AdminChain)
		e.SetRules(acceptedChain, []ipt.Rule{ft.accept()})
		e.Append(ipt.NewRule(cniForward, "-j", acceptedChain))
	}
}

func (ft *forwardTable) verify(ctx context.Context) error {
	missing, stale, err := ft.compare()
	if err != nil {
		return err
	}
	var diffs []error
	addDiff := func(v ipt.Variant, format string, args ...any) {
		diffs = append(diffs, cni.Drift("chain FORWARD of %s (iptables-%s): %s", ft.family, v,
			fmt.Sprintf(format, args...)))
	}
	if len(missing) > 0 && errors.Is(ft.probe(), nft.ErrUnsupported) {
		missing = nil // ADD warned that it could not add them
	}
	for _, r := range missing {
		addDiff(ipt.NFT, "no rule jumps from %s to %q", r.Chain, r.Option("-j"))
	}
	if len(stale) > 0 {
		addDiff(ipt.NFT, "%s accepts more than bit %d of the fwmark", acceptedChain, ft.r.Bit)
	}
	legacy, err := iptLegacy(ft.family).Read(ctx, filterTable)
	if err != nil && !ipt.NotInstalled(err) {
		return err
	}
	if err == nil {
		if ft.editLegacy(legacy); len(legacy.Lines) > 0 {
			addDiff(ipt.Legacy, "it lacks %s", legacy.Lines[0])
		}
	}
	return errors.Join(diffs...)
}

// removeSharedChains deletes the rules in iptables that accept the fwmark bit, and then this plugin's chains in
// nftables, if no attachment needs them any more. Sets, and the chains in iptables, stay, because they do not affect
// packets.
func (c call) removeSharedChains(ctx context.Context, s *store) error {
	isUsed, err := s.Any(func(o record) bool { return o.Backend != iptables })
	if err != nil || isUsed {
		return err
	}
	chains, err := c.NF.Chains(table)
	if err != nil || !slices.ContainsFunc(chains, func(l nft.LiveChain) bool { return isOwnChain(l.Name) }) {
		return nft.IfSupported(err)
	}
	for _, set := range append(elements().Sets, policyBridgeSet) { // a record may have been lost
		if live, err := c.NF.Elements(table, set); err != nil || len(live) > 0 {
			return err
		}
	}
	for _, f := range nft.Families() {
		err := iptLegacy(f).Edit(ctx, filterTable, func(e *ipt.Edit) {
			e.Delete(func(r ipt.Rule) bool { return r.Chain == acceptedChain })
		})
		// If the program is missing, ADD added no rules there, or the program was removed since then.
		warning := fmt.Sprintf("chain %s of %s (iptables-legacy): not checked", acceptedChain, f)
		if err := ipt.WarnIfMissing(c.Req.Warn, warning, err); err != nil {
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
		return tx.DeleteChains(table, isOwnChain)
	})
}
