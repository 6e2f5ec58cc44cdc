package cost_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("a bridge of the administrator's, with an uplink,", func() {
	It("is not asked for its ports where the host forwards IPv6 anyway", func() {
		nstest.Need("tap")
		n := newNode(0)
		for _, args := range []string{"link add adm up type bridge", "tuntap add tap0 mode tap",
			"link set tap0 up master adm"} {
			IP(n.Host, "%s", args)
		}
		n.SetSysctl("net/ipv6/conf/adm/accept_ra", "1")
		n.SetSysctl("net/ipv6/conf/adm/forwarding", "1")
		p := pod("one", "eth0", nstest.NewNetns())
		e := Step{Plugin: "bridge", Keys: Merge(Object{"bridge": "adm"}, ipam(single))}
		r := n.Trace("bridge", n.CallOf("ADD", p, e))
		Expect(costOf(r).dumps).To(BeZero(), sent(r))
		Expect(n.Sysctl("net/ipv6/conf/adm/accept_ra")).To(Equal("1"), "it is used as it is found")
	})
})
