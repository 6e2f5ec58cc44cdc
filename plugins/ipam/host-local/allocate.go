package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// allocate takes an address from each set, or none at all.
func allocate(s *store, req *skel.Request, cfg *config) ([]netip.Addr, error) {
	owner := ownerText(req.ContainerID, req.IfName)
	held, err := s.heldBy(owner, req.ContainerID)
	if err != nil {
		return nil, err
	}
	if len(held) > 0 {
		return nil, cni.Errorf(cni.CodeExists,
			"%s has been allocated to %s, duplicate allocation is not allowed; DEL gives it back",
			join(held), req.Attachment)
	}
	req.OnFail("give the addresses back", func(ctx context.Context) error {
		return giveBack(ctx, cfg.dataDir, req.Network, owner)
	})
	var taken []netip.Addr
	for i, set := range cfg.sets {
		addr, err := s.take(i, set, cfg.asked[i], owner)
		if err != nil {
			return nil, err
		}
		taken = append(taken, addr)
	}
	for i, addr := range taken {
		if err := s.setLast(i, addr); err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// take reserves the address that was asked for or, without one, the first that
// nobody has after the one that the set gave away last.
func (s *store) take(n int, set rangeSet, asked askedAddr, owner string) (netip.Addr, error) {
	if addr := asked.addr; addr.IsValid() {
		err := s.reserve(addr, owner)
		if errors.Is(err, errTaken) {
			err = cni.Errorf(cni.CodeConflict, "%s: requested IP address %s is not available in range set %s: %w%s",
				asked.key, addr, set, err, s.holder(addr))
		}
		return addr, err
	}
	order := set.after(s.last(n))
	reserve := func(addr netip.Addr) error { return s.reserve(addr, owner) }
	addr, err := s.first(order, reserve)
	if errors.Is(err, errNoneLeft) && s.listed == nil {
		// The index may have addresses whose files lost their text.
		if err = s.walk(); err == nil {
			addr, err = s.first(order, reserve)
		}
	}
	if errors.Is(err, errNoneLeft) {
		files, owners := s.count(set)
		err = cni.Errorf(cni.CodeTryAgain, "failed to allocate for range %d: %w: %s: files %d, owners %d, in %s",
			n, err, set, files, owners, s.dir.Path())
	}
	return addr, err
}

var errNoneLeft = errors.New("no IP addresses available in range set")

// manyMisses is how many taken addresses are tried before the index is asked
// which others are taken.
const manyMisses = 16

// first returns the first address that nobody has: try says errTaken of the others.
func (s *store) first(order iter.Seq[netip.Addr], try func(netip.Addr) error) (netip.Addr, error) {
	var taken map[netip.Addr]bool
	misses := 0
	for addr := range order {
		if taken[addr] {
			continue
		}
		err := try(addr)
		if !errors.Is(err, errTaken) {
			return addr, err
		}
		if misses++; misses == manyMisses {
			if taken, err = s.taken(); err != nil {
				return addr, err
			}
		}
	}
	return netip.Addr{}, errNoneLeft
}

// holder says in words who holds an address.
func (s *store) holder(addr netip.Addr) string {
	owner, err := s.owner(addr)
	if err != nil || owner == "" {
		return ""
	}
	if id, ifName, ok := parseOwner(owner); ok {
		return fmt.Sprintf(" for container %q, interface %q", id, ifName)
	}
	return fmt.Sprintf(" for %.64q", owner)
}

// count tells how many files and owners a set has; the directory was read.
func (s *store) count(set rangeSet) (files, owners int) {
	seen := map[string]bool{}
	for _, l := range s.listed {
		if _, ok := set.find(l.addr); ok {
			files++
			seen[l.owner] = true
		}
	}
	return files, len(seen)
}
