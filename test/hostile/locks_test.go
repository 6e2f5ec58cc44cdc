package hostile_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/node"
)

// hold has another program hold a lock, until the spec ends or release is called.
func hold(n *node.Node, lock string) (release func()) {
	GinkgoHelper()
	holder := n.Start(nstest.Program{Path: "flock", Args: []string{"-o", lock, "sh", "-c",
		"exec sleep 60 >/dev/null 2>&1"}})
	Eventually(func() string { return n.Cmd("cat", "/proc/locks") }).Should(MatchRegexp(`FLOCK .* %d `,
		holder.Process.Pid))
	return func() { Expect(holder.Process.Kill()).To(Succeed()) }
}

var _ = Describe("a lock that another program holds", Label("kernel"), func() {
	It("is not even looked at when it is the xtables lock and the rules are in nftables", func() {
		n := node.New()
		n.Succeeds("DEL", n.Add(node.NewPod("first"), node.List("")), node.List(""))
		hold(n, "/run/xtables.lock")
		began := time.Now()
		p := n.Add(node.NewPod("one"), node.List(""))
		n.Succeeds("CHECK", p, node.List(""))
		n.Succeeds("DEL", p, node.List(""))
		n.Succeeds("GC", p, withGC(node.List("")))
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
	})

	DescribeTable("is waited for, and no longer than it is held", func(backend, lock string) {
		if backend == "iptables" {
			useIPTables("legacy")
		}
		n := node.New()
		first := n.Add(node.NewPod("first"), node.List(backend))
		inode := strings.TrimSpace(n.Cmd("stat", "-c", "%i", lock))
		for _, command := range []string{"ADD", "DEL"} {
			release := hold(n, lock)
			done := make(chan struct{})
			go func() {
				defer GinkgoRecover()
				defer close(done)
				if command == "ADD" {
					n.Add(node.NewPod("one"), node.Port(node.List(backend), 8081))
				} else {
					n.Succeeds("DEL", first, node.List(backend))
				}
			}()
			Eventually(func() string { return n.Cmd("cat", "/proc/locks") }).Should(MatchRegexp(`-> FLOCK .*:%s `,
				inode))
			Expect(done).NotTo(BeClosed(), command)
			release()
			Eventually(done).WithTimeout(nstest.Hang).Should(BeClosed(), command)
		}
	},
		Entry("of the leases", "", "/var/lib/cni/networks/net/lock"),
		Entry("of the rules", "", "/run/hawser/nft.lock"),
		Entry("of host ports", "", "/run/hawser/portmap/lock"),
		Entry("of the originals", "", "/run/cni/tuning/.hawser/lock"),
		Entry("of legacy iptables", "iptables", "/run/xtables.lock"),
	)
})
