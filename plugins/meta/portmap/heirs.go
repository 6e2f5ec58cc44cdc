package main

import (
	"context"
	"slices"
)

// isSameContainer says whether both are one container's, on different networks.
// A container ID alone does not say so.
func (s *state) isSameContainer(other *state) bool {
	a, b := s.Life, other.Life
	return s.ContainerID == other.ContainerID && s.Network != other.Network &&
		a.Cookie == b.Cookie && a.Device == b.Device && a.Inode == b.Inode
}

// promise tells those to whom the attachment yielded places that it is an heir of
// theirs.
func (s *store) promise(st *state) error {
	for _, y := range st.Yielded {
		for _, k := range s.ledger.conflicts([]forward{{proto: y.Proto, host: y.Host, port: y.Port}}, ownerOf(st)) {
			holder, err := s.record(k.owner)
			if err != nil {
				return err
			}
			hash := st.attachment().Hash()
			if holder == nil || slices.Contains(holder.Heirs, hash) {
				continue
			}
			holder.Heirs = append(holder.Heirs, hash)
			if err := s.put(holder); err != nil {
				return err
			}
		}
	}
	return nil
}

// inherit gives the places of an attachment that is gone to those that yielded
// them and live. What fails is their loss, and no reason to repeat the end of
// the other.
func (c *call) inherit(ctx context.Context, s *store, gone *state) {
	for _, hash := range gone.Heirs {
		if err := c.inheritOne(ctx, s, hashKey(hash)); err != nil {
			c.Warn("host ports of %s: not handed on: %v", gone.attachment(), err)
		}
	}
}

func (c *call) inheritOne(ctx context.Context, s *store, heir [8]byte) error {
	was, err := s.record(heir)
	if err != nil || was == nil {
		return err
	}
	if lives, err := was.Life.alive(c.host); err != nil || !lives {
		return err
	}
	st := *was
	st.Yielded = nil
	dead, err := c.others(ctx, s, &st)
	if err != nil {
		return err
	}
	if err := s.put(&st); err != nil {
		return err
	}
	// On iptables both have had their rules all the time.
	if st.Backend == nftables {
		if err := c.apply(ctx, s, &st, append(dead, was)); err != nil {
			return err
		}
	}
	for _, d := range dead {
		if err := s.drop(ownerOf(d)); err != nil {
			return err
		}
	}
	return s.promise(&st)
}
