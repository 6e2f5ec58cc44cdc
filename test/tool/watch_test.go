package tool_test

import (
	"slices"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("hawser watch", Label("tool-watch"), func() {
	It("makes again what is flushed, removes what nobody needs, writes metrics, and ends on SIGTERM", func() {
		m := newMachine(ours(), usual)
		outside := nstest.NewOutside(m.Host)
		m.up(newPod("c1", "web-0", hostPort(8080, 80))).Serve("tcp4", ":80")
		answers := func() error {
			_, err := outside.AskWithin(nstest.Patience(300e6), "tcp4", "192.0.2.1:8080")
			return err
		}
		Expect(answers()).To(Succeed())
		gone := m.up(newPod("c2", "web-1"))
		gone.Unpin()
		watching := m.Start(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"watch", "--every", "1s",
			"--yes", "--older", "0s", "--file", "/etc/cni/net.d/hawser.prom"}})
		Eventually(func() []attachment { return asks[[]attachment](m, "ls") }).Should(HaveLen(1))
		Eventually(func() string { return m.Cmd("cat", "/etc/cni/net.d/hawser.prom") }).Should(
			ContainSubstring(`hawser_attachments{network="pods"} 1`))
		for _, flush := range []string{"nft flush ruleset", "nft delete table inet hawser",
			"nft flush table inet hawser", "iptables -F"} {
			m.Cmd("sh", "-c", flush)
			Eventually(answers).Should(Succeed(), flush)
		}
		Expect(watching.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Expect(watching.Wait()).To(Succeed())
	})

	It("makes again at once, not only each some minutes", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		rules := func() []string { return slices.Sorted(strings.Lines(m.Snapshot("nftables"))) } // in any order
		whole := rules()
		m.Start(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"watch", "--every", "1h"}})
		Eventually(func() string { return m.Cmd("cat", "/proc/net/netlink") }).Should(
			MatchRegexp(`(?m)^\S+ +12 +\d+ +0*40 `), "it listens")
		m.Cmd("nft", "flush", "ruleset")
		Eventually(rules).Should(Equal(whole))
	})

	It("refuses what it cannot do", func() {
		m := newMachine(ours(), usual)
		Expect(m.hawser("watch", "--every", "1ms").Stderr).To(ContainSubstring("--every must be a second or more"))
		Expect(m.hawser("watch", "--file", "x").Stderr).To(ContainSubstring("ends in .prom"))
	})
})
