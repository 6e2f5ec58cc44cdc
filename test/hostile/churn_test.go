package hostile_test

import (
	"fmt"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/test/node"
)

// churn makes and deletes links, addresses, routes and namespaces of others, with
// eight programs, until the spec ends.
func churn(n *node.Node) {
	GinkgoHelper()
	for i := range 8 {
		lines := []string{fmt.Sprintf("link add churn%d type veth peer name other%d", i, i), fmt.Sprintf("addr add 198.18.%d.1/24 dev churn%d", i, i),
			fmt.Sprintf("link set churn%d up", i), fmt.Sprintf("route add 203.0.113.%d dev churn%d", i, i), fmt.Sprintf("link del churn%d", i)}
		if i%4 == 3 {
			lines = []string{fmt.Sprintf("netns add churn%d", i), fmt.Sprintf("link add churn%d type veth peer name other netns churn%d", i, i), fmt.Sprintf("netns del churn%d", i)}
		}
		n.Start(nstest.Program{Path: "ip", Args: []string{"-force", "-batch", "-"}, Stdin: strings.Repeat(strings.Join(lines, "\n")+"\n", 20000)})
	}
}

var _ = Describe("links and namespaces that come and go all the time", Label("kernel"), func() {
	It("make none of 500 ADDs and DELs fail, and none of them slow", func() {
		const workers, pods = 4, 250
		n := node.New()
		n.Succeeds("DEL", n.Add(node.NewPod("first"), node.List("")[:1]), node.List("")[:1])
		churn(n)
		began := time.Now()
		var wait sync.WaitGroup
		for worker := range workers {
			wait.Go(func() {
				defer GinkgoRecover()
				for i := worker; i < pods; i += workers {
					p := n.Add(node.NewPod(fmt.Sprintf("c%d", i)), node.List("")[:1])
					if i%10 == 0 {
						n.Succeeds("CHECK", p, node.List("")[:1])
					}
					n.Succeeds("DEL", p, node.List("")[:1])
				}
			})
		}
		wait.Wait()
		took := time.Since(began)
		AddReportEntry("churn", fmt.Sprintf("500 calls in %s", took.Round(time.Millisecond)))
		n.Cmd("ip", "link", "add", "last", "type", "bridge")
		Expect(Show(n.Host, "last").Index).To(BeNumerically(">", 2*pods+2000), "or the spec shows nothing")
		Expect(n.Cmd("sh", "-c", "ip -o link show master cni0; ls /var/lib/cni/networks/net")).NotTo(MatchRegexp(`veth|10\.88|fd00`))
		Expect(took).To(BeNumerically("<", nstest.Patience(time.Minute)))
	})
})
