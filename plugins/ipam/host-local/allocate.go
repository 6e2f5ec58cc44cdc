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
func allocate(s *leaseDir, req *skel.Request, cfg *config) ([]cni.IP, error) {
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
		return releaseAll(ctx, cfg.dataDir, req.Network, owner)
	})
	ips := make([]cni.IP, len(cfg.sets))
	for i, set := range cfg.sets {
		addr, err := s.take(i, set, cfg.asked[i], owner)
		if err != nil {
			return nil, err
		}
		r, _ := set.find(addr)
		ips[i] = cni.IP{Address: netip.PrefixFrom(addr, r.subnet.Bits()), Gateway: r.gateway}
	}
	for i, ip := range ips {
		if err := s.setLast(i, ip.Address.Addr()); err != nil {
			return nil, err
		}
	}
	return ips, nil
}

// take reserves the address that was asked for or, without one, the first that
// nobody has after the one that the set gave away last.
func (s *leaseDir) take(n int, set rangeSet, asked askedAddr, owner string) (netip.Addr, error) {
	if addr := asked.addr; addr.IsValid() {
		err := s.reserve(addr, owner)
		if errors.Is(err, errTaken) {
			err = cni.Errorf(cni.CodeConflict, "%s: requested IP address %s is not available in range set %s: "+
				"%w for %s", asked.key, addr, set, err, s.ownerInWords(addr))
		}
		return addr, err
	}
	order := set.after(s.last(n))
	reserve := func(addr netip.Addr) error { return s.reserve(addr, owner) }
	addr, err := s.first(order, reserve)
	if errors.Is(err, errNoneLeft) && !s.walked() {
		// The index may have addresses whose files lost their text.
		if err = s.walk(nil); err == nil {
			addr, err = s.first(order, reserve)
		}
	}
	if errors.Is(err, errNoneLeft) {
		files, owners := s.index.usage(set)
		err = cni.Errorf(cni.CodeTryAgain, "failed to allocate for range %d: %w: %s: files %d, owners %d, in %s",
			n, err, set, files, owners, s.dir.Path())
	}
	return addr, err
}

var errNoneLeft = errors.New("no IP addresses available in range set")

// manyMisses is how many taken addresses are tried before the index is asked for the others.
const manyMisses = 16

// first returns the first address that nobody has: try says errTaken of the others.
func (s *leaseDir) first(order iter.Seq[netip.Addr], try func(netip.Addr) error) (netip.Addr, error) {
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
		if misses++; misses == manyMisses && s.loadIndex() == nil {
			if taken, err = s.index.taken(); err != nil {
				return addr, err
			}
		}
	}
	return netip.Addr{}, errNoneLeft
}

// ownerInWords is who owns an address, for messages.
func (s *leaseDir) ownerInWords(addr netip.Addr) string {
	owner, _ := s.owner(addr) // reserve has read it
	if id, ifName, ok := parseOwner(owner); ok {
		return fmt.Sprintf("container %q, interface %q", id, ifName)
	}
	return fmt.Sprintf("%.64q", owner)
}
