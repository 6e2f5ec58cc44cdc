package runtimes_test

import (
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// reference is where Debian has the reference plugins.
const reference = "/usr/lib/cni"

// debian is the network as the reference plugins have it: three addresses, so that
// new pods have to get those of old ones.
var debian = pods.Network{Last: "10.88.0.4"}

var _ = Describe("a node under running pods", func() {
	DescribeTable("goes from the reference plugins to ours and back", func(dir func() string, backend string, back bool) {
		nstest.NeedProgram(reference + "/bridge")
		nstest.Need("iptables")
		c := newContainerd(newMachine(reference), dir(), debian.Conflist())
		old, client := c.kubelet.start("client")
		served, server := c.kubelet.start("server", tcp(8080, 80), udp(8080, 80))
		c.world("8080", "").ExpectTraffic(client, server)

		ours := debian
		ours.Backend = backend
		c.install("")
		c.reconfigure(ours.Conflist())
		c.ready()
		c.world("8080", "").ExpectTraffic(client, server)
		_, err := c.run("greedy", tcp(8080, 80))
		Expect(err).To(MatchError(ContainSubstring("8080")), "the reference's rules hold the port")
		c.end(old, served)
		c.end(c.all()...) // greedy
		pods.ExpectNothingLeft(c.Host)

		next, client := c.kubelet.start("client")
		kept, server := c.kubelet.start("server", tcp(8080, 80), udp(8080, 80))
		c.world("8080", "").ExpectTraffic(client, server)
		if back {
			c.install(reference)
			c.reconfigure(debian.Conflist())
			c.ready()
			c.world("8080", "").ExpectTraffic(client, server)
		}
		c.end(next, kept)
		pods.ExpectNothingLeft(c.Host)
		if back {
			last, client := c.kubelet.start("client")
			served, server := c.kubelet.start("server", tcp(8080, 80), udp(8080, 80))
			c.world("8080", "").ExpectTraffic(client, server)
			c.end(last, served)
			pods.ExpectNothingLeft(c.Host)
		}
	},
		Entry("containerd 1.6, our backend nftables, to ours only", func() string { return "" }, "", false),
		Entry("containerd 1.6, our backend iptables, and back", func() string { return "" }, "iptables", true),
		Entry("containerd 2, our backend nftables, to ours only", built, "", false),
	)

	It("that goes back with pods of the nftables backend stops them at the second try, and leaves elements", func() {
		nstest.NeedProgram(reference + "/bridge")
		nstest.Need("iptables")
		c := newContainerd(newMachine(""), "", debian.Conflist())
		id, pod := c.kubelet.start("pod", tcp(8080, 80))
		c.install(reference)
		Expect(c.stop(id)).To(MatchError(ContainSubstring("does not exist")))
		c.end(id)
		Expect(c.Cmd("nft", "list", "table", "inet", "hawser")).To(ContainSubstring(pod.Addr))
		c.install("")
		c.collect(filepath.Join(c.netconf, "10-pods.conflist"))
		pods.ExpectNothingLeft(c.Host)
	})
})
