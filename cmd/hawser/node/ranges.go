package node

import (
	"encoding/json"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
)

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
