package runtimes_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/test/pods"
)

var _ = Describe("the node of containerd 2", func() {
	It("is not ready while a range is full or a bridge's name taken, and says why", func() {
		n := network
		n.Last = "10.88.0.2"
		c := newContainerd(newMachine(""), built(), n.Conflist())
		eventually := func() AsyncAssertion {
			return Eventually(c.network)
		}
		c.kubelet.start("only")
		eventually().Should(And(HavePrefix("not ready: "), ContainSubstring("10.88.0.2")))
		_, err := c.run("second")
		Expect(err).To(MatchError(ContainSubstring("10.88.0.2")))
		c.end(c.all()...)
		eventually().Should(Equal("ready"))

		c.Cmd("ip", "link", "del", "cni0")
		c.Cmd("ip", "link", "add", "cni0", "type", "veth", "peer", "name", "other")
		eventually().Should(And(HavePrefix("not ready: "), ContainSubstring(`bridge "cni0"`)))
		c.Cmd("ip", "link", "del", "cni0")
		eventually().Should(Equal("ready"))
		pods.ExpectNothingLeft(c.Host)
	})
})
