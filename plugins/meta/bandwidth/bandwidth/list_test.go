package bandwidth

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("is listed until DEL, and the list changes nothing", Label("kernel"), func() {
	nstest.Need("tbf", "ifb")
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, Object{"ingressRate": 8000000, "ingressBurst": 800000,
			"egressRate": 16500000, "egressBurst": 1600000}, Addrs(n)...)
		return a.As("DEL"), []string{
			"limit: ingress rate 8Mbit dev " + a.Result.Interfaces[1].Name,
			"limit: egress rate 16500Kbit dev " + a.Result.Interfaces[3].Name}
	})
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[netplugin.NetnsRecord],
	Entry("0.2.0-dev",
		`"path": "/run/netns/c1", "netns": ID, "link": 2, "made": ["ifb0"]`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "link": 2, "made": ["ifb0"]`))
