package tool_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

// These specs count requests, which must not grow with other containers; test/load measures the time on a full node.
var _ = Describe("the number of requests to the kernel", Label("tool-cost"), func() {
	It("of ls, explain and metrics is equal for many attachments and for one", func() {
		m := newMachine(ours(), usual)
		calls := [][]string{{"ls"}, {"explain"}, {"explain", "8080"}, {"explain", "cni0"}, {"metrics"}}
		m.up(newPod("c000", "web-0", hostPort(8080, 80)))
		var few []int
		for _, args := range calls {
			few = append(few, m.least(args...))
		}
		for i := range 8 {
			m.up(newPod(fmt.Sprintf("d%03d", i), fmt.Sprintf("web-%d", i+1), hostPort(8100+i, 80)))
		}
		for i, args := range calls {
			Eventually(func() int { return m.messages(args...) }).Should(Equal(few[i]), fmt.Sprint(args))
			Expect(few[i]).To(BeNumerically(">", 0))
		}
	})

	It("of gc does not grow with what users and containers create in their own namespaces", Label("gc-cost"), func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0")).hold()
		lost := m.up(newPod("c2", "web-1"))
		lost.Unpin() // gc searches for its address
		Eventually(func() int { return strings.Count(m.Cmd("ip", "-br", "link"), "veth") }).Should(Equal(1))
		gc := func() *trace.Program { return m.traced("gc", "--older", "0s").Programs[0] }
		few := slices.MinFunc([]*trace.Program{gc(), gc(), gc()}, func(a, b *trace.Program) int {
			return len(a.Messages) - len(b.Messages)
		})
		for range 8 {
			c := exec.Command("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "unshare", "-Urn", "sh",
				"-c", "echo; exec sleep 600")
			out := nstest.Must(c.StdoutPipe())
			Expect(c.Start()).To(Succeed())
			_, err := out.Read(make([]byte, 1))
			nstest.NeedOK("user namespaces of unprivileged users", err)
			held := nstest.Must(os.Open(fmt.Sprintf("/proc/%d/ns/net", c.Process.Pid)))
			DeferCleanup(held.Close)
			Expect(c.Process.Kill()).To(Succeed()) // the tracer waits for all children
			_ = c.Wait()
		}
		Eventually(func() int { return len(gc().Messages) }).Should(BeNumerically("<=", len(few.Messages)))
		other := nstest.NewNetns()
		other.Cmd("sh", "-ec", "for i in $(seq 5000); do echo addr add fd00::$i dev lo nodad; done | ip -batch -")
		Eventually(func() int64 { return gc().Peak - few.Peak }).Should(BeNumerically("<", 3<<20),
			"a stored list would take 5 MB more")
	})

	It("of reapply after a flush exceeds that of a reading only by some for each container", func() {
		m := newMachine(ours(), usual)
		for i := range 9 {
			m.up(newPod(fmt.Sprintf("c%03d", i), fmt.Sprintf("web-%d", i), hostPort(8100+i, 80)))
		}
		look := m.least("reapply")
		m.Cmd("nft", "flush", "ruleset")
		again := m.traced("reapply")
		// Rules come back in one transaction for each plugin. Each container's interface and addresses are read.
		Expect(len(again.Programs[0].Messages)).To(BeNumerically("<=", look+140+9*12))
		Expect(again.Names()).To(Equal([]string{"hawser"}))
		Eventually(func() int { return m.messages("reapply") }).Should(Equal(look))
		Expect(m.Cmd("nft", "list", "ruleset")).To(And(ContainSubstring("8108"), ContainSubstring("10.88.0.10")))
	})
})

var _ = Describe("a trace", Label("tool-cost"), func() {
	It("sends no requests while no packet arrives", func() {
		nstest.Need("nft-owner")
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		asks := func(time string) (n int) {
			m.Do(func() {
				nstest.Must(trace.Run(trace.Command{Path: nstest.Build("hawser"), Env: os.Environ(),
					Args: []string{"trace", "8080", "--for", time}, Kill: func(number int) bool {
						if number == unix.SYS_RECVFROM {
							n++
						}
						return false
					}}))
			})
			return n
		}
		Expect(asks("3s")).To(BeNumerically("<", asks("1s")+8))
	})
})

// messages returns how many requests the tool sends to the kernel; it must run no other program.
func (m *machine) messages(args ...string) int {
	GinkgoHelper()
	r := m.traced(args...)
	Expect(r.Names()).To(Equal([]string{"hawser"}))
	return len(r.Programs[0].Messages)
}

// least returns the smallest of three counts. The kernel still changes addresses and sets after an ADD, and the tool
// reads a list again if it changed during the first reading.
func (m *machine) least(args ...string) int {
	GinkgoHelper()
	return min(m.messages(args...), m.messages(args...), m.messages(args...))
}

func (m *machine) traced(args ...string) (r *trace.Record) {
	GinkgoHelper()
	m.Do(func() {
		r = nstest.Must(trace.Run(trace.Command{Path: nstest.Build("hawser"), Args: args, Env: os.Environ()}))
	})
	Expect(r.Exit).To(BeZero(), r.Stderr)
	return r
}
