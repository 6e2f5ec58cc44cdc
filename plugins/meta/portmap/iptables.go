package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// containerChain is the chain of the record's container, which CNI-HOSTPORT-DNAT leads to.
func (f family) containerChain(r *record) ipt.Chain {
	return ipt.Chain{Family: f.ipt, Table: natTable, Name: dnChain(r.Network, r.ContainerID), From: hostportDNAT}
}

func (f family) dnatChainOfAll() ipt.Chain {
	return ipt.Chain{Family: f.ipt, Table: natTable, Name: hostportDNAT}
}

// variants says which iptables have the chain. A legacy chain that only a missing program could show is none.
func (c *call) variants(ctx context.Context, chain ipt.Chain) ([]ipt.Variant, error) {
	where, err := chain.Variants(ctx, c.nf)
	if ipt.NotInstalled(err) {
		err = nil
	}
	return where, err
}

// usesIPTables says whether any container has host ports in iptables, of the record's families.
func (c *call) usesIPTables(ctx context.Context, r *record) (bool, error) {
	for _, a := range r.served() {
		where, err := familyOf(a.v4()).dnatChainOfAll().Variants(ctx, c.nf)
		if ipt.NotInstalled(err) {
			c.Warn("chain %q may have rules of other plugins for the same ports: %v", hostportDNAT, err)
			err = nil
		}
		if err != nil || len(where) > 0 {
			return true, err
		}
	}
	return false, nil
}

// chainRemoved says whether the container's chain is missing while the chain that leads to it is there. Where
// both are missing somebody flushed everything, and the host ports are still the attachment's.
func (c *call) chainRemoved(ctx context.Context, r *record) (bool, error) {
	for _, a := range r.chainAddrs() {
		own, err := c.variants(ctx, familyOf(a.v4()).containerChain(r))
		if err != nil || len(own) > 0 {
			return false, err
		}
		shared, err := c.variants(ctx, familyOf(a.v4()).dnatChainOfAll())
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
	tool, err := ipt.Find(ctx, f.ipt)
	if err != nil {
		return err
	}
	own, err := c.variants(ctx, f.containerChain(r))
	if err != nil {
		return err
	}
	if len(own) > 0 {
		shared, err := siblings(s, r)
		if err != nil {
			return err
		}
		if len(shared) == 0 { // an ADD without DEL, or the reference, left it
			if err := errors.Join(c.delChains(ctx, f, s, r)...); err != nil {
				return err
			}
			own = nil
		}
	}
	keep := slices.Contains(own, tool.Variant)
	there, err := c.variants(ctx, f.dnatChainOfAll())
	if err != nil {
		return err
	}
	if slices.Contains(there, tool.Variant) {
		err := tool.Restore(ctx, natTable, r.steadyLines(a, keep))
		if err == nil || ctx.Err() != nil || errors.Is(err, statefile.ErrBusy) {
			return err
		}
	}
	// Something of what all share is missing.
	return tool.Change(ctx, natTable, func() ([]string, error) {
		var chains []string
		for _, name := range r.sharedChains() {
			where, err := c.variants(ctx, ipt.Chain{Family: f.ipt, Table: natTable, Name: name})
			if err != nil {
				return nil, err
			}
			if slices.Contains(where, tool.Variant) {
				chains = append(chains, name)
			}
		}
		live, err := tool.List(ctx, natTable, r.lookedAt()...)
		return r.firstLines(a, keep, chains, live), err
	})
}

// delChains removes the container's chain from either variant, also when the reference made it, and the one
// that an older version of the reference had beside it. Rules of its other attachments in the same chain stay.
func (c *call) delChains(ctx context.Context, f family, s *store, r *record) []error {
	own := f.containerChain(r)
	older := own
	older.Name, older.From = snPrefix+chainHash(r.Network, r.ContainerID), hostportSNAT
	var errs []error
	for _, chain := range []ipt.Chain{own, older} {
		where, err := chain.Variants(ctx, c.nf)
		errs = append(errs, err)
		for _, v := range where {
			if err := c.delChain(ctx, chain, v, func() ([]*record, error) { return siblings(s, r) }); err != nil {
				errs = append(errs, fmt.Errorf("chain %q of table nat (%s, iptables-%s): %w", chain.Name, f.Family, v,
					err))
			}
		}
	}
	return errs
}

func (c *call) delChain(ctx context.Context, chain ipt.Chain, v ipt.Variant, siblings func() ([]*record, error)) error {
	shared, err := siblings()
	if err != nil {
		return err
	}
	var kept []string
	for _, r := range shared {
		for _, a := range r.chainAddrs() {
			if familyOf(a.v4()).ipt == chain.Family && chain.From == hostportDNAT {
				kept = appendAll(appendAll(kept, r.chainRules(a)), r.entryRules(a.v4()))
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
		return append(lines, kept...), err
	})
}

// checkIPTables compares the attachment's rules and those that all share with what iptables has.
func (c *call) checkIPTables(ctx context.Context, r *record) error {
	var diffs []error
	for _, a := range r.chainAddrs() {
		f := familyOf(a.v4())
		chain := f.containerChain(r)
		where, err := c.variants(ctx, chain)
		if err != nil {
			return err
		}
		if len(where) == 0 {
			diffs = append(diffs, drift("%s chain %q: is missing", f.Family, chain.Name))
			continue
		}
		tool, err := ipt.FindVariant(ctx, f.ipt, where[0])
		if err != nil {
			return err
		}
		live, err := tool.List(ctx, natTable, append(r.lookedAt(), chain.Name)...)
		if err != nil {
			return err
		}
		for _, rule := range r.missing(a, live) {
			diffs = append(diffs, drift("%s table nat: rule %q is missing", f.Family, rule.Append()))
		}
	}
	return errors.Join(diffs...)
}

// missing are the rules that there should be and that the live ones do not have.
func (r *record) missing(a address, live []ipt.Rule) []ipt.Rule {
	var out []ipt.Rule
	for _, want := range r.sharedRules() {
		if !slices.ContainsFunc(live, want.Equal) {
			out = append(out, want.Rule)
		}
	}
	// In the chain the order counts: what is marked comes before what is translated.
	chain := dnChain(r.Network, r.ContainerID)
	inChain := slices.DeleteFunc(slices.Clone(live), func(rule ipt.Rule) bool { return rule.Chain != chain })
	for _, want := range r.chainRules(a) {
		i := slices.IndexFunc(inChain, want.Equal)
		if i < 0 {
			out = append(out, want)
			continue
		}
		inChain = inChain[i+1:]
	}
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
