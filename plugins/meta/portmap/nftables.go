package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// addNFTables makes the attachment's elements and removes those of the owners that are gone: one batch.
func (c *call) addNFTables(ctx context.Context, r *record, gone []*record) error {
	if err := c.compileConditions(ctx, r); err != nil {
		return err
	}
	return owned(r.Options.MarkBit).Update(ctx, c.nf, func(ch *nft.Change) error {
		for _, o := range gone {
			if err := ch.Remove(o.items(), o.attachment().Owns); err != nil {
				return err
			}
		}
		err := ch.Put(r.items(), func(old nft.Item) error {
			return conflict(elementPort(old),
				unrecorded(old.Comment))
		})
		if err != nil {
			return err
		}
		return guard(ch.Tx, r)
	})
}

// compileConditions has nft(8) make the chains with the attachment's conditions. Nothing leads to them yet.
func (c *call) compileConditions(ctx context.Context, r *record) error {
	for _, a := range r.served() {
		if r.conditionChain(a.v4()) == "" {
			continue
		}
		err := owned(r.Options.MarkBit).Update(ctx, c.nf,
			func(ch *nft.Change) error { return ch.Ensure(r.masqChain(a)) })
		if err != nil {
			return err
		}
		err = nft.RunProgram(ctx, r.conditionScript(a))
		if errors.Is(err, nft.ErrRefused) {
			return cni.Errorf(cni.CodeConfig, "%s: %q: %w", conditionsKey(a.v4()), r.Options.conditions(a.v4()), err)
		}
		if err != nil {
			return fmt.Errorf("%s: the nft program has to compile them: %w", conditionsKey(a.v4()), err)
		}
	}
	return nil
}

func conditionsKey(v4 bool) string {
	if v4 {
		return "conditionsV4"
	}
	return "conditionsV6"
}

// delNFTables removes the attachment's elements, and its link from the guard when it was the last one there.
func (c *call) delNFTables(ctx context.Context, r *record, last bool) error {
	o, mine := owned(r.Options.MarkBit), r.attachment().Owns
	found, err := o.Live(c.nf, r.items(), mine)
	if err != nil {
		return err
	}
	var chains []string // to which no element leads where ADD ended early
	for _, a := range r.Addrs {
		if chain := r.conditionChain(a.v4()); chain != "" {
			chains = append(chains, chain, r.masqChain(a))
		}
	}
	if len(found) == 0 && len(chains) == 0 && !last {
		return nil
	}
	return o.Update(ctx, c.nf, func(ch *nft.Change) error {
		ch.Drop(chains...)
		if err := ch.Remove(found, mine); err != nil || !last {
			return err
		}
		return unguard(ch.Tx, r.Localnet, r.LocalnetWas)
	})
}

// sweep removes every element whose mark is garbage.
func (c *call) sweep(ctx context.Context, garbage func(mark string) bool) error {
	o := owned(defaultMarkBit)
	found, err := o.All(c.nf, garbage)
	if err == nil {
		err = o.Remove(ctx, c.nf, found, garbage)
	}
	return err
}

// checkNFTables compares the attachment's elements and what it shares with others with the kernel's.
func (c *call) checkNFTables(r *record) error {
	diffs := []error{owned(r.Options.MarkBit).Verify(c.nf, r.items())}
	for _, a := range r.served() {
		chain := r.conditionChain(a.v4())
		if chain == "" {
			continue
		}
		rules, err := c.nf.Rules(table, chain)
		if err != nil {
			return err
		}
		if len(rules) != 1 || rules[0].Target != r.afterConditions(a) {
			diffs = append(diffs, drift("nftables chain %q: does not have the rule of %s", chain,
				conditionsKey(a.v4())))
		}
		if masq, ok := chainNamed(r.masqChain(a)); ok {
			diffs = append(diffs, c.nf.Verify(nft.Layout{Table: table, Chains: []nft.Chain{masq}}))
		}
	}
	err := errors.Join(diffs...)
	if errors.Is(err, nft.ErrDrift) {
		return drift("%w", err)
	}
	return err
}

func drift(format string, args ...any) error { return cni.Errorf(cni.CodeDrift, format, args...) }
