package firewall

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("is listed until DEL, and the list changes nothing", Label("kernel"), func() {
	nstest.Need("nft")
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		keys := Object{"backend": "nftables", "ingressPolicy": "same-bridge"}
		a := w.AttachBehind(id, network, keys, Addrs(n)...)
		return a.As("DEL"), []string{fmt.Sprintf(
			"firewall: 10.1.0.%d 2001:db8:1::%d nftables policy same-bridge dev br-%s", n, n, network)}
	})
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[record],
	Entry("0.1.0",
		`"netns": ID, "backend": "nftables", "addrs": ["10.1.0.2"], "policy": "open"`,
		`"netnsPath": "", "netns": ID, "backend": "nftables", "addrs": ["10.1.0.2"], "policy": "open"`),
	Entry("0.2.0-dev",
		`"path": "/run/netns/c1", "netns": ID, "backend": "nftables", "addrs": []`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "backend": "nftables", "addrs": []`))
