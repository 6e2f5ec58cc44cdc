package main

import (
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
)

// ipRange is a run of addresses of one subnet, both ends included. Whatever
// lies between start and end may be given away, but for gateways.
type ipRange struct {
	subnet     netip.Prefix // masked
	start, end netip.Addr
	gateway    netip.Addr // may lie outside the range, and outside the subnet
}

// newRange returns the range of a subnet that says nothing else: it leaves
// out the network's own address and, in IPv4, the broadcast address.
func newRange(subnet netip.Prefix) (ipRange, error) {
	if subnet != subnet.Masked() {
		return ipRange{}, fmt.Errorf("has host bits set, the network is %s", subnet.Masked())
	}
	if subnet.Bits() > subnet.Addr().BitLen()-2 {
		return ipRange{}, fmt.Errorf("is too small: the network, its gateway and one address need a /%d", subnet.Addr().BitLen()-2)
	}
	first, last := subnet.Addr().Next(), lastOf(subnet)
	if last.Is4() {
		last = last.Prev()
	}
	return ipRange{subnet: subnet, start: first, end: last, gateway: first}, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func (r ipRange) String() string { return r.start.String() + "-" + r.end.String() }

func (r ipRange) contains(addr netip.Addr) bool {
	return r.start.BitLen() == addr.BitLen() && !addr.Less(r.start) && !r.end.Less(addr)
}

func (r ipRange) overlaps(o ipRange) bool {
	return r.contains(o.start) || o.contains(r.start)
}

// distance is b-a; ok is false when it takes more than 64 bits.
func distance(a, b netip.Addr) (n uint64, ok bool) {
	aHigh, aLow := halves(a)
	bHigh, bLow := halves(b)
	low, borrow := bits.Sub64(bLow, aLow, 0)
	high, _ := bits.Sub64(bHigh, aHigh, borrow)
	return low, high == 0
}

// halves are the address as a number of 128 bits.
func halves(a netip.Addr) (high, low uint64) {
	for i, b := range a.As16() {
		if i < 8 {
			high = high<<8 | uint64(b)
		} else {
			low = low<<8 | uint64(b)
		}
	}
	return high, low
}

// rangeSet is a list of ranges of one family; an attachment gets one address
// from each set.
type rangeSet []ipRange

func (s rangeSet) String() string {
	list := make([]string, len(s))
	for i, r := range s {
		list[i] = r.String()
	}
	return strings.Join(list, ",")
}

// find returns the range that an address belongs to.
func (s rangeSet) find(addr netip.Addr) (ipRange, bool) {
	for _, r := range s {
		if r.contains(addr) {
			return r, true
		}
	}
	return ipRange{}, false
}

// size is the number of addresses that the set can give away, at most
// math.MaxUint64.
func (s rangeSet) size() uint64 {
	var sum uint64
	for _, r := range s {
		for _, free := range s.appendSpan(nil, r.start, r.end) {
			n, ok := distance(free.from, free.to)
			total, carry := bits.Add64(sum, n, 1)
			if !ok || carry != 0 {
				return math.MaxUint64
			}
			sum = total
		}
	}
	return sum
}

// gateways lists the gateways of all ranges, in order: that of one range may
// lie in another.
func (s rangeSet) gateways() []netip.Addr {
	var list []netip.Addr
	for _, r := range s {
		list = append(list, r.gateway)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// span is a run of addresses, both ends included.
type span struct{ from, to netip.Addr }

// after lists the addresses of the set in the order in which they are tried
// when last was given away before: from the one after it to the end of its
// range, through the other ranges, and round to last itself. When last is in
// no range, the order begins at the first. Gateways are left out.
func (s rangeSet) after(last netip.Addr) []span {
	var spans []span
	at := -1
	for i, r := range s {
		if r.contains(last) {
			at = i
			break
		}
	}
	if at < 0 {
		for _, r := range s {
			spans = s.appendSpan(spans, r.start, r.end)
		}
		return spans
	}
	if last != s[at].end {
		spans = s.appendSpan(spans, last.Next(), s[at].end)
	}
	for i := 1; i < len(s); i++ {
		r := s[(at+i)%len(s)]
		spans = s.appendSpan(spans, r.start, r.end)
	}
	return s.appendSpan(spans, s[at].start, last)
}

// appendSpan appends from to to without gateways.
func (s rangeSet) appendSpan(spans []span, from, to netip.Addr) []span {
	for _, gateway := range s.gateways() {
		if !(span{from, to}).contains(gateway) {
			continue
		}
		if gateway != from {
			spans = append(spans, span{from, gateway.Prev()})
		}
		if gateway == to {
			return spans
		}
		from = gateway.Next()
	}
	return append(spans, span{from, to})
}

func (s span) contains(addr netip.Addr) bool {
	return s.from.BitLen() == addr.BitLen() && !addr.Less(s.from) && !s.to.Less(addr)
}
