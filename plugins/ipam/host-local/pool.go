package main

import (
	"iter"
	"net/netip"
	"slices"
)

// ipRange is a run of addresses of one subnet, both ends included. Every
// address of it may be given away, except gateways.
type ipRange struct {
	subnet     netip.Prefix // masked
	start, end netip.Addr
	gateway    netip.Addr // may lie outside the range, and outside the subnet
	key        string     // where the configuration has it
}

// newRange returns the default range of a subnet: all but the network's own
// address and, in IPv4, the broadcast address.
func newRange(key string, subnet netip.Prefix) ipRange {
	b := subnet.Addr().AsSlice()
	for bit := subnet.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	first := subnet.Addr().Next()
	last, _ := netip.AddrFromSlice(b)
	if last.Is4() {
		last = last.Prev()
	}
	return ipRange{subnet, first, last, first, key}
}

func (r ipRange) String() string { return r.start.String() + "-" + r.end.String() }

func (r ipRange) contains(addr netip.Addr) bool {
	return r.start.BitLen() == addr.BitLen() && !addr.Less(r.start) && !r.end.Less(addr)
}

func (r ipRange) overlaps(o ipRange) bool {
	return r.contains(o.start) || o.contains(r.start)
}

// rangeSet is a list of ranges of one family. An attachment gets one address
// of each set.
type rangeSet []ipRange

func (s rangeSet) String() string { return join(s, ",") }

// find returns the range that contains an address.
func (s rangeSet) find(addr netip.Addr) (ipRange, bool) {
	i := slices.IndexFunc(s, func(r ipRange) bool { return r.contains(addr) })
	if i < 0 {
		return ipRange{}, false
	}
	return s[i], true
}

// isGateway reports whether an address is the gateway of any range of the set.
func (s rangeSet) isGateway(addr netip.Addr) bool {
	return slices.ContainsFunc(s, func(r ipRange) bool { return r.gateway == addr })
}

// after yields the addresses of the set, without gateways, in the order in
// which they are tried when last was given away before: from the one after it
// to the end of its range, through the other ranges, and round to last itself.
// When no range contains last, the order begins at the first range.
func (s rangeSet) after(last netip.Addr) iter.Seq[netip.Addr] {
	runs := s
	if at := slices.IndexFunc(s, func(r ipRange) bool { return r.contains(last) }); at >= 0 {
		runs = slices.Concat(s[at:], s[:at+1])
		runs[0].start, runs[len(s)].end = last.Next(), last
	}
	return func(yield func(netip.Addr) bool) {
		for _, r := range runs {
			// After the highest address of all Next is invalid.
			for addr := r.start; addr.IsValid() && !r.end.Less(addr); addr = addr.Next() {
				if !s.isGateway(addr) && !yield(addr) {
					return
				}
			}
		}
	}
}
