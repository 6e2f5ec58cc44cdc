package main

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// verify compares the record with what is wanted, and the rules with the record.
func (c *call) verify(ctx context.Context, cfg config, want *record) error {
	s, err := openExistingStore(ctx)
	if err != nil {
		return err
	}
	r, err := recordOf(s, want.hash())
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	if r == nil {
		return c.verifyUnknown(ctx, cfg, want)
	}
	if c.madeAgain(ctx, r, want) {
		return nil
	}
	var errs []error
	same := func(key string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			errs = append(errs, drift("host ports: %s changed since ADD", key))
		}
	}
	same("portMappings", r.Mappings, want.Mappings)
	same("the configuration", normal(r.Options), normal(want.Options))
	same("the container's addresses in prevResult", r.Addrs, want.Addrs)
	return errors.Join(append(errs, c.verifyRules(ctx, r))...)
}

// verifyUnknown looks for what the reference made, which keeps no record.
func (c *call) verifyUnknown(ctx context.Context, cfg config, want *record) error {
	for _, a := range want.Addrs {
		where, err := c.variants(ctx, familyOf(a.v4()).containerChain(want))
		if err != nil {
			return err
		}
		if len(where) > 0 {
			return c.verifyReference(ctx, want)
		}
	}
	if found, err := c.checkReference(want); found || err != nil && cni.AsError(err).Code != cni.CodeDrift {
		return errors.Join(err, checkLocalnet(want.Localnet))
	}
	b, _, err := c.choose(cfg)
	if err != nil {
		return err
	}
	want.Backend = b
	return errors.Join(drift("host ports: there is no record of this attachment (%s)", want.attachment()),
		c.verifyRules(ctx, want))
}

// verifyReference looks for what the reference plugin makes: the same rules, and route_localnet without a guard.
func (c *call) verifyReference(ctx context.Context, r *record) error {
	return errors.Join(c.checkIPTables(ctx, r), checkLocalnet(r.Localnet))
}

// madeAgain says whether the reference, which leaves our record alone, has deleted the attachment and made it
// again with other addresses.
func (c *call) madeAgain(ctx context.Context, r, want *record) bool {
	return r.Backend == iptables && !reflect.DeepEqual(r.Addrs, want.Addrs) && c.verifyReference(ctx, want) == nil
}

// normal makes options comparable: no conditions are an empty list or none.
func normal(o options) options {
	o.ConditionsV4, o.ConditionsV6 = slices.Concat(o.ConditionsV4, nil), slices.Concat(o.ConditionsV6, nil)
	return o
}

func (c *call) verifyRules(ctx context.Context, r *record) error {
	local := errors.Join(checkLocalnet(r.Localnet), c.checkGuard(r.Localnet))
	if r.Backend == iptables {
		return errors.Join(c.checkIPTables(ctx, r), local)
	}
	return errors.Join(c.checkNFTables(r), local)
}
