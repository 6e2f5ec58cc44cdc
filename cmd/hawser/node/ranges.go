package node

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Range is a range of addresses of host-local's configuration, or a part of one that ipam.exclude has left.
type Range struct {
	Subnet               netip.Prefix
	First, Last, Gateway netip.Addr
	Place                int // of the whole range in its set
}

// Has says whether the address is in the range.
func (r Range) Has(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
}

// Contains says whether host-local may give the address away.
func (r Range) Contains(a netip.Addr) bool { return a != r.Gateway && r.Has(a) }

// Overlaps says whether the ranges have an address in common.
func (r Range) Overlaps(o Range) bool { return r.Has(o.First) || o.Has(r.First) }

// without are the parts that lie outside of the networks.
func (r Range) without(exclude []netip.Prefix) []Range {
	left := []Range{r}
	for _, p := range exclude {
		o := Range{First: p.Addr(), Last: cni.LastOf(p)}
		var parts []Range
		for _, r := range left {
			before, behind := r, r
			before.Last, behind.First = o.First.Prev(), o.Last.Next()
			switch {
			case !r.Overlaps(o):
				parts = append(parts, r)
				continue
			case r.First.Less(o.First):
				parts = append(parts, before)
			}
			if o.Last.Less(r.Last) {
				parts = append(parts, behind)
			}
		}
		left = parts
	}
	return left
}

// Size is how many addresses host-local may give away.
func (r Range) Size() float64 {
	a, b := r.First.As16(), r.Last.As16()
	part := func(at int) float64 {
		return float64(binary.BigEndian.Uint64(b[at:])) - float64(binary.BigEndian.Uint64(a[at:]))
	}
	size := math.Ldexp(part(0), 64) + part(8) + 1
	if r.Has(r.Gateway) {
		size--
	}
	return size
}

// RangeSets are those of a list's host-local, in the order of its files last_reserved_ip.N. What the runtime sends is
// not among them, nor what is no range.
func (l List) RangeSets() (sets [][]Range) {
	type wire struct{ Subnet, RangeStart, RangeEnd, Gateway string }
	for _, e := range l.Plugins {
		var ipam struct {
			wire
			Ranges  [][]wire
			Exclude []string
		}
		if e.IPAM.Type != "host-local" || json.Unmarshal(e.Raw["ipam"], &ipam) != nil {
			continue
		}
		if ipam.Subnet != "" {
			ipam.Ranges = slices.Insert(ipam.Ranges, 0, []wire{ipam.wire})
		}
		exclude, _ := cni.ParseNetworks("exclude", ipam.Exclude)
		for _, written := range ipam.Ranges {
			var set []Range
			for i, w := range written {
				subnet, err := cni.ParsePrefix("subnet", w.Subnet)
				if err != nil {
					continue
				}
				r := newRange(subnet, w.RangeStart, w.RangeEnd, w.Gateway)
				r.Place = i
				set = append(set, r.without(exclude)...)
			}
			sets = append(sets, set)
		}
	}
	return sets
}

// newRange is the range of a subnet: all of it but the network, the gateway and, of IPv4, the broadcast address.
func newRange(subnet netip.Prefix, start, end, gateway string) Range {
	of := func(text string, missing netip.Addr) netip.Addr {
		addr, _ := netip.ParseAddr(text)
		return cmp.Or(addr, missing)
	}
	r := Range{First: subnet.Masked().Addr().Next()}
	if r.Last = cni.LastOf(subnet); r.Last.Is4() {
		r.Last = r.Last.Prev()
	}
	return Range{Subnet: subnet.Masked(), First: of(start, r.First), Last: of(end, r.Last),
		Gateway: of(gateway, r.First)}
}
