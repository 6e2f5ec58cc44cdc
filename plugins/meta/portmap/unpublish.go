package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// unpublish removes whatever the attachment has, in any backend, made by
// anybody.
func (c *call) unpublish(ctx context.Context, a cni.Attachment) (err error) {
	s, err := openExistingStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	owner := hashKey(a.Hash())
	st, err := s.record(owner)
	if err != nil {
		return err
	}
	if st != nil {
		return c.removeOwner(ctx, s, st)
	}
	st = &state{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Localnet: s.ledger.link(owner)}
	if !s.ledger.complete || s.ledger.has(owner) {
		err := errors.Join(absent(sweepNFTables(ctx, c.nf, a.Owns)), absent(dropConditions(ctx, c.nf, st)))
		if err != nil {
			return err
		}
	}
	if s.ledger.has(owner) {
		return c.removeOwner(ctx, s, st)
	}
	return c.removeForeign(ctx, s, st)
}

// removeOwner removes everything of an attachment that has a record, and then
// the record.
func (c *call) removeOwner(ctx context.Context, s *store, st *state) error {
	missing, err := divide(append(c.removeRules(ctx, s, st), absent(delReference(ctx, c.nf, st))))
	if err != nil {
		return errors.Join(tryAgain(errors.Join(err, missing)), c.flushRemoved(st))
	}
	if missing != nil {
		c.Warn("host ports of %s: %v", st.attachment(), missing)
		return c.flushRemoved(st)
	}
	return c.forget(ctx, s, st)
}

// divide parts errors for want of a program from all others.
func divide(errs []error) (missing, other error) {
	for _, err := range errs {
		if ipt.NotInstalled(err) {
			missing = errors.Join(missing, err)
		} else {
			other = errors.Join(other, err)
		}
	}
	return missing, other
}

// forget ends an attachment whose rules are gone. Its record stays while flows
// that could be ended lead to where it was, and until its heirs have its places:
// a call that failed or was killed before that is repeated.
func (c *call) forget(ctx context.Context, s *store, st *state) error {
	err := c.flushRemoved(st)
	if cni.Transient(err) {
		return err
	}
	s.ledger = s.ledger.without(ownerOf(st))
	c.inherit(ctx, s, st)
	return errors.Join(err, s.drop(ownerOf(st)))
}

// removeRules removes the attachment's rules from both backends.
func (c *call) removeRules(ctx context.Context, s *store, st *state) []error {
	free := ""
	if st.Localnet != "" && !s.ledger.uses(st.Localnet, ownerOf(st)) {
		free = st.Localnet
	}
	siblings, err := s.siblings(st)
	errs := []error{err, delNFTables(ctx, c.nf, st, free)}
	if errors.Is(errs[1], nft.ErrUnsupported) {
		errs[1] = unguardIPTables(ctx, free, st.LocalnetWas)
	} else if len(st.Options.ConditionsV4)+len(st.Options.ConditionsV6) > 0 {
		errs = append(errs, dropConditions(ctx, c.nf, st))
	}
	if err == nil {
		errs = append(errs, delIPTables(ctx, c.nf, st, siblings)...)
	}
	return errs
}

// removeForeign removes what the reference plugins left of a container that
// has no record.
func (c *call) removeForeign(ctx context.Context, s *store, st *state) error {
	siblings, err := s.siblings(st)
	if err != nil {
		return err
	}
	missing, err := divide(append(delIPTables(ctx, c.nf, st, siblings), absent(delReference(ctx, c.nf, st))))
	if missing != nil {
		c.Warn("host ports of %s: %v", st.attachment(), missing)
	}
	return err
}

// collect removes what attachments of the network left that are not valid.
func (c *call) collect(ctx context.Context) (err error) {
	s, err := openExistingStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	all, err := s.all()
	if err != nil {
		return err
	}
	var errs []error
	for _, st := range all {
		if st.Network == c.Network && !c.Valid.Has(st.attachment()) {
			errs = append(errs, c.collectOwner(ctx, s, ownerOf(st)))
		}
	}
	errs = append(errs, absent(sweepNFTables(ctx, c.nf, c.Valid.Garbage)))
	ids, err := foreignContainers(ctx, c.nf, c.Network)
	errs = append(errs, err)
	for _, id := range ids {
		// Rules of the reference tell no interface apart: they stay until the
		// container has none.
		if !c.Valid.HasContainer(id) {
			errs = append(errs, delIPTables(ctx, c.nf, &state{Network: c.Network, ContainerID: id}, nil)...)
		}
	}
	errs = append(errs, absent(sweepGuards(ctx, c.nf, func(link string) bool {
		_, err := c.host.Link(link)
		return !errors.Is(err, rtnl.ErrNoLink)
	})))
	return tryAgain(errors.Join(errs...))
}

// collectOwner is removeOwner for GC: the reference's rules carry no network
// and no interface, so they stay while the container has anything valid. The
// record may have changed since it was found: others name their heirs in it.
func (c *call) collectOwner(ctx context.Context, s *store, owner [8]byte) error {
	st, err := s.record(owner)
	if err != nil || st == nil {
		return err
	}
	err = errors.Join(c.removeRules(ctx, s, st)...)
	if !c.Valid.HasContainer(st.ContainerID) {
		err = errors.Join(err, absent(delReference(ctx, c.nf, st)))
	}
	if err != nil {
		return fmt.Errorf("host ports of %s: %w", st.attachment(), err)
	}
	return c.forget(ctx, s, st)
}
