package main

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// assign finds the set for each address that was asked for. A set gives one
// address only, and every one asked for must find its set.
func assign(sets []rangeSet, asked []askedAddr) ([]askedAddr, error) {
	bySet := make([]askedAddr, len(sets))
next:
	for _, a := range asked {
		for i, set := range sets {
			_, ok := set.find(a.addr)
			at := slices.IndexFunc(set, func(r ipRange) bool { return r.gateway == a.addr })
			switch {
			case !ok:
				continue
			case at >= 0:
				return nil, cni.Refuse(a.key, a.addr, fmt.Sprintf("is the gateway of %s", set[at].subnet)).WithCode(a.code)
			case bySet[i].addr.IsValid():
				return nil, cni.Refuse(a.key, a.addr, fmt.Sprintf("is of range set %d (%s), which gives one address, and %s is asked for too",
					i, set, bySet[i].addr)).WithCode(a.code)
			}
			bySet[i] = a
			continue next
		}
		return nil, cni.Refuse(a.key, a.addr, fmt.Sprintf("is in none of the ranges (%s)", join(sets))).WithCode(a.code)
	}
	return bySet, nil
}

// allocate takes an address from each set, or none at all.
func allocate(l *leases, a cni.Attachment, sets []rangeSet, asked []askedAddr) ([]netip.Addr, error) {
	held, err := heldBy(l, a)
	if err != nil {
		return nil, err
	}
	if len(held) > 0 {
		return nil, cni.Errorf(cni.CodeExists, "%s holds %s already; DEL gives it back", a, join(held))
	}
	owner := ownerText(a.ContainerID, a.IfName)
	var taken []netip.Addr
	for i, set := range sets {
		addr, err := takeOne(l, want{set: i, ranges: set, asked: asked[i], owner: owner})
		if err != nil {
			return nil, errors.Join(err, releaseAll(l, taken, owner))
		}
		taken = append(taken, addr)
	}
	for i, addr := range taken {
		if err := l.setLast(i, addr); err != nil {
			return nil, errors.Join(err, releaseAll(l, taken, owner))
		}
	}
	return taken, nil
}

// heldBy returns what an attachment holds: by container and interface or, in
// files of old plugins, by container alone.
func heldBy(l *leases, a cni.Attachment) ([]netip.Addr, error) {
	held, err := l.of(ownerText(a.ContainerID, a.IfName))
	if err != nil || len(held) > 0 {
		return held, err
	}
	return l.of(a.ContainerID)
}

// want is one address to be taken.
type want struct {
	set    int // N of last_reserved_ip.N
	ranges rangeSet
	asked  askedAddr // the zero value: any
	owner  string
}

// takeOne takes the address that was asked for, or the next free one.
func takeOne(l *leases, w want) (netip.Addr, error) {
	if addr := w.asked.addr; addr.IsValid() {
		err := l.reserve(addr, w.owner)
		if errors.Is(err, errTaken) {
			return addr, cni.Errorf(cni.CodeConflict, "%s: %s %w%s", w.asked.key, addr, err, l.holder(addr))
		}
		return addr, err
	}
	last, err := l.last(w.set)
	if err != nil {
		// Where to begin is a matter of taste, not worth a failure.
		last = netip.Addr{}
	}
	addr, ok, err := l.take(w.ranges.after(last), w.owner)
	if err != nil || ok {
		return addr, err
	}
	files, owners := l.count(w.ranges)
	return addr, cni.Errorf(cni.CodeTryAgain,
		"range set %d (%s): no address is left of %s: files %d, owners %d, in %s",
		w.set, w.ranges, sizeText(w.ranges.size()), files, owners, l.dir.Path())
}

// holder says in words who holds an address.
func (l *leases) holder(addr netip.Addr) string {
	owner, err := l.owner(addr)
	if err != nil || owner == "" {
		return ""
	}
	if id, ifName, ok := parseOwner(owner); ok {
		return fmt.Sprintf(" for container %q, interface %q", id, ifName)
	}
	if len(owner) > 64 {
		owner = owner[:64]
	}
	return fmt.Sprintf(" for %q", owner)
}

// count tells how many files and owners a set has; the directory was read.
func (l *leases) count(set rangeSet) (files, owners int) {
	seen := map[string]bool{}
	for _, lease := range l.listed {
		if _, ok := set.find(lease.addr); ok {
			files++
			seen[lease.owner] = true
		}
	}
	return files, len(seen)
}

func sizeText(n uint64) string {
	if n == math.MaxUint64 {
		return "2^64 addresses and more"
	}
	if n == 1 {
		return "1 address"
	}
	return strconv.FormatUint(n, 10) + " addresses"
}
