// Package ranges implements the address ranges of the IPAM plugins host-local and cluster-local.
//
// A Range is part of a subnet; its gateway is never assigned. A Set is a list of ranges. The package parses ranges,
// sets, exclusions and requested addresses, with the same keys and messages for both plugins. It does not know which
// addresses are in use.
package ranges

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Range is the addresses of a subnet from First to Last. All of them except gateways can be assigned.
type Range struct {
	Subnet      netip.Prefix // masked
	First, Last netip.Addr
	Gateway     netip.Addr // may be outside of the range and of the subnet
	Key         string     // key in the configuration
}

// New returns the default range of a subnet: all but the network address and, in IPv4, the broadcast address.
func New(key string, subnet netip.Prefix) Range {
	first, last := subnet.Addr().Next(), cni.LastOf(subnet)
	if last.Is4() {
		last = last.Prev()
	}
	return Range{subnet, first, last, first, key}
}

func (r Range) String() string { return r.First.String() + "-" + r.Last.String() }

// Contains reports whether the address is in the range.
func (r Range) Contains(addr netip.Addr) bool {
	return r.First.BitLen() == addr.BitLen() && !addr.Less(r.First) && !r.Last.Less(addr)
}

// Overlaps reports whether the ranges have a common address.
func (r Range) Overlaps(o Range) bool { return r.Contains(o.First) || o.Contains(r.First) }

// Size returns the number of addresses that can be assigned.
func (r Range) Size() float64 {
	a, b := r.First.As16(), r.Last.As16()
	half := func(offset int) float64 {
		return float64(binary.BigEndian.Uint64(b[offset:])) - float64(binary.BigEndian.Uint64(a[offset:]))
	}
	size := math.Ldexp(half(0), 64) + half(8) + 1
	if r.Contains(r.Gateway) {
		size--
	}
	return size
}

// Set is a list of ranges of one address family. An attachment gets one address from each set.
type Set []Range

func (s Set) String() string { return Join(s, ",") }

// RangeOf returns the range that contains an address.
func (s Set) RangeOf(addr netip.Addr) (Range, bool) {
	i := slices.IndexFunc(s, func(r Range) bool { return r.Contains(addr) })
	if i < 0 {
		return Range{}, false
	}
	return s[i], true
}

// IsGateway reports whether an address is the gateway of any range of the set.
func (s Set) IsGateway(addr netip.Addr) bool {
	return slices.ContainsFunc(s, func(r Range) bool { return r.Gateway == addr })
}

// Candidates yields the addresses of the set except gateways, in the order in which ADD tries them: from the successor
// of last to the end of its range, then through the other ranges, and from the start of last's range to last itself. If
// no range contains last, it starts with the first range.
func (s Set) Candidates(last netip.Addr) iter.Seq[netip.Addr] {
	order := s
	if i := slices.IndexFunc(s, func(r Range) bool { return r.Contains(last) }); i >= 0 {
		order = slices.Concat(s[i:], s[:i+1])
		order[0].First, order[len(s)].Last = last.Next(), last
	}
	return func(yield func(netip.Addr) bool) {
		for _, r := range order {
			// Next of the highest address of the family is invalid.
			for addr := r.First; addr.IsValid() && !r.Last.Less(addr); addr = addr.Next() {
				if !s.IsGateway(addr) && !yield(addr) {
					return
				}
			}
		}
	}
}

// Subtract returns the parts of the set's ranges that are outside of the excluded networks.
func (s Set) Subtract(exclude []netip.Prefix) Set {
	for _, p := range exclude {
		excluded := Range{First: p.Addr(), Last: cni.LastOf(p)}
		var left Set
		for _, r := range s {
			if !r.Overlaps(excluded) {
				left = append(left, r)
				continue
			}
			before, after := r, r
			before.Last, after.First = excluded.First.Prev(), excluded.Last.Next()
			if r.First.Less(excluded.First) {
				left = append(left, before)
			}
			if excluded.Last.Less(r.Last) {
				left = append(left, after)
			}
		}
		s = left
	}
	return s
}

// Exclude removes the networks of the key ipam.exclude from the sets, unless there are problems. A range can be split.
func Exclude(sets []Set, list []string, problems *cni.Problems) {
	exclude, err := cni.ParseNetworks("ipam.exclude", list)
	problems.Add(err)
	if problems.Err() != nil {
		return
	}
	for i, set := range sets {
		sets[i] = nil
		for _, r := range set {
			left := Set{r}.Subtract(exclude)
			if len(left) == 0 {
				problems.Add(cni.Refuse("ipam.exclude", nil, fmt.Sprintf("leaves no address of %s, %s", r.Key, r)))
			}
			sets[i] = append(sets[i], left...)
		}
	}
}

// Verify returns a drift error if a result has addresses in the sets that the attachment does not hold.
func Verify(sets []Set, result *cni.Result, held []netip.Addr) error {
	if result == nil {
		return nil
	}
	var lost []netip.Addr
	for _, ip := range result.IPs {
		addr := ip.Address.Addr().Unmap()
		isOurs := slices.ContainsFunc(sets, func(s Set) bool { _, ok := s.RangeOf(addr); return ok })
		if isOurs && !slices.Contains(held, addr) {
			lost = append(lost, addr)
		}
	}
	if lost == nil {
		return nil
	}
	return cni.Drift("prevResult: %s is not reserved for the attachment, which holds %s", Join(lost, ", "),
		Join(held, ", "))
}

// Join returns the texts of a list with sep between them.
func Join[T fmt.Stringer](list []T, sep string) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return strings.Join(words, sep)
}
