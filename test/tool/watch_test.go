package tool_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// watches starts watch with hourly passes, and waits until it listens. said returns what it has printed so far.
func (m *machine) watches(options ...string) (said func() string) {
	GinkgoHelper()
	_, said = m.starts(append([]string{"watch", "--every", "1h"}, options...)...)
	m.listens()
	return said
}

// listens waits until watch receives the events of nftables.
func (m *machine) listens() {
	GinkgoHelper()
	Eventually(func() string { return m.Cmd("cat", "/proc/net/netlink") }).Should(
		MatchRegexp(`(?m)^\S+ +12 +\d+ +0*40 `))
}

// rules returns the sorted rules of the node, without the tool's own table.
func (m *machine) rules() []string {
	GinkgoHelper()
	own := regexp.MustCompile(`(?ms)^table inet hawser_watch .*?^\}\n+`)
	return slices.Sorted(strings.Lines(own.ReplaceAllString(m.Snapshot("nftables"), "")))
}

var _ = Describe("hawser watch", Label("tool-watch"), func() {
	It("restores flushed rules, removes orphans, writes metrics, and ends on SIGTERM", func() {
		// gc also recognizes containers by addresses, so no other spec uses these.
		m := newMachine(ours(), strings.ReplaceAll(usual, "10.88.0", "10.77.4"))
		outside := nstest.NewOutside(m.Host)
		m.up(newPod("c1", "web-0", hostPort(8080, 80))).Serve("tcp4", ":80")
		answers := func() error {
			_, err := outside.AskWithin(nstest.Patience(300e6), "tcp4", "192.0.2.1:8080")
			return err
		}
		Eventually(answers).Should(Succeed())
		gone := m.up(newPod("c2", "web-1"))
		gone.Unpin()
		watching := m.Start(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"watch", "--every", "1s",
			"--yes", "--older", "0s", "--file", "/etc/cni/net.d/hawser.prom"}})
		Eventually(func() []attachment { return asks[[]attachment](m, "ls") }).Should(HaveLen(1))
		metrics := func() string { return m.Cmd("sh", "-c", "cat /etc/cni/net.d/hawser.prom || true") }
		Eventually(metrics).Should(ContainSubstring(`hawser_attachments{network="pods"} 1`))
		for _, flush := range []string{"nft flush ruleset", "nft delete table inet hawser",
			"nft flush table inet hawser", "iptables -F"} {
			m.Cmd("sh", "-c", flush)
			Eventually(answers).Should(Succeed(), flush)
		}
		Expect(watching.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Expect(watching.Wait()).To(Succeed())
	})

	It("keeps the metrics of the last pass if a signal ends it during the next one", func() {
		g := newGCNode(ours(), "10.77.3")
		asked, slow := g.bin+"/asked", g.bin+"/slow"
		g.Cmd("mkdir", "/var/lib/cni/cluster-local") // so that each pass runs this plugin
		Expect(os.WriteFile(filepath.Join(g.plugins, "cluster-local"), []byte("#!/bin/sh\n[ ! -e "+slow+
			" ] || { echo >>"+asked+"; exec sleep 60; }\necho '[]'\n"), 0o755)).To(Succeed())
		g.up(newPod("c1", "web-0"))
		watching := g.Start(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"watch", "--every", "1s",
			"--file", "/run/x.prom"}})
		metrics := func() string { return g.Cmd("sh", "-c", "cat /run/x.prom || true") }
		Eventually(metrics).Should(ContainSubstring(`hawser_check_drift{network="pods"} 0`))
		whole := metrics()
		Expect(os.WriteFile(slow, nil, 0o644)).To(Succeed())
		Eventually(func() int { return strings.Count(g.Cmd("sh", "-c", "cat "+asked+" || true"), "\n") }).Should(
			Equal(2), "one pass repairs, and the other one measures")
		Expect(watching.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Expect(watching.Wait()).To(Succeed())
		Expect(metrics()).To(Equal(whole))
	})

	It("restores rules immediately, not only in the next pass", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		whole := m.rules()
		said := m.watches("--json")
		m.Cmd("nft", "flush", "ruleset")
		Eventually(m.rules).Should(Equal(whole))
		Eventually(said).Should(And(
			HavePrefix(`{"restored":{"network":"pods","containerID":"c1","ifname":"eth0","pod":"shop/web-0",`),
			HaveSuffix("\"}}\n")))
	})

	It("reads nothing before the kernel reports deletions, so that it misses none in between", func() {
		m := newMachine(ours(), usual)
		m.write("/etc/cni/net.d/99-bad.conflist", "{")
		// Without the capability, the kernel refuses to report deletions.
		said := m.Run(nstest.Program{Path: "setpriv", Args: []string{"--bounding-set", "-net_admin",
			nstest.Build("hawser"), "watch", "--every", "1h"}})
		Expect(said.Exit).To(Equal(1))
		Expect(said.Stderr).To(ContainSubstring("netfilter socket: operation not permitted"))
		Expect(said.Stdout).NotTo(ContainSubstring("99-bad"), "the output of a pass")
	})

	It("keeps a connection that sends data while all rules are missing", func() {
		nstest.Need("nft-owner")
		m := newMachine(ours(), usual)
		conn := m.download(m.up(newPod("c1", "web-0", hostPort(8080, 80))), "8080")
		m.watches()
		for range 3 {
			m.Cmd("nft", "flush", "ruleset")
			echoes(conn)
			Eventually(func() string { return m.Cmd("nft", "list", "ruleset") }).Should(ContainSubstring("8080"))
			echoes(conn)
		}
	})

	It("reports that another watch already keeps connections", func() {
		nstest.Need("nft-owner")
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		m.watches()
		Eventually(func() string { return m.Cmd("nft", "list", "tables") }).Should(ContainSubstring("hawser_watch"))
		_, said := m.starts("watch", "--every", "1s", "--json")
		Eventually(said).Should(HavePrefix(`{"watch":{"error":"connections do not survive a flush`))
		m.Cmd("nft", "delete", "table", "inet", "hawser")
		Eventually(func() string { return m.Cmd("nft", "list", "tables") }).Should(ContainSubstring("inet hawser\n"))
		Expect(strings.Count(said(), "do not survive")).To(Equal(1))
	})

	It("waits for no runtime's answer, neither to restore rules nor to end", func() {
		g := newGCNode(ours(), "10.77.1")
		g.runtime()
		g.program("crictl", "echo asked >"+g.bin+"/asked; exec sleep 60")
		g.up(newPod("c1", "web-0", hostPort(8080, 80)))
		whole := g.rules()
		takes := func() time.Duration {
			watching := g.Start(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"watch", "--every", "1h",
				"--yes"}, Env: []string{"PATH=" + g.bin + ":" + os.Getenv("PATH")}})
			g.listens()
			Eventually(g.bin + "/asked").Should(BeAnExistingFile())
			since := time.Now()
			g.Cmd("nft", "flush", "ruleset")
			Eventually(g.rules).Should(Equal(whole))
			Expect(watching.Process.Signal(syscall.SIGTERM)).To(Succeed())
			Expect(watching.Wait()).To(Succeed())
			Expect(os.Remove(g.bin + "/asked")).To(Succeed())
			return time.Since(since)
		}
		// A runtime has ten seconds to answer. The machine may be busy during one attempt.
		Eventually(takes).Should(BeNumerically("<", 9*time.Second))
	})

	It("repairs less and less often what is deleted each time, but the loss of a whole table immediately", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		said := m.watches()
		repairs := func() int { return strings.Count(said(), ": bridge: ") }
		takes := func(change string) time.Duration {
			since, had := time.Now(), repairs()
			m.Cmd("nft", change)
			Eventually(repairs).Should(BeNumerically(">", had))
			return time.Since(since)
		}
		slow := nstest.Patience(1500 * time.Millisecond)
		Eventually(func() time.Duration { // the machine may be busy during one attempt
			Eventually(func() time.Duration {
				return takes("flush chain inet hawser masq_v2")
			}).Should(BeNumerically(">", slow))
			return takes("delete table inet hawser")
		}).Should(BeNumerically("<", slow))
	})

	It("retries a failed repair, although nothing more is deleted", func() {
		m := newMachine(ours(), usual)
		p := m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		whole := m.rules()
		// With another address, because rules of a container without addresses are restored, as gVisor needs it.
		p.IP("addr add 198.51.100.1/24 dev eth0", "addr del 10.88.0.2/24 dev eth0")
		said := m.watches()
		Eventually(said).Should(ContainSubstring("reapply: "), "the first pass is over")
		m.Cmd("nft", "flush", "ruleset")
		Eventually(said).Should(ContainSubstring("host ports: not restored: "))
		p.IP("addr add 10.88.0.2/24 dev eth0")
		Eventually(m.rules).Should(Equal(whole))
	})

	It("has a unit that systemd accepts, with sufficient capabilities", func() {
		const file = "../../scripts/release/hawser-watch.service"
		// gc also recognizes containers by addresses, so no other spec uses these.
		m := newMachine(ours(), strings.ReplaceAll(usual, "10.88.0", "10.77.2"))
		unit := string(nstest.Must(os.ReadFile(file)))
		key := func(name string) string {
			_, value, _ := strings.Cut(unit, "\n"+name+"=")
			value, _, _ = strings.Cut(value, "\n")
			return value
		}
		nstest.Build("hawser")
		if _, err := exec.LookPath("systemd-analyze"); err == nil {
			out := m.Run(nstest.Program{Path: "systemd-analyze", Args: []string{"verify", "--man=no", file}})
			Expect(out.Stdout + out.Stderr).To(BeEmpty())
			Expect(out.Exit).To(BeZero())
		}
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		whole := m.rules()
		gone := m.up(newPod("c2", "web-1"))
		gone.Unpin()
		links := func() string { return m.Cmd("ip", "-br", "link", "show", "type", "veth") }
		Eventually(links).Should(MatchRegexp(`\A.+\n\z`), "only one link is left, so one gc suffices")
		set := strings.NewReplacer("CAP_", "+", " ", ",").Replace(key("CapabilityBoundingSet"))
		args := []string{"--no-new-privs", "--bounding-set", "-all," + strings.ToLower(set)}
		args = append(append(args, strings.Fields(key("ExecStart"))...), "--older", "0s")
		m.Start(nstest.Program{Path: "setpriv", Args: args})
		m.listens()
		Eventually(m.rules).Should(Equal(whole))
		m.SetSysctl("net/ipv4/ip_forward", "0")
		m.Cmd("nft", "flush", "ruleset")
		Eventually(m.rules).Should(Equal(whole))
		Eventually(func() string { return m.Sysctl("net/ipv4/ip_forward") }).Should(Equal("1"))
	})

	It("works from a container that has the node's root mounted, with the capabilities of the manifest", func() {
		manifest := string(nstest.Must(os.ReadFile("../../deploy/watch.yaml")))
		set := regexp.MustCompile(`add: \[(.*)\]`).FindStringSubmatch(manifest)[1]
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		whole := m.rules()
		inside := `mkdir -p "$1"; mount --rbind / "$1"; mount --make-rslave "$1"; shift
			for dir in /etc/cni/net.d /opt/cni/bin /run /var/lib/cni; do mount -t tmpfs none $dir; done
			exec "$@"`
		root := GinkgoT().TempDir() + "/host"
		program := filepath.Join(GinkgoT().TempDir(), "hawser")
		Expect(os.WriteFile(program, nstest.Must(os.ReadFile(nstest.Build("hawser"))), 0o755)).To(Succeed())
		m.Start(nstest.Program{Path: "unshare", Args: []string{"-m", "--propagation", "private", "sh", "-ec", inside,
			"sh", root, "setpriv", "--no-new-privs", "--bounding-set",
			"-all,+" + strings.ToLower(strings.ReplaceAll(set, ", ", ",+")), program, "watch", "--yes"},
			Env: []string{"HAWSER_ROOT=" + root}})
		m.listens()
		m.SetSysctl("net/ipv4/ip_forward", "0")
		m.Cmd("nft", "flush", "ruleset")
		Eventually(m.rules).Should(Equal(whole))
		Eventually(func() string { return m.Sysctl("net/ipv4/ip_forward") }).Should(Equal("1"))
	})

	It("refuses what it cannot do", func() {
		m := newMachine(ours(), usual)
		Expect(m.hawser("watch", "--every", "1ms").Stderr).To(ContainSubstring("--every must be a second or more"))
		Expect(m.hawser("watch", "--file", "x").Stderr).To(ContainSubstring("ends in .prom"))
	})
})
