package tool_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("hawser metrics", Label("tool-metrics"), func() {
	It("counts addresses, attachments, host ports and failures", func() {
		m := newMachine(ours(), strings.ReplaceAll(usual, "10.88.0.0/24", "10.88.0.0/29"))
		m.up(newPod("c1", "web-0", hostPort(8080, 80), hostPort(8081, 81)))
		bad := newPod("c2", "web-1", hostPort(8080, 80))
		Expect(m.add(bad)).NotTo(Succeed())
		Expect(m.del(bad)).To(Succeed())
		ports := len(asks[[]attachment](m, "ls", "pods")[0].held("host port"))
		text := m.says("metrics")
		for _, line := range []string{
			`hawser_addresses_used{network="pods",set="0"} 1`,
			`hawser_addresses_free{network="pods",set="0"} 4`,
			`hawser_leases_without_container 0`, `hawser_attachments{network="pods"} 1`,
			`hawser_failures_total{plugin="portmap",command="ADD",code="104"} 1`,
		} {
			Expect(text).To(ContainSubstring(line + "\n"))
		}
		Expect(ports).To(BeNumerically(">=", 2))
		Expect(text).To(MatchRegexp(`hawser_failure_last_timestamp_seconds\{.*"104"\} 1\.\d+e\+09`))
		Expect(text).NotTo(ContainSubstring("drift"))
	})

	It("counts leases of containers that no longer exist, also of the reference", func() {
		m := newMachine(nstest.Newest().Dir(), usual)
		m.up(newPod("c1", "web-0")).Unpin()
		Eventually(func() string { return m.says("metrics") }).Should(
			ContainSubstring("hawser_leases_without_container 1\n"))
	})

	It("counts range sets of both families, and leaves out what host-local excludes, as check does", func() {
		sets := `[[{"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.10", "rangeEnd": "10.88.0.19"},
			{"subnet": "10.89.0.0/24", "gateway": "10.89.0.77"}], [{"subnet": "fd00::/64"}]],
			"exclude": ["10.88.0.16/30", "10.89.0.0/29"]`
		m := newMachine(ours(), strings.ReplaceAll(usual, `[[{"subnet": "10.88.0.0/24"}]]`, sets))
		text := m.says("metrics")
		Expect(text).To(ContainSubstring(`hawser_addresses_free{network="pods",set="0"} 252` + "\n")) // 10 + 253 - 11
		Expect(text).To(MatchRegexp(`hawser_addresses_free\{network="pods",set="1"\} 1\.8446744073709552e\+19\n`))
		m.write("/etc/cni/net.d/20-other.conflist", strings.NewReplacer(`[[{"subnet": "10.88.0.0/24"}]]`,
			`[[{"subnet": "10.89.0.0/29"}]]`, `"pods"`, `"other"`, "cni0", "cni1").Replace(usual))
		Expect(m.says("check")).NotTo(ContainSubstring("overlaps"))
	})

	It("treats nothing as free or orphaned if it cannot read the records", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		m.Cmd("sh", "-ec", "rm -r /var/lib/cni/results /run/hawser/firewall; echo x >/var/lib/cni/results\n"+
			"nft flush ruleset; touch -d '2 minutes ago' /var/lib/cni/networks/pods/10.*")
		Expect(m.hawser("ls", "--orphans").Stdout).NotTo(ContainSubstring("10.88.0.2"))
		out := m.hawser("metrics")
		Expect([]any{out.Exit, out.Stderr}).To(ConsistOf(1, ContainSubstring("/var/lib/cni/results")))
		Expect(out.Stdout).NotTo(ContainSubstring("hawser_addresses_free{"))
	})

	It("ignores a line of the log that is longer than that of any call, and reads the others", func() {
		m := newMachine(ours(), usual)
		m.Cmd("sh", "-c", `line='{"plugin":"bridge","verb":"ADD","ms":1}'
			(echo "$line"; head -c 3000000 /dev/zero | tr '\0' x; echo; echo "$line") >/etc/cni/net.d/log`)
		Expect(m.says("metrics", "--log", "/etc/cni/net.d/log")).To(ContainSubstring(
			`hawser_call_duration_seconds_count{plugin="bridge",verb="ADD"} 2` + "\n"))
	})

	It("writes a file with a histogram of the log", func() {
		m := newMachine(ours(), usual)
		m.write("/etc/cni/net.d/log", `{"time":"x","plugin":"bridge","verb":"ADD","ms":7.5}
{"time":"x","plugin":"bridge","verb":"ADD","ms":1200,"error":{"code":11}}
nonsense
{"time":"x","plugin":"a\"b\n","verb":"DEL","ms":1}
`)
		file := filepath.Join("/etc/cni/net.d", "hawser.prom")
		Expect(m.says("metrics", "--file", file, "--log", "/etc/cni/net.d/log")).To(BeEmpty())
		text := m.Cmd("cat", file)
		for _, line := range []string{
			`hawser_call_duration_seconds_bucket{plugin="bridge",verb="ADD",le="0.005"} 0`,
			`hawser_call_duration_seconds_bucket{plugin="bridge",verb="ADD",le="0.01"} 1`,
			`hawser_call_duration_seconds_bucket{plugin="bridge",verb="ADD",le="2.5"} 2`,
			`hawser_call_duration_seconds_bucket{plugin="bridge",verb="ADD",le="+Inf"} 2`,
			`hawser_call_duration_seconds_sum{plugin="bridge",verb="ADD"} 1.2075`,
			`hawser_call_duration_seconds_count{plugin="bridge",verb="ADD"} 2`,
			`hawser_call_duration_seconds_count{plugin="a\"b\n",verb="DEL"} 1`,
		} {
			Expect(text).To(ContainSubstring(line + "\n"))
		}
		Expect(strings.Fields(m.Cmd("ls", "/etc/cni/net.d"))).To(ConsistOf("10-pods.conflist", "log", "hawser.prom"))
		for _, bad := range []string{"hawser.prom", "/etc/cni/net.d/hawser.txt", "/nowhere/hawser.prom"} {
			Expect(m.hawser("metrics", "--file", bad).Exit).To(Equal(1))
		}
	})

	It("writes what promtool accepts", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		promtool(strings.NewReader(m.says("metrics")), "check", "metrics")
	})

	It("has alert rules that fire in a fault, and only then", func() {
		dir := GinkgoT().TempDir()
		for from, name := range map[string]string{"../../docs/alerts.yaml": "alerts.yaml",
			"testdata/alerts_test.yaml": "alerts_test.yaml"} {
			Expect(os.WriteFile(filepath.Join(dir, name), nstest.Must(os.ReadFile(from)), 0o644)).To(Succeed())
		}
		promtool(nil, "check", "rules", filepath.Join(dir, "alerts.yaml"))
		promtool(nil, "test", "rules", filepath.Join(dir, "alerts_test.yaml"))
	})
})

// promtool runs promtool, which scripts/deps.sh extracts from Debian's package prometheus.
func promtool(stdin *strings.Reader, args ...string) {
	GinkgoHelper()
	program := filepath.Join(nstest.Must(os.UserCacheDir()), "hawser", "promtool")
	if _, err := os.Stat(program); err != nil {
		program = "promtool"
		nstest.NeedProgram(program)
	}
	cmd := exec.Command(program, args...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}
