package tool_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// runFirewalld starts the distribution's firewalld on the node, with its own D-Bus.
func (m *machine) runFirewalld(backend string) *exec.Cmd {
	GinkgoHelper()
	nstest.NeedProgram("firewalld", "firewall-cmd")
	nstest.StartBus()
	dir := GinkgoT().TempDir()
	m.write(filepath.Join(dir, "firewalld.conf"), "FirewallBackend="+backend+"\n")
	program := m.Start(nstest.Program{Path: "firewalld", Args: []string{"--nofork", "--nopid", "--log-target",
		"console", "--system-config", dir}})
	Eventually(func() int {
		return m.Run(nstest.Program{Path: "firewall-cmd", Args: []string{"--state"}}).Exit
	}).Should(BeZero())
	return program
}

var _ = Describe("hawser doctor beside firewalld", Label("kernel", "tool-doctor", "firewalld"), func() {
	for _, backend := range []string{"nftables", "iptables"} {
		var labels Labels
		if backend == "iptables" {
			labels = Label("slow")
		}
		It("reports no fault of firewalld, whether it runs or has ended, with "+backend, labels, func() {
			nstest.Need("iptables")
			m := newMachine(ours(), usual)
			m.Cmd("sh", "-ec", defaultRoute)
			program := m.runFirewalld(backend)
			m.up(newPod("c1", "web-0", hostPort(8080, 80)))
			Expect(m.hawser("doctor").Stdout).To(Equal("nothing is wrong\n"))
			obstacles := "none found"
			if strings.Contains(m.Cmd("nft", "list", "ruleset"), "ip daddr 10.88.0.2 reject") { // since firewalld 2
				obstacles = "may stop it: table inet firewalld, chain filter_FORWARD at forward: rule 6 of its chain " +
					"filter_FORWARD_POLICIES drops packets of this interface or network\n"
			}
			Expect(m.says("explain", "web-0")).To(ContainSubstring("obstacles\n  " + obstacles))
			Expect(m.says("explain", "8080")).To(ContainSubstring("obstacles\n  none found"))
			m.write(listFile, open)
			Expect(m.hawser("doctor").Stdout).To(HavePrefix("warning firewalld: " + listFile))
			if backend == "nftables" {
				Expect(program.Process.Kill()).To(Succeed())
				_ = program.Wait()
			}
			m.Cmd("nft", "flush", "ruleset")
			Expect(m.hawser("doctor").Stdout).NotTo(ContainSubstring("firewalld-flushed"))
		})
	}
})

var _ = Describe("hawser watch beside firewalld", Label("kernel", "tool-watch", "firewalld"), func() {
	DescribeTable("restores forgotten containers within a second, and a connection survives",
		func(backend, forgets string) {
			m := newMachine(ours(), usual)
			outside := nstest.NewOutside(m.Host)
			outside.Serve("tcp4", ":80")
			if backend == "iptables" { // whose changes send no event
				nstest.Need("iptables-legacy")
				m.Cmd("mount", "--bind", "/usr/sbin/xtables-legacy-multi", "/usr/sbin/xtables-nft-multi")
			}
			m.runFirewalld(backend)
			p := m.up(newPod("c1", "web-0", hostPort(8080, 80), hostPort(8081, 81)))
			p.Serve("tcp4", ":80")
			Expect(m.Cmd("firewall-cmd", "--zone=trusted", "--list-sources")).To(Equal("10.88.0.2/32\n"))
			stream := nstest.OpenStream(p.Host, outside, "192.0.2.1:8081", time.Millisecond)
			stream.Flows()
			m.watches()
			Eventually(func() string {
				return m.Cmd("dbus-send", "--system", "--print-reply", "--dest=org.freedesktop.DBus",
					"/org/freedesktop/DBus", "org.freedesktop.DBus.Debug.Stats.GetAllMatchRules")
			}).Should(ContainSubstring("member='Reloaded'"), "it also receives the signals of firewalld")
			attempt := nstest.Patience(200 * time.Millisecond)
			takes := func() time.Duration {
				m.Cmd("sh", "-c", forgets)
				since := time.Now()
				Eventually(func(g Gomega) {
					g.Expect(outside.AskWithin(attempt, "tcp4", "192.0.2.1:8080")).Error().NotTo(HaveOccurred())
					g.Expect(p.AskWithin(attempt, "tcp4", "192.0.2.2:80")).Error().NotTo(HaveOccurred())
				}).WithPolling(5 * time.Millisecond).Should(Succeed())
				took := time.Since(since)
				AddReportEntry("both answer after", took.String())
				return took
			}
			Eventually(takes).Should(BeNumerically("<", time.Second)) // the machine may be busy during one attempt
			Expect(m.Cmd("firewall-cmd", "--zone=trusted", "--list-sources")).To(Equal("10.88.0.2/32\n"))
			stream.Flows()
		},
		Entry("in a reload", "nftables", "firewall-cmd --reload"),
		Entry("in a complete reload", Label("slow"), "nftables", "firewall-cmd --complete-reload"),
		Entry("in a reload with iptables", Label("slow"), "iptables", "firewall-cmd --reload"),
	)
})
