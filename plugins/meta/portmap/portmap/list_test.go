package portmap

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("List", Label("kernel"), func() {
	DescribeTable("has the host ports until DEL, and changes nothing", func(backend string) {
		nstest.NeedBackend(backend)
		w := NewWorld(Plugin())
		n := 1
		w.ExpectHeld(func(id, network string) (Call, []string) {
			n++
			published := ports(fmt.Sprintf("808%d:80", n), fmt.Sprintf("10.1.0.1:5%d:53/udp", n))
			a := w.AttachBehind(id, network, Merge(Object{"backend": backend}, published), Addrs(n)[0],
				fmt.Sprintf("fd00::%d/64", n))
			return a.As("DEL"), []string{
				fmt.Sprintf("host port: 0.0.0.0:808%d/tcp to 10.1.0.%d:80", n, n),
				fmt.Sprintf("host port: [::]:808%d/tcp to [fd00::%d]:80", n, n),
				fmt.Sprintf("host port: 10.1.0.1:5%d/udp to 10.1.0.%d:53", n, n)}
		})
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	for _, ref := range nstest.QuickReferences() {
		DescribeTable("has what "+ref.Name+" made", func(backend, want string) {
			nstest.NeedBackend(backend)
			w, c := newContainer()
			keys := Merge(ports("8080:80", "192.0.2.1:53:5353/udp"), Object{"backend": backend})
			c.reference(ref, "ADD", keys)
			if ref == nstest.Debian() && backend == "nftables" {
				want = "net1 c1-2  "
			}
			Expect(Held(w.Holdings(""))).To(ConsistOf(
				want+"host port: 0.0.0.0:8080/tcp to 10.1.0.2:80 (reference)",
				want+"host port: [::]:8080/tcp to [fd00:1::2]:80 (reference)",
				want+"host port: 192.0.2.1:53/udp to 10.1.0.2:5353 (reference)"))
			c.reference(ref, "DEL", keys)
			Expect(w.Holdings("")).To(BeEmpty())
		},
			Entry("with iptables", "iptables", "net1 c1-2  "),
			Entry("with nftables", "nftables", " c1-2  "),
		)
	}
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[location],
	Entry("0.1.0 and 0.2.0-dev",
		`"netns": "/run/netns/c1", "cookie": 7, "device": 4, "inode": 4026532000, "mac": "02:00:00:00:00:01"`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "mac": "02:00:00:00:00:01"`))
