package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// addNFTables makes the attachment's elements and takes away those of dead
// owners whose ports it wants: one batch, everything or nothing.
func addNFTables(ctx context.Context, nf *nft.Conn, st *state, dead []*state) error {
	if err := compileConditions(ctx, nf, st); err != nil {
		return err
	}
	return nf.Update(ctx, func(tx *nft.Tx) error {
		if err := ensure(tx, st); err != nil {
			return err
		}
		ch := changes{tx: tx, gone: map[string]int{}, kept: map[string]bool{}}
		for _, d := range dead {
			if err := ch.remove(d.items(), d.attachment().Owns); err != nil {
				return err
			}
		}
		if err := ch.add(st); err != nil {
			return err
		}
		if err := guard(tx, st); err != nil {
			return err
		}
		return ch.dropUnused()
	})
}

// compileConditions has nft make the chains with the attachment's conditions.
// Nothing leads to them yet.
func compileConditions(ctx context.Context, nf *nft.Conn, st *state) error {
	for _, t := range st.served() {
		chain := st.when(t.v4())
		if chain == "" {
			continue
		}
		if err := nf.Update(ctx, func(tx *nft.Tx) error { return ensure(tx, st) }); err != nil {
			return err
		}
		err := nft.RunProgram(ctx, st.conditionScript(t.v4()))
		if errors.Is(err, nft.ErrRefused) {
			return cni.Errorf(cni.CodeConfig, "%s: %q: %w", conditionsKey(t.v4()), st.Options.conditions(t.v4()), err)
		}
		if err != nil {
			return fmt.Errorf("%s: the nft program has to compile them: %w", conditionsKey(t.v4()), err)
		}
		text, err := chainText(nf, chain)
		if err != nil {
			return err
		}
		if st.Compiled == nil {
			st.Compiled = map[string]string{}
		}
		st.Compiled[chain] = text
	}
	return nil
}

func conditionsKey(v4 bool) string {
	if v4 {
		return "conditionsV4"
	}
	return "conditionsV6"
}

// chainText tells whether a chain's rules are what they were.
func chainText(nf *nft.Conn, chain string) (string, error) {
	rules, err := nf.Rules(table, chain)
	text := ""
	for _, r := range rules {
		text += r.Text() + "\n"
	}
	return text, err
}

// ensure stages what is missing of the shared layout and of the chains that
// the attachment uses. Where the shared rules were lost, those of the others'
// chains probably were, too.
func ensure(tx *nft.Tx, st *state) error {
	lacking, err := tx.Ensure(sharedLayout(st.Options.mark()))
	if err != nil {
		return err
	}
	nears := st.nears()
	if lacking {
		live, err := tx.Chains(table)
		if err != nil {
			return err
		}
		for _, c := range live {
			if n, ok := parseNear(c.Name); ok {
				nears = append(nears, n)
			}
		}
	}
	_, err = tx.Ensure(nearLayout(nears))
	return err
}

// guard stages the interface's entry in the guard.
func guard(tx *nft.Tx, st *state) error {
	if st.Localnet == "" {
		return nil
	}
	key := nft.IfNameKey(st.Localnet)
	live, err := tx.Get(table, localnetSet, key)
	if err == nil && live[0] == nil {
		tx.Add(table, localnetSet, nft.Element{Key: key, Comment: localnetWas + st.LocalnetWas})
	}
	return err
}

// localnetWas, with the value, is the comment of an interface in the guard.
const localnetWas = "route_localnet was "

func portTaken(format string, args ...any) error {
	return cni.Errorf(cni.CodePortTaken, format, args...)
}
