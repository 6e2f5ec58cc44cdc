package node

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
)

// Usage is how many addresses of a set are lent, and how many there are.
func Usage(set ranges.Set, lent []netip.Addr) (used, size float64) {
	for _, r := range set {
		size += r.Size()
		for _, a := range lent {
			if r.Contains(a) {
				used++
			}
		}
	}
	return used, size
}

// Lent are the addresses that IPAM lent to attachments, by the network.
func Lent(all []*Attachment) map[string][]netip.Addr {
	lent := map[string][]netip.Addr{}
	for _, a := range all {
		for _, text := range a.Held(cni.HeldAddress) {
			addr, _ := netip.ParseAddr(FirstWord(text)) // an address that is none is in no range
			lent[a.Network] = append(lent[a.Network], addr)
		}
	}
	return lent
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
