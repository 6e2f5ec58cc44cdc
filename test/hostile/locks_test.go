package hostile_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/node"
)

// hold has another program hold a lock from now on, for so many seconds.
func hold(n *node.Node, lock, seconds string) {
	GinkgoHelper()
	n.Start(nstest.Program{Path: "bash", Args: []string{"-ec", "exec 9>>" + lock + "; flock 9; touch /run/held; exec sleep " + seconds}})
	Eventually(func() int { return n.Host.Run(nstest.Program{Path: "test", Args: []string{"-e", "/run/held"}}).Exit }).
		WithTimeout(nstest.Patience(5 * time.Second)).WithPolling(5 * time.Millisecond).Should(BeZero())
	n.Cmd("rm", "/run/held")
}

var _ = Describe("a lock that another program holds", Label("kernel"), func() {
	It("is not even looked at when it is the xtables lock and the rules are in nftables", func() {
		n := node.New()
		n.Succeeds("DEL", n.Add(node.NewPod("first"), node.List("")), node.List(""))
		hold(n, "/run/xtables.lock", "60")
		began := time.Now()
		p := n.Add(node.NewPod("one"), node.List(""))
		n.Succeeds("CHECK", p, node.List(""))
		n.Succeeds("DEL", p, node.List(""))
		n.Succeeds("GC", p, withGC(node.List("")))
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(20*time.Second)))
	})

	DescribeTable("is waited for, and no longer than it is held", func(backend, lock string) {
		if backend == "iptables" {
			useIPTables("legacy")
		}
		n := node.New()
		first := n.Add(node.NewPod("first"), node.List(backend))
		for _, command := range []string{"ADD", "DEL"} {
			hold(n, lock, "1.5")
			began := time.Now()
			if command == "ADD" {
				n.Add(node.NewPod("one"), node.Port(node.List(backend), 8081))
			} else {
				n.Succeeds("DEL", first, node.List(backend))
			}
			Expect(time.Since(began)).To(And(BeNumerically(">", time.Second), BeNumerically("<", nstest.Patience(10*time.Second))), command)
		}
	},
		Entry("of the leases", "", "/var/lib/cni/networks/net/lock"),
		Entry("of the rules", "", "/run/hawser/nft.lock"),
		Entry("of host ports", "", "/run/hawser/portmap/lock"),
		Entry("of the originals", "", "/run/cni/tuning/.hawser/lock"),
		Entry("of legacy iptables", "iptables", "/run/xtables.lock"),
	)
})
