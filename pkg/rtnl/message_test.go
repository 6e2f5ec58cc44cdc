package rtnl

import (
	"fmt"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// FuzzAnswer reads anything as the kernel's answer.
func FuzzAnswer(f *testing.F) {
	link := linkHeader{index: 1}.body()
	link.Text(unix.IFLA_IFNAME, "eth0")
	f.Add([]byte(link))
	route := routeHeader{family: unix.AF_INET}.body()
	route.Bytes(unix.RTA_MULTIPATH, make([]byte, 12))
	f.Add([]byte(route))
	f.Add([]byte(addrHeader{family: unix.AF_INET6, prefixLen: 200}.body()))
	f.Fuzz(func(t *testing.T, data []byte) {
		parseLink(data)
		parseAddr(data)
		parseRoute(data)
		appendVLANs(nil, data)
	})
}

var _ = DescribeTable("VLANs are joined into ranges", func(vlans []VLAN, want string) {
	got := ""
	for _, info := range vlanRanges(vlans) {
		got += fmt.Sprintf(" %d:%x", info.id, info.flags)
	}
	Expect(got).To(Equal(want))
},
	Entry("none", nil, ""),
	Entry("one", []VLAN{{ID: 5}}, " 5:0"),
	Entry("neighbours", []VLAN{{ID: 5}, {ID: 6}, {ID: 7}}, " 5:8 7:10"),
	Entry("two neighbours", []VLAN{{ID: 5}, {ID: 6}}, " 5:8 6:10"),
	Entry("out of order and twice", []VLAN{{ID: 7}, {ID: 5}, {ID: 6}, {ID: 6}}, " 5:8 7:10"),
	Entry("a gap", []VLAN{{ID: 5}, {ID: 7}}, " 5:0 7:0"),
	Entry("a PVID alone in the middle", []VLAN{{ID: 5}, {ID: 6, PVID: true, Untagged: true}, {ID: 7}}, " 5:0 6:6 7:0"),
	Entry("other flags", []VLAN{{ID: 5}, {ID: 6}, {ID: 7, Untagged: true}, {ID: 8, Untagged: true}}, " 5:8 6:10 7:c 8:14"),
	Entry("all", func() (all []VLAN) {
		for id := uint16(1); id <= 4094; id++ {
			all = append(all, VLAN{ID: id})
		}
		return all
	}(), " 1:8 4094:10"),
)
