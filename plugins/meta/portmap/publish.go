package main

import (
	"context"
	"errors"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// publish makes the attachment's rules, unless somebody else has one of the
// ports. It returns the dead owners whom it replaced.
func (c *call) publish(ctx context.Context, cfg config, st *state) (dead []*state, err error) {
	b, final, err := c.choose(cfg)
	if err != nil {
		return nil, err
	}
	s, err := openStore(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if dead, err = c.resolve(ctx, s, st); err != nil {
		return nil, err
	}
	c.OnFail("remove the host ports", func(ctx context.Context) error { return c.undo(ctx, st) })
	st.Backend = b
	if err := c.begin(s, st, dead); err != nil {
		return nil, err
	}
	err = c.apply(ctx, s, st, dead)
	if !final && errors.Is(err, nft.ErrUnsupported) {
		st.Backend = iptables
		if err = s.put(st); err == nil {
			err = c.apply(ctx, s, st, dead)
		}
	}
	if err != nil {
		return nil, tryAgain(err)
	}
	for _, d := range dead {
		if ownerOf(d) != ownerOf(st) {
			err = errors.Join(err, s.drop(ownerOf(d)))
		}
	}
	return dead, errors.Join(err, s.promise(st))
}

// resolve finds out who has the ports. A live owner is an error that names
// it, before anything changed; dead ones are returned.
func (c *call) resolve(ctx context.Context, s *store, st *state) (dead []*state, err error) {
	self := ownerOf(st)
	own, err := s.record(self)
	if err != nil {
		return nil, err
	}
	if own != nil {
		lives, err := c.lives(own)
		if err != nil {
			return nil, err
		}
		if lives {
			return nil, cni.Errorf(cni.CodeExists, "host ports: this attachment has them already (%s); DEL removes them", st.attachment())
		}
		dead = append(dead, own)
	}
	others, err := c.others(ctx, s, st)
	if err != nil {
		return nil, err
	}
	if dead, err = c.withHeirs(s, append(dead, others...)); err != nil {
		return nil, err
	}
	if err := refuseReference(ctx, c.nf, st); err != nil {
		return nil, err
	}
	return dead, c.refuseForeign(ctx, s, st)
}

// others looks at who has places that the attachment wants: a live owner is an
// error, dead ones are returned, and to the container itself they are yielded.
// Then it is known whether the attachment needs its link's route_localnet.
func (c *call) others(ctx context.Context, s *store, st *state) (dead []*state, err error) {
	seen := map[[8]byte]*state{}
	for _, k := range s.ledger.conflicts(st.forwards(), ownerOf(st)) {
		other, known := seen[k.owner]
		if !known {
			if other, err = s.record(k.owner); err != nil {
				return nil, err
			}
			seen[k.owner] = other
			if other == nil {
				// Its rules went before its record did.
				if err := s.drop(k.owner); err != nil {
					return nil, err
				}
				continue
			}
		}
		if other == nil || slices.Contains(dead, other) {
			continue
		}
		lives, err := c.lives(other)
		if err != nil {
			return nil, err
		}
		switch {
		case !lives:
			dead = append(dead, other)
		case other.isSameContainer(st):
			st.Yielded = append(st.Yielded, k.wanted.place())
		default:
			return nil, portTaken("host port %s: held on %s by %s", k.wanted, hostName(k.host), other.attachment())
		}
	}
	if !slices.ContainsFunc(st.served(), target.v4) {
		st.Localnet = ""
	}
	return dead, nil
}

// lives says whether an attachment still has its host ports: not when its
// namespace has gone, and not when the reference, whose DEL leaves our record
// alone, has removed its chain. Where the chain that all share is gone too
// somebody flushed everything, so that says nothing.
func (c *call) lives(st *state) (bool, error) {
	lives, err := st.Life.alive(c.host)
	if err != nil || !lives || st.Backend == nftables {
		return lives, err
	}
	for _, t := range st.Targets {
		f := famOf(t.v4())
		own, err := f.found(c.nf, dnChain(st.Network, st.ContainerID))
		if err != nil || len(own) > 0 {
			return true, err
		}
		shared, err := f.found(c.nf, hostportDNAT)
		if err != nil || len(shared) == 0 {
			return true, err
		}
	}
	return false, nil
}

// begin writes the record: from here on DEL knows what there may be.
func (c *call) begin(s *store, st *state, dead []*state) error {
	if !s.ledger.complete {
		// Where records were lost, what they were about may still be there.
		left, err := owned(c.nf, func(mark string) bool { return !s.ledger.has(markKey(mark)) })
		if absent(err) != nil {
			return err
		}
		s.ledger.complete = len(left) == 0
	}
	var err error
	if st.LocalnetWas, err = c.localnetWas(s, st, dead); err != nil {
		return err
	}
	return s.put(st)
}

// apply makes the rules in the state's backend and takes away those of the
// dead, wherever they are. With those of nftables that goes in one batch, unless
// a dead one was the last who needed another link's route_localnet.
func (c *call) apply(ctx context.Context, s *store, st *state, dead []*state) error {
	var others []*state
	for _, d := range dead {
		if d.Backend == nftables && st.Backend == nftables && (d.Localnet == "" || d.Localnet == st.Localnet) {
			others = append(others, d)
		} else if err := errors.Join(c.removeRules(ctx, s, d)...); err != nil {
			return err
		}
	}
	if st.Backend == nftables {
		if err := addNFTables(ctx, c.nf, st, others); err != nil {
			return err
		}
		if len(st.Compiled) > 0 {
			if err := s.put(st); err != nil {
				return err
			}
		}
		return enableLocalnet(st)
	}
	if err := c.guard(ctx, st); err != nil {
		return err
	}
	siblings, err := s.siblings(st)
	if err != nil {
		return err
	}
	if err := addIPTables(ctx, c.nf, st, siblings); err != nil {
		return err
	}
	return enableLocalnet(st)
}

// undo is unpublish for what an ADD that failed made.
func (c *call) undo(ctx context.Context, st *state) error {
	again, err := open(c.Request)
	if err != nil {
		return err
	}
	defer again.close()
	return again.unpublish(ctx, st.attachment())
}
