package node

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
)

// Usage is how many addresses of a range set are lent to attachments, and how many there are.
type Usage struct {
	ranges.Set
	Used, Size float64
}

// Usage is that of the list's range sets, in the order of RangeSets.
func (l List) Usage(all []*Attachment) (sets []Usage) {
	var lent []netip.Addr
	for _, a := range all {
		for _, text := range a.Held(cni.HeldAddress) {
			if addr, err := netip.ParseAddr(FirstWord(text)); err == nil && a.Network == l.Name {
				lent = append(lent, addr)
			}
		}
	}
	for _, set := range l.RangeSets() {
		u := Usage{Set: set}
		for _, r := range set {
			u.Size += r.Size()
			for _, a := range lent {
				if r.Contains(a) {
					u.Used++
				}
			}
		}
		sets = append(sets, u)
	}
	return sets
}

// RangeSets are those of a list's host-local, in the order of its files last_reserved_ip.N. What the runtime sends is
// not among them, nor what is no range.
func (l List) RangeSets() (sets []ranges.Set) {
	for _, e := range l.Plugins {
		var ipam struct {
			ranges.Wire
			Ranges  [][]ranges.Wire
			Exclude []string
		}
		if e.IPAM.Type != "host-local" || json.Unmarshal(e.Raw["ipam"], &ipam) != nil {
			continue
		}
		exclude, _ := cni.ParseNetworks("exclude", ipam.Exclude)
		add := func(set *ranges.Set, key string, w ranges.Wire) {
			if r, err := w.Parse(key); err == nil {
				*set = append(*set, ranges.Set{r}.Without(exclude)...)
			}
		}
		if ipam.Subnet != nil {
			sets = append(sets, nil)
			add(&sets[len(sets)-1], "ipam", ipam.Wire)
		}
		for i, written := range ipam.Ranges {
			var set ranges.Set
			for j, w := range written {
				add(&set, fmt.Sprintf("ipam.ranges[%d][%d]", i, j), w)
			}
			sets = append(sets, set)
		}
	}
	return sets
}
