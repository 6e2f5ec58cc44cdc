package tuning

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("is listed until DEL, and the list changes nothing", func() {
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, Object{"mtu": 1400, "promisc": true,
			"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}, Addrs(n)...)
		for _, h := range w.Holdings(a.As("DEL").Stdin()) {
			Expect(h.NetnsPath).To(Equal(a.As("DEL").Netns))
		}
		return a.As("DEL"), []string{"setting: mtu 1400 (was 1500)", "setting: promisc true (was false)",
			"setting: net.ipv4.conf.eth0.arp_filter = 1 (was 0)"}
	})
})
