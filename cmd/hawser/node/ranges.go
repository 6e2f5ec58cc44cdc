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

// Range is a range of addresses of host-local's configuration.
type Range struct{ First, Last, Gateway netip.Addr }

// Contains says whether host-local may give the address away.
func (r Range) Contains(a netip.Addr) bool {
	return a != r.Gateway && a.BitLen() == r.First.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
}

// Size is how many addresses host-local may give away.
func (r Range) Size() float64 {
	a, b := r.First.As16(), r.Last.As16()
	part := func(at int) float64 {
		return float64(binary.BigEndian.Uint64(b[at:])) - float64(binary.BigEndian.Uint64(a[at:]))
	}
	size := math.Ldexp(part(0), 64) + part(8) + 1
	if r.Gateway.BitLen() == r.First.BitLen() && !r.Gateway.Less(r.First) && !r.Last.Less(r.Gateway) {
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
			Ranges [][]wire
		}
		if e.IPAM.Type != "host-local" || json.Unmarshal(e.Raw["ipam"], &ipam) != nil {
			continue
		}
		if ipam.Subnet != "" {
			ipam.Ranges = slices.Insert(ipam.Ranges, 0, []wire{ipam.wire})
		}
		for _, written := range ipam.Ranges {
			var set []Range
			for _, w := range written {
				subnet, err := cni.ParsePrefix("subnet", w.Subnet)
				if err != nil {
					continue
				}
				set = append(set, newRange(subnet, w.RangeStart, w.RangeEnd, w.Gateway))
			}
			sets = append(sets, set)
		}
	}
	return sets
}

// newRange is the range of a subnet: all of it but the network, the gateway and, of IPv4, the broadcast address.
func newRange(subnet netip.Prefix, start, end, gateway string) Range {
	last := subnet.Masked().Addr().AsSlice()
	for bit := subnet.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	of := func(text string, missing netip.Addr) netip.Addr {
		addr, _ := netip.ParseAddr(text)
		return cmp.Or(addr, missing)
	}
	r := Range{First: subnet.Masked().Addr().Next()}
	r.Last, _ = netip.AddrFromSlice(last)
	if r.Last.Is4() {
		r.Last = r.Last.Prev()
	}
	return Range{of(start, r.First), of(end, r.Last), of(gateway, r.First)}
}
