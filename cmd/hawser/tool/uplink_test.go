package tool

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/rtnl"
)

var _ = DescribeTable("uplinks of a bridge with a VLAN of containers", Label("tool-doctor"),
	func(port rtnl.Link, uplinks []string, needsNoUplink bool) {
		bridge := rtnl.Link{Index: 7, Name: "cni0", Kind: "bridge"}
		found, result := uplinksOf([]rtnl.Link{bridge, port, {Name: "e1"}}, bridge, 5)
		Expect(found).To(Equal(uplinks))
		Expect(result).To(Equal(needsNoUplink))
	},
	Entry("hardware", rtnl.Link{Name: "e0", Master: 7}, []string{"e0"}, false),
	Entry("a bond", rtnl.Link{Name: "bond0", Kind: "bond", Master: 7}, []string{"bond0"}, false),
	Entry("a virtual machine's tap", rtnl.Link{Name: "tap0", Kind: "tun", Master: 7}, nil, false),
	Entry("a dummy", rtnl.Link{Name: "d0", Kind: "dummy", Master: 7}, nil, false),
	Entry("the host's own interface in the VLAN", rtnl.Link{Name: "cni0.5", Kind: "vlan", Peer: 7, VLAN: 5}, nil, true),
	Entry("the host's own interface in another VLAN", rtnl.Link{Name: "cni0.6", Kind: "vlan", Peer: 7, VLAN: 6}, nil,
		false))
