package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// verify compares the record with what is wanted, and the rules with both.
func (c *call) verify(ctx context.Context, cfg config, want *state) error {
	s, err := openExistingStore(ctx)
	if err != nil {
		return err
	}
	st, err := s.record(ownerOf(want))
	if err := errors.Join(err, s.close()); err != nil {
		return err
	}
	if st == nil {
		foreign, err := c.hasForeign(want)
		if foreign || err != nil {
			return errors.Join(err, c.verifyForeign(ctx, want))
		}
		b, _, err := c.choose(cfg)
		if err != nil {
			return err
		}
		want.Backend = b
		return errors.Join(drift("host ports: there is no record of this attachment (%s)", want.attachment()), c.verifyRules(ctx, want))
	}
	if c.remade(ctx, st, want) {
		return nil
	}
	var errs []error
	same := func(key string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			errs = append(errs, drift("host ports: %s changed since ADD", key))
		}
	}
	same("portMappings", st.Mappings, want.Mappings)
	same("the configuration", normal(st.Options), normal(want.Options))
	same("the container's addresses in prevResult", st.Targets, want.Targets)
	return errors.Join(append(errs, c.verifyRules(ctx, st))...)
}

// remade says whether the reference, which leaves our record alone, has deleted
// the attachment and made it again with other addresses.
func (c *call) remade(ctx context.Context, st, want *state) bool {
	return st.Backend == iptables && !reflect.DeepEqual(st.Targets, want.Targets) && c.verifyForeign(ctx, want) == nil
}

// hasForeign says whether the container has the reference's chain, of which
// the reference keeps no record.
func (c *call) hasForeign(st *state) (bool, error) {
	for _, t := range st.Targets {
		where, err := famOf(t.v4()).found(c.nf, dnChain(st.Network, st.ContainerID))
		if err != nil || len(where) > 0 {
			return len(where) > 0, err
		}
	}
	return false, nil
}

// verifyForeign looks for what the reference plugin makes: the same rules, and
// route_localnet without a guard.
func (c *call) verifyForeign(ctx context.Context, st *state) error {
	return errors.Join(checkIPTables(ctx, c.nf, st), checkLocalnetValue(st.Localnet))
}

// normal makes options comparable: no conditions are an empty list or none.
func normal(o options) options {
	o.ConditionsV4, o.ConditionsV6 = slices.Concat(o.ConditionsV4, nil), slices.Concat(o.ConditionsV6, nil)
	return o
}

func (c *call) verifyRules(ctx context.Context, st *state) error {
	local := checkLocalnet(ctx, c.nf, st.Localnet)
	if st.Backend == iptables {
		return errors.Join(checkIPTables(ctx, c.nf, st), local)
	}
	return errors.Join(checkNFTables(c.nf, st), local)
}

// checkNFTables compares the attachment's elements and what it shares with
// others with the kernel's.
func checkNFTables(nf *nft.Conn, st *state) error {
	var diffs []error
	for set, elems := range group(st.items()) {
		keys := make([][]byte, len(elems))
		for i, e := range elems {
			keys[i] = e.Key
		}
		live, err := nf.Get(table, set, keys...)
		if err != nil {
			return err
		}
		for i, want := range elems {
			if what := difference(st.attachment(), want, live[i]); what != "" {
				diffs = append(diffs, drift("nftables map %q, %s: %s", set, keyName(want.Key), what))
			}
		}
	}
	for _, l := range []nft.Layout{sharedLayout(st.Options.mark()), nearLayout(st.nears())} {
		err := nf.Verify(l)
		if err != nil && !errors.Is(err, nft.ErrDrift) {
			return err
		}
		if err != nil {
			diffs = append(diffs, drift("%w", err))
		}
	}
	for _, t := range st.served() {
		chain := st.when(t.v4())
		if chain == "" {
			continue
		}
		text, err := chainText(nf, chain)
		if err != nil {
			return err
		}
		if text == "" || text != st.Compiled[chain] {
			diffs = append(diffs, drift("nftables chain %q: the conditions are not those of %s", chain, conditionsKey(t.v4())))
		}
	}
	return errors.Join(diffs...)
}

func difference(a cni.Attachment, want nft.Element, live *nft.Element) string {
	switch {
	case live == nil:
		return "no element"
	case !a.Owns(live.Comment):
		return fmt.Sprintf("the element belongs to %q", live.Comment)
	case live.Goto != want.Goto:
		return fmt.Sprintf("the element leads to chain %q, not %q", live.Goto, want.Goto)
	case !bytes.Equal(live.Data, want.Data):
		return "the element leads to another container address or port"
	}
	return ""
}

// keyName is a key for people: protocol and port.
func keyName(key []byte) string {
	port := key[len(key)-4:]
	return fmt.Sprintf("%d/%s", uint16(port[0])<<8|uint16(port[1]), proto(key[0]))
}

func drift(format string, args ...any) error {
	return cni.Errorf(cni.CodeDrift, format, args...)
}
