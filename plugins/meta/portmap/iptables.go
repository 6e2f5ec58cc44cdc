package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// attempts bounds how often a restore is planned again because others changed
// the same rules.
const attempts = 3

func (f fam) ipt() ipt.Family {
	if f.v4 {
		return ipt.IPv4
	}
	return ipt.IPv6
}

// nat is where iptables for nf_tables keeps its table nat.
func (f fam) nat() nft.Table { return nft.Table{Family: f.family, Name: natTable} }

// variants says which iptables have a chain of this name, without running
// either.
func (f fam) variants(nf *nft.Conn, chain string) ([]ipt.Variant, error) {
	return ipt.Chain{Family: f.ipt(), Table: natTable, Name: chain}.Variants(context.Background(), nf)
}

// found is variants for those to whom a chain that only a program which is missing could show is none.
func (f fam) found(nf *nft.Conn, chain string) ([]ipt.Variant, error) {
	where, err := f.variants(nf, chain)
	if ipt.NotInstalled(err) {
		err = nil
	}
	return where, err
}

// absent turns "this kernel has no nftables" into "so there is nothing in it".
func absent(err error) error {
	if errors.Is(err, nft.ErrUnsupported) {
		return nil
	}
	return err
}

// rules is a change of one family's rules in iptables.
type rules struct {
	nf       *nft.Conn
	fam      fam
	st       *state
	siblings []*state // who else has rules in the same chain
}

// addIPTables makes the rules of the reference: one restore for each family.
func addIPTables(ctx context.Context, nf *nft.Conn, st *state, siblings []*state) error {
	for _, t := range st.Targets {
		r := rules{nf, famOf(t.v4()), st, siblings}
		if err := r.add(ctx, t); err != nil {
			return fmt.Errorf("host ports with iptables: %w", err)
		}
	}
	return nil
}

func (r rules) add(ctx context.Context, t target) error {
	tool, err := ipt.Find(ctx, r.fam.ipt())
	if err != nil {
		return err
	}
	own, err := r.fam.found(r.nf, dnChain(r.st.Network, r.st.ContainerID))
	if err != nil {
		return err
	}
	if len(own) > 0 && len(r.siblings) == 0 {
		// What an ADD without DEL, or the reference, left of this container.
		if err := errors.Join(r.remove(ctx)...); err != nil {
			return err
		}
		own = nil
	}
	keep := slices.Contains(own, tool.Variant)
	shared, err := r.fam.found(r.nf, hostportDNAT)
	if err != nil {
		return err
	}
	if slices.Contains(shared, tool.Variant) {
		err := tool.Restore(ctx, natTable, r.st.steadyLines(t, keep))
		if err == nil || ctx.Err() != nil || errors.Is(err, statefile.ErrBusy) {
			return err
		}
	}
	return r.addFirst(ctx, tool, t, keep)
}

// addFirst makes what is missing of the shared chains as well.
func (r rules) addFirst(ctx context.Context, tool ipt.Tool, t target, keep bool) error {
	for attempt := 1; ; attempt++ {
		var missing []string
		for _, chain := range r.st.sharedChains() {
			where, err := r.fam.found(r.nf, chain)
			if err != nil {
				return err
			}
			if !slices.Contains(where, tool.Variant) {
				missing = append(missing, chain)
			}
		}
		live, err := tool.List(ctx, natTable, r.st.watched()...)
		if err != nil {
			return err
		}
		err = tool.Restore(ctx, natTable, r.st.firstLines(t, keep, missing, live))
		if err == nil || attempt == attempts || ctx.Err() != nil {
			return err
		}
	}
}

// delIPTables takes away what the attachment has in iptables, of either
// variant, also when the reference made it. Rules of other attachments of the
// container in the same chain stay.
func delIPTables(ctx context.Context, nf *nft.Conn, st *state, siblings []*state) []error {
	var errs []error
	for _, f := range families() {
		errs = append(errs, rules{nf, f, st, siblings}.remove(ctx)...)
	}
	return errs
}

// remove removes the container's chain, and the one that an older version of
// the reference had beside it.
func (r rules) remove(ctx context.Context) []error {
	group := groupOf(r.st.Network, r.st.ContainerID)
	var errs []error
	for _, c := range []struct{ chain, from string }{{dnPrefix + group, hostportDNAT}, {snPrefix + group, hostportSNAT}} {
		where, err := r.fam.variants(r.nf, c.chain)
		errs = append(errs, err)
		for _, v := range where {
			if err := r.removeFrom(ctx, v, c.chain, c.from); err != nil {
				errs = append(errs, fmt.Errorf("chain %q of table nat (%s, iptables-%s): %w", c.chain, r.fam.family, v, err))
			}
		}
	}
	return errs
}

func (r rules) removeFrom(ctx context.Context, v ipt.Variant, chain, from string) error {
	if v == ipt.NFT && len(r.siblings) == 0 {
		return r.removeOverNetlink(ctx, chain, from)
	}
	tool, err := ipt.FindVariant(ctx, r.fam.ipt(), v)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		lines, err := r.removal(ctx, tool, chain, from)
		if err != nil {
			return err
		}
		err = tool.Restore(ctx, natTable, lines)
		if err == nil || attempt == attempts || ctx.Err() != nil {
			return err
		}
	}
}

// removal are the lines that remove a chain and what leads to it, or leave in
// it what belongs to the siblings.
func (r rules) removal(ctx context.Context, tool ipt.Tool, chain, from string) ([]string, error) {
	live, err := tool.List(ctx, natTable, from)
	if err != nil {
		return nil, err
	}
	lines := []string{emptyChain(chain)}
	for _, l := range live {
		if l.Option("-j") == chain {
			lines = append(lines, l.Delete())
		}
	}
	if chain != dnChain(r.st.Network, r.st.ContainerID) || len(r.siblings) == 0 {
		return append(lines, removeChain(chain)), nil
	}
	used := false
	for _, s := range r.siblings {
		for _, t := range s.Targets {
			if t.v4() == r.fam.v4 {
				used = true
				lines = appendAll(appendAll(lines, s.chainRules(t)), s.entryRules(t.v4()))
			}
		}
	}
	if !used {
		lines = append(lines, removeChain(chain))
	}
	return lines, nil
}

// removeOverNetlink needs no program.
func (r rules) removeOverNetlink(ctx context.Context, chain, from string) error {
	return r.nf.Update(ctx, func(tx *nft.Tx) error {
		live, err := tx.Rules(r.fam.nat(), from)
		if err != nil {
			return err
		}
		for _, l := range live {
			if l.Target == chain {
				tx.DeleteRule(r.fam.nat(), from, l.Handle)
			}
		}
		there, err := tx.Chain(r.fam.nat(), chain)
		if err == nil && there != nil {
			tx.DeleteChain(r.fam.nat(), chain)
		}
		return err
	})
}

// checkIPTables compares the attachment's rules and those that all share with
// what iptables has.
func checkIPTables(ctx context.Context, nf *nft.Conn, st *state) error {
	chain := dnChain(st.Network, st.ContainerID)
	var diffs []error
	for _, t := range st.Targets {
		f := famOf(t.v4())
		where, err := f.found(nf, chain)
		if err != nil {
			return err
		}
		if len(where) == 0 {
			diffs = append(diffs, drift("%s chain %q: is missing", f.family, chain))
			continue
		}
		tool, err := ipt.FindVariant(ctx, f.ipt(), where[0])
		if err != nil {
			return err
		}
		live, err := tool.List(ctx, natTable, append(st.watched(), chain)...)
		if err != nil {
			return err
		}
		diffs = append(diffs, st.compare(t, live)...)
	}
	return errors.Join(diffs...)
}

// compare names the differences between the rules that there are and those
// that there should be.
func (s *state) compare(t target, live []ipt.Rule) []error {
	var diffs []error
	name := famOf(t.v4()).family
	missing := func(r ipt.Rule) {
		diffs = append(diffs, drift("%s table nat: rule %q is missing", name, r.Append()))
	}
	for _, want := range s.sharedRules() {
		if !slices.ContainsFunc(live, want.Equal) {
			missing(want.Rule)
		}
	}
	// In the chain the order counts: what is marked comes before what is
	// translated.
	chain := dnChain(s.Network, s.ContainerID)
	inChain := slices.DeleteFunc(slices.Clone(live), func(r ipt.Rule) bool { return r.Chain != chain })
	for _, want := range s.chainRules(t) {
		i := slices.IndexFunc(inChain, want.Equal)
		if i < 0 {
			missing(want)
			continue
		}
		inChain = inChain[i+1:]
	}
	for _, want := range s.entryRules(t.v4()) {
		if !slices.ContainsFunc(live, func(r ipt.Rule) bool { return s.isEntry(want, r) }) {
			missing(want)
		}
	}
	return diffs
}

// isEntry compares entry rules without the conditions, which iptables lists in
// words of its own.
func (s *state) isEntry(want, live ipt.Rule) bool {
	if len(s.Options.conditions(true))+len(s.Options.conditions(false)) == 0 {
		return want.Equal(live)
	}
	for _, option := range []string{"--comment", "-p", "--dports", "-j"} {
		if want.Option(option) != live.Option(option) {
			return false
		}
	}
	return want.Chain == live.Chain && len(live.Args) >= len(want.Args)-len(s.Options.ConditionsV4)-len(s.Options.ConditionsV6)
}
