package vrf

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("is listed until DEL, and the list changes nothing", Label("kernel"), func() {
	nstest.Need("vrf")
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, Object{"vrfname": "red", "table": 10 + n}, Addrs(n)...)
		return a.As("DEL"), []string{fmt.Sprintf("routing: vrf red table %d", 10+n)}
	})
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[record],
	Entry("0.1.0 and 0.2.0-dev",
		`"path": "/run/netns/c1", "netns": ID, "vrf": "red", "made": true, "link": 2, "routes": []`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "vrf": "red", "made": true, "link": 2, "routes": []`))
