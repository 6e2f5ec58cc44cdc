package masq_test

import (
	"math/rand/v2"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = DescribeTable("a call that is killed at any moment", Label("kernel"),
	func(backend ipt.Backend, variant string, rounds int) {
		if variant != "" {
			useVariant(variant)
		} else {
			nstest.Need("nft", "nft-inet-nat")
		}
		host := nstest.NewHost()
		bystander := config(backend, "bystander", "eth0", "10.1.0.9/24", "fd01::9/64")
		Expect(add(host, bystander)).To(Succeed())
		before := withoutHandles(host)
		self, err := os.Executable()
		Expect(err).NotTo(HaveOccurred())
		c := victim(backend)
		left := map[bool]int{}
		for range rounds {
			loop := host.Start(nstest.Program{Path: self, Env: []string{loopEnv + "=" + string(backend)}})
			time.AfterFunc(time.Duration(15+rand.IntN(60))*time.Millisecond, func() { _ = loop.Process.Kill() })
			Expect(loop.Wait()).To(MatchError("signal: killed"))
			left[withoutHandles(host) != before]++
			By("the next ADD is not in its way, and DEL leaves nothing, whatever was there")
			if rand.IntN(2) == 0 {
				Expect(add(host, c)).To(Succeed())
				Expect(check(host, c)).To(Succeed())
			}
			Expect(delBlind(host, c)).To(Succeed())
			Expect(withoutHandles(host)).To(Equal(before))
		}
		Expect(check(host, bystander)).To(Succeed())
		Expect(del(host, bystander)).To(Succeed())
		if backend == ipt.IPTables {
			Expect(records(host)).To(BeEmpty())
		}
		AddReportEntry("rounds in which something was left (true) or not", left)
	},
	Entry("nftables", ipt.NFTables, "", 25),
	Entry("iptables for nf_tables", ipt.IPTables, "nft", 12),
	Entry("iptables for x_tables", ipt.IPTables, "legacy", 12),
)

// withoutHandles is all rules of the host, and the records beside them without their locks.
func withoutHandles(h *nstest.Host) string {
	GinkgoHelper()
	return rulesOf(h) + h.Cmd("sh", "-c", "cd /run/hawser && find . -type f ! -name '*lock' | sort")
}
