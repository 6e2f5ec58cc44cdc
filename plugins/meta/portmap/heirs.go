package main

import (
	"context"
	"errors"
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

// withHeirs adds those heirs of the dead that are dead too. They have no claim to
// what they yielded, and on iptables rules for it.
func (c *call) withHeirs(s *store, dead []*state) ([]*state, error) {
	seen := map[[8]byte]bool{}
	for _, d := range dead {
		seen[ownerOf(d)] = true
	}
	for i := 0; i < len(dead); i++ {
		for _, hash := range dead[i].Heirs {
			heir, err := s.record(hashKey(hash))
			if err != nil {
				return nil, err
			}
			if heir == nil || seen[ownerOf(heir)] {
				continue
			}
			seen[ownerOf(heir)] = true
			lives, err := c.lives(heir)
			if err != nil {
				return nil, err
			}
			if !lives {
				dead = append(dead, heir)
			}
		}
	}
	return dead, nil
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
	st.Yielded, st.Targets = nil, slices.Clone(was.Targets)
	for i := range st.Targets { // it may not have needed its link's route_localnet
		if err := c.inspect(&st, &st.Targets[i]); err != nil {
			return err
		}
	}
	dead, err := c.others(ctx, s, &st)
	if err != nil {
		return err
	}
	if st.LocalnetWas, err = c.localnetWas(s, &st, append(dead, was)); err != nil {
		return err
	}
	if err := s.put(&st); err != nil {
		return err
	}
	if st.Backend == nftables {
		err = c.apply(ctx, s, &st, append(dead, was))
	} else {
		err = c.takeOver(ctx, s, &st, dead)
	}
	if err != nil {
		return err
	}
	for _, d := range dead {
		if err := s.drop(ownerOf(d)); err != nil {
			return err
		}
	}
	return s.promise(&st)
}

// takeOver is apply for an heir on iptables, which has had its rules all the
// time.
func (c *call) takeOver(ctx context.Context, s *store, st *state, dead []*state) error {
	for _, d := range dead {
		if err := errors.Join(c.removeRules(ctx, s, d)...); err != nil {
			return err
		}
	}
	if err := c.guard(ctx, st); err != nil {
		return err
	}
	return enableLocalnet(st)
}
