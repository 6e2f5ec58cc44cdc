package runtimes_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// second is a network that multus attaches as net1.
const second = `{"cniVersion": "1.0.0", "name": "second", "plugins": [
  {"type": "bridge", "bridge": "cni1", "isGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "sbr"}]}`

// newMultus returns cnitool with a network whose only plugin is multus, which delegates to both networks.
func newMultus(plugins string) *cnitool {
	GinkgoHelper()
	nstest.NeedProgram("multus")
	n := network
	n.IPv6, n.Versions = true, ""
	c := newCnitool(plugins, "{}")
	Expect(os.Symlink(nstest.Must(exec.LookPath("multus")), filepath.Join(c.plugins, "multus"))).To(Succeed())
	c.configure(string(encode(object{"cniVersion": "1.0.0", "name": "pods", "plugins": []object{{
		"type": "multus", "binDir": c.plugins, "cniDir": filepath.Join(c.dir, "multus"), "logToStderr": true,
		"capabilities": object{"portMappings": true},
		"delegates":    []json.RawMessage{json.RawMessage(n.Conflist()), json.RawMessage(second)}}}})))
	return c
}

var _ = Describe("multus", Label("more-runtimes"), func() {
	told("multus 4.2.4", func(s story, plugins string) {
		c := newMultus(plugins)
		var client, server pods.Pod
		s.step("ADD: two networks, traffic on both, host ports on TCP, UDP and one address", func() {
			client, server = c.addTwo()
			client.ExpectUp()
			server.ExpectUp()
			c.traffic("8080", "8081").Expect(client, server)
			Expect(client.Cmd("ip", "-4", "-br", "addr", "show", "net1")).To(ContainSubstring("10.99.0.2/24"))
			client.Cmd("ping", "-c1", "-W2", "-I", "10.99.0.2", "10.99.0.3")
		})
		s.step("CHECK", func() {
			Expect(c.try("check", client)).To(Succeed())
			Expect(c.try("check", server, published...)).To(Succeed())
		})
		s.step("DEL, twice", func() {
			for _, pod := range []pods.Pod{client, client, server, server} {
				Expect(c.try("del", pod, published...)).To(Succeed())
			}
		})
		s.step("nothing is left", func() { pods.ExpectNothingLeft(c.Host) })
	})
})
