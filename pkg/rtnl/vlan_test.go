package rtnl

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = DescribeTable("VLANs are joined into ranges", func(vlans []VLAN, want string) {
	got := ""
	for _, r := range vlanRanges(vlans) {
		got += fmt.Sprintf(" %d-%d", r.ID, r.last)
		if r.PVID {
			got += "p"
		}
		if r.Untagged {
			got += "u"
		}
	}
	Expect(got).To(Equal(want))
},
	Entry("none", nil, ""),
	Entry("one", []VLAN{{ID: 5}}, " 5-0"),
	Entry("neighbours", []VLAN{{ID: 5}, {ID: 6}, {ID: 7}}, " 5-7"),
	Entry("out of order and twice", []VLAN{{ID: 7}, {ID: 5}, {ID: 6}, {ID: 6}}, " 5-7"),
	Entry("a gap", []VLAN{{ID: 5}, {ID: 7}}, " 5-0 7-0"),
	Entry("a PVID alone in the middle", []VLAN{{ID: 5}, {ID: 6, PVID: true, Untagged: true}, {ID: 7}},
		" 5-0 6-0pu 7-0"),
	Entry("other flags", []VLAN{{ID: 5}, {ID: 6}, {ID: 7, Untagged: true}, {ID: 8, Untagged: true}}, " 5-6 7-8u"),
	Entry("all", func() (all []VLAN) {
		for id := uint16(1); id <= 4094; id++ {
			all = append(all, VLAN{ID: id})
		}
		return all
	}(), " 1-4094"),
)
