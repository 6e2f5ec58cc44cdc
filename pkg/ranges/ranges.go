// Package ranges has the ranges of addresses from which IPAM plugins give: how configurations write them, what is
// excluded, and which addresses are asked for.
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

// Range is a run of addresses of one subnet, both ends included. All but gateways may be given away.
type Range struct {
	Subnet      netip.Prefix // masked
	First, Last netip.Addr
	Gateway     netip.Addr // may lie outside the range, and outside the subnet
	Key         string     // where the configuration has it
}

// New is the default range of a subnet: all but the network's own address and, in IPv4, the broadcast address.
func New(key string, subnet netip.Prefix) Range {
	first, last := subnet.Addr().Next(), cni.LastOf(subnet)
	if last.Is4() {
		last = last.Prev()
	}
	return Range{subnet, first, last, first, key}
}

func (r Range) String() string { return r.First.String() + "-" + r.Last.String() }

// Contains says whether the address is in the range.
func (r Range) Contains(addr netip.Addr) bool {
	return r.First.BitLen() == addr.BitLen() && !addr.Less(r.First) && !r.Last.Less(addr)
}

// Overlaps says whether the ranges have an address in common.
func (r Range) Overlaps(o Range) bool { return r.Contains(o.First) || o.Contains(r.First) }

// Size is how many addresses may be given away.
func (r Range) Size() float64 {
	a, b := r.First.As16(), r.Last.As16()
	part := func(at int) float64 {
		return float64(binary.BigEndian.Uint64(b[at:])) - float64(binary.BigEndian.Uint64(a[at:]))
	}
	size := math.Ldexp(part(0), 64) + part(8) + 1
	if r.Contains(r.Gateway) {
		size--
	}
	return size
}

// Set is a list of ranges of one family. An attachment gets one address of each set.
type Set []Range

func (s Set) String() string { return Join(s, ",") }

// Find returns the range that contains an address.
func (s Set) Find(addr netip.Addr) (Range, bool) {
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

// After yields the addresses of the set, without gateways, in the order in which they are tried: from the one after
// last to the end of its range, through the other ranges, and round to last itself, or from the first range where none
// has last.
func (s Set) After(last netip.Addr) iter.Seq[netip.Addr] {
	runs := s
	if at := slices.IndexFunc(s, func(r Range) bool { return r.Contains(last) }); at >= 0 {
		runs = slices.Concat(s[at:], s[:at+1])
		runs[0].First, runs[len(s)].Last = last.Next(), last
	}
	return func(yield func(netip.Addr) bool) {
		for _, r := range runs {
			// After the highest address of all Next is invalid.
			for addr := r.First; addr.IsValid() && !r.Last.Less(addr); addr = addr.Next() {
				if !s.IsGateway(addr) && !yield(addr) {
					return
				}
			}
		}
	}
}

// Without are the parts of the set's ranges that lie outside of the networks.
func (s Set) Without(exclude []netip.Prefix) Set {
	for _, p := range exclude {
		o := Range{First: p.Addr(), Last: cni.LastOf(p)}
		var left Set
		for _, r := range s {
			if !r.Overlaps(o) {
				left = append(left, r)
				continue
			}
			before, behind := r, r
			before.Last, behind.First = o.First.Prev(), o.Last.Next()
			if r.First.Less(o.First) {
				left = append(left, before)
			}
			if o.Last.Less(r.Last) {
				left = append(left, behind)
			}
		}
		s = left
	}
	return s
}

// Exclude takes what the key ipam.exclude lists out of the sets, unless there are problems. Their ranges become more,
// and smaller.
func Exclude(sets []Set, list []string, problems *cni.Problems) {
	exclude, err := cni.ParseNetworks("ipam.exclude", list)
	problems.Add(err)
	if problems.Err() != nil {
		return
	}
	for i, set := range sets {
		sets[i] = nil
		for _, r := range set {
			left := Set{r}.Without(exclude)
			if len(left) == 0 {
				problems.Add(cni.Refuse("ipam.exclude", nil, fmt.Sprintf("leaves no address of %s, %s", r.Key, r)))
			}
			sets[i] = append(sets[i], left...)
		}
	}
}

// Verify returns drift where a result has addresses of the sets that are not among those that the attachment holds.
func Verify(sets []Set, result *cni.Result, held []netip.Addr) error {
	if result == nil {
		return nil
	}
	var lost []netip.Addr
	for _, ip := range result.IPs {
		addr := ip.Address.Addr().Unmap()
		isOurs := slices.ContainsFunc(sets, func(s Set) bool { _, ok := s.Find(addr); return ok })
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

// Join are the texts of a list with something between them.
func Join[T fmt.Stringer](list []T, between string) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return strings.Join(words, between)
}
