package cost_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("a bridge of the administrator's, with an uplink,", func() {
	It("is not asked for its ports where the host forwards IPv6 anyway", func() {
		nstest.Need("tap")
		n := newNode(0)
		for _, args := range []string{"link add adm up type bridge", "tuntap add up0 mode tap",
			"link set up0 up master adm"} {
			plugintest.IP(n.Host, "%s", args)
		}
		n.SetSysctl("net/ipv6/conf/adm/accept_ra", "1")
		n.SetSysctl("net/ipv6/conf/adm/forwarding", "1")
		c := plugintest.Call{Command: "ADD", ID: "one", IfName: "eth0", Netns: nstest.NewNetns().Path}
		c.Conf = asked{"bridge", plugintest.Merge(object{"bridge": "adm"}, ipam(single))}.after(c)
		r := n.count("bridge", c)
		Expect(costOf(r).dumps).To(BeZero(), sent(r))
		Expect(n.Sysctl("net/ipv6/conf/adm/accept_ra")).To(Equal("1"), "it is used as it is found")
	})
})
