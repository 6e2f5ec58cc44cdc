package tool_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

type traced struct {
	Packet                            int
	Source, Destination, Table, Chain string
	Rule                              uint64
	Verdict, In, Out                  string
}

// trace runs the tool, and repeats the traffic until the tool has ended.
func (m *machine) trace(traffic func(), args ...string) (out nstest.Output) {
	GinkgoHelper()
	done := make(chan nstest.Output, 1)
	go func() {
		defer GinkgoRecover()
		done <- m.hawser(append([]string{"trace"}, args...)...)
	}()
	Eventually(func() <-chan nstest.Output { traffic(); return done }).Should(Receive(&out))
	Expect(m.Cmd("nft", "list", "tables")).NotTo(ContainSubstring("hawser_trace"))
	return out
}

var _ = Describe("hawser trace", Label("tool-trace"), func() {
	var (
		m       *machine
		outside *nstest.Host
	)
	BeforeEach(func() {
		m = newMachine(ours(), usual)
		outside = nstest.NewOutside(m.Host)
		m.up(newPod("c1", "web-0", hostPort(8080, 80))).Serve("tcp4", ":80")
	})
	// traces starts a trace of the host port, and returns when it receives events.
	traces := func(options ...string) (tracing *exec.Cmd, said func() string) {
		GinkgoHelper()
		tracing, said = m.starts(append([]string{"trace", "8080", "--for", "1m"}, options...)...)
		Eventually(m.Cmd).WithArguments("nft", "list", "tables").Should(ContainSubstring("inet hawser_trace"))
		return tracing, said
	}
	const drops = "add table inet admin; add chain inet admin no { type filter hook forward priority 5; policy drop; }"
	knock := func() { _, _ = outside.AskWithin(nstest.Patience(200e6), "tcp4", "192.0.2.1:8080") }

	It("shows each rule, of any program, that a packet meets, and the rule's verdict", func() {
		m.Cmd("nft", drops)
		var steps []traced
		out := m.trace(knock, "8080", "--for", "1m", "--packets", "1", "--json")
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(json.Unmarshal([]byte(out.Stdout), &steps)).To(Succeed())
		Expect(steps).To(ContainElements(
			And(HaveField("Table", "inet hawser"), HaveField("Destination", "192.0.2.1:8080")),
			And(HaveField("Destination", "10.88.0.2:80"), HaveField("Out", "cni0")),
			And(HaveField("Table", "inet admin"), HaveField("Chain", "no"), HaveField("Verdict", "drop"))))
	})

	It("names the rule that dropped a packet, or says that none did", func() {
		says := func(of string) string { return m.trace(knock, of, "--for", "2s").Stdout }
		// On a busy machine the packet may arrive after the trace.
		Eventually(says).WithArguments("192.0.2.1:8080").Should(HaveSuffix("no rule dropped a packet\n"))
		m.Cmd("nft", drops)
		Eventually(says).WithArguments("8080").Should(ContainSubstring(
			"was dropped by inet admin, chain no (nft -a list chain inet admin no)"))
	})

	It("quotes the names of interfaces", Label("tool-quote"), func() {
		m.Cmd("ip", "link", "set", "cni0", "name", "c\x1b[31mX")
		out := m.trace(knock, "8080", "--for", "1m", "--packets", "1")
		Expect(out.Stdout).To(And(ContainSubstring(`to c\u001b[31mX`), Not(ContainSubstring("\x1b"))), out.Stderr)
	})

	It("ends after --packets packets, and fails if there are none", func() {
		out := m.trace(knock, "8080", "--for", "1m", "--packets", "1")
		Expect(out.Exit).To(BeZero())
		out = m.trace(func() {}, "8081", "--for", "300ms")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stderr).To(ContainSubstring("no packet to 8081 reached a rule within 300ms"))
		out = m.trace(func() {}, "8081", "--for", "300ms", "--json")
		Expect([]any{out.Exit, out.Stdout}).To(Equal([]any{1, "[]\n"}))
	})

	It("follows only the given flow", func() {
		flow := func(args ...string) int {
			GinkgoHelper()
			return m.trace(knock, append([]string{"192.0.2.1:8080"}, args...)...).Exit
		}
		source := strings.Fields(outside.Cmd("ip", "route", "get", "192.0.2.1"))
		addr := source[slices.Index(source, "src")+1]
		Expect(flow("--from", addr, "--protocol", "tcp", "--for", "1m", "--packets", "1")).To(BeZero())
		Expect(flow("--from", addr, "--protocol", "udp", "--for", "1s")).To(Equal(1))
		Expect(flow("--from", "198.51.100.7", "--for", "1s")).To(Equal(1))
		Expect(flow("--from", addr+":1", "--for", "1s")).To(Equal(1))
	})

	It("prints what it has when a signal ends it, and refuses to run twice", func() {
		tracing, said := traces()
		Expect(m.hawser("trace", "8080").Stderr).To(HavePrefix("hawser: another hawser trace is running on this node"))
		Eventually(func() string { knock(); return said() }).Should(ContainSubstring("packet 1:"))
		Expect(tracing.Process.Signal(syscall.SIGINT)).To(Succeed())
		Expect(tracing.Wait()).To(Succeed())
		Expect(said()).To(HaveSuffix("no rule dropped a packet\n"))
	})

	It("writes what it has as JSON when a signal ends it", func() {
		tracing, said := traces("--json")
		knock()
		// The kernel reports a packet before the answer is sent.
		Expect(tracing.Process.Signal(syscall.SIGINT)).To(Succeed())
		ended := tracing.Wait()
		var steps []traced
		Expect(json.Unmarshal([]byte(said()), &steps)).To(Succeed())
		Expect(ended == nil).To(Equal(len(steps) > 0), "it fails only without a packet")
	})

	It("leaves nothing when it is killed", func() {
		tracing, _ := traces()
		Expect(tracing.Process.Kill()).To(Succeed())
		_ = tracing.Wait()
		Eventually(m.Cmd).WithArguments("nft", "list", "tables").ShouldNot(ContainSubstring("hawser_trace"))
	})

	DescribeTable("refuses", func(of, says string, more ...string) {
		out := m.hawser(append([]string{"trace", of}, more...)...)
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stderr).To(ContainSubstring(says))
	},
		Entry("a word", "http", `"http" is not an address, a port between 1 and 65535, or ADDRESS:PORT`),
		Entry("port 0", "0", "is not an address, a port"), Entry("a host name", "host:80", `"host" is not an address`),
		Entry("addresses of two families", "10.1.0.1", "fd00::1 and 10.1.0.1 are of different address families",
			"--from", "fd00::1"),
		Entry("a port of icmp", "80", "icmp has no ports", "--protocol", "icmp"),
		Entry("an unknown protocol", "80", `"gre" is not one of tcp, udp`, "--protocol", "gre"))
})
