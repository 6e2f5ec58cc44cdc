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
