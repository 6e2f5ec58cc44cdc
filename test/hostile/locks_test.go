package hostile_test

import (
	"fmt"
	"strings"
	"sync/atomic"
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

// churn makes and deletes links, addresses, routes and namespaces of others, with
// eight programs, until the spec ends.
func churn(n *World) {
	GinkgoHelper()
	for i := range 8 {
		lines := []string{fmt.Sprintf("link add churn%d type veth peer name other%d", i, i),
			fmt.Sprintf("addr add 198.18.%d.1/24 dev churn%d", i, i),
			fmt.Sprintf("link set churn%d up", i), fmt.Sprintf("route add 203.0.113.%d dev churn%d", i,
				i), fmt.Sprintf("link del churn%d", i)}
		if i%4 == 3 {
			lines = []string{fmt.Sprintf("netns add churn%d", i),
				fmt.Sprintf("link add churn%d type veth peer name other netns churn%d", i,
					i), fmt.Sprintf("netns del churn%d", i)}
		}
		// What one cannot do because of another, it says for each line.
		n.Start(nstest.Program{Path: "sh", Args: []string{"-c", "exec ip -force -batch - 2>/dev/null"},
			Stdin: strings.Repeat(strings.Join(lines, "\n")+"\n", 20000)})
	}
}

// links is how many links the host has had.
func links(n *World, probe string) int {
	GinkgoHelper()
	n.Cmd("ip", "link", "add", probe, "type", "bridge")
	defer n.Cmd("ip", "link", "del", probe)
	return Show(n.Host, probe).Index
}

var _ = Describe("links and namespaces that come and go all the time", Label("kernel", "churn"), func() {
	It("make none of 500 ADDs and DELs fail, and none of them slow", func() {
		const workers, pods = 4, 250
		list := Usual("").Only("bridge")
		n := NewNode()
		n.Must("DEL", n.Up(NewPod("first"), list), list)
		churn(n)
		Eventually(func() string { return n.Cmd("ip", "-o", "link") }).Should(ContainSubstring("churn"))
		before := links(n, "before")
		var calls, made atomic.Int64
		// Until others have made as many links as the 500 calls, or the spec shows nothing.
		enough := func(probe string) bool { return links(n, probe)-before-2*int(made.Load()) >= 2*pods }
		nstest.AtOnce(workers, func(worker int) {
			call := func(command string, p *Pod) {
				began := time.Now()
				n.Must(command, p, list)
				Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang), command)
				calls.Add(1)
			}
			probe := fmt.Sprintf("probe%d", worker)
			for i := worker; i < pods || i < 8*pods && !enough(probe); i += workers {
				p := NewPod(fmt.Sprintf("c%d", i))
				made.Add(1) // two links
				call("ADD", p)
				if i%10 == 0 {
					call("CHECK", p)
				}
				call("DEL", p)
			}
		})
		AddReportEntry("churn", fmt.Sprintf("%d calls, %d links", calls.Load(), links(n, "last")-before))
		Expect(enough("last")).To(BeTrue(), "%d links, and %d containers", links(n, "last")-before, made.Load())
	})
})
