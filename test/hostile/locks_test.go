package hostile_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// hold has another program hold a lock, until the spec ends or release is called.
func hold(n *World, lock string) (release func()) {
	GinkgoHelper()
	holder := n.Start(nstest.Program{Path: "flock", Args: []string{"-o", lock, "sh", "-c",
		"exec sleep 60 >/dev/null 2>&1"}})
	Eventually(func() string { return n.Cmd("cat", "/proc/locks") }).Should(MatchRegexp(`FLOCK .* %d `,
		holder.Process.Pid))
	return func() { Expect(holder.Process.Kill()).To(Succeed()) }
}

var _ = Describe("a lock that another program holds", Label("kernel", "held-lock"), func() {
	It("is not even looked at when it is the xtables lock and the rules are in nftables", func() {
		n := NewNode()
		n.Must("DEL", n.Up(NewPod("first"), Usual("")), Usual(""))
		hold(n, "/run/xtables.lock")
		began := time.Now()
		p := n.Up(NewPod("one"), Usual(""))
		n.Must("CHECK", p, Usual(""))
		n.Must("DEL", p, Usual(""))
		n.Must("GC", p, Usual("").Valid())
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
	})

	DescribeTable("is waited for, and no longer than it is held", func(backend, lock string) {
		if backend == "iptables" {
			nstest.UseVariant("legacy")
		}
		n := NewNode()
		first := n.Up(NewPod("first"), Usual(backend))
		inode := strings.TrimSpace(n.Cmd("stat", "-c", "%i", lock))
		for _, command := range []string{"ADD", "DEL"} {
			release := hold(n, lock)
			done := make(chan struct{})
			go func() {
				defer GinkgoRecover()
				defer close(done)
				if command == "ADD" {
					n.Up(NewPod("one"), Usual(backend).Port(8081))
				} else {
					n.Must("DEL", first, Usual(backend))
				}
			}()
			Eventually(func() string { return n.Cmd("cat", "/proc/locks") }).Should(MatchRegexp(`-> FLOCK .*:%s `,
				inode))
			Expect(done).NotTo(BeClosed(), command)
			release()
			Eventually(done).Should(BeClosed(), command)
		}
	},
		Entry("of the leases", "", "/var/lib/cni/networks/net/lock"),
		Entry("of the rules", "", "/run/hawser/nft.lock"),
		Entry("of host ports", "", "/run/hawser/portmap/lock"),
		Entry("of the originals", "", "/run/cni/tuning/.hawser/lock"),
		Entry("of legacy iptables", "iptables", "/run/xtables.lock"),
	)
})
