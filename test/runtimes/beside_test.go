package runtimes_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/test/pods"
)

// What the other specs of these runtimes ask of ours is asked of the newest reference too.
var _ = Describe("beside the newest reference", Label("all"), func() {
	Describe("containerd 1.6", func() {
		told("containerd 1.6.20", func(s story, plugins string) { underContainerdBeside(s, plugins, "") })
	})
	Describe("containerd 2", func() {
		told("containerd 2.4.2", func(s story, plugins string) { underContainerdBeside(s, plugins, built()) })
	})
	Describe("podman", func() {
		told("podman 4.3.1", func(s story, plugins string) {
			p := newPodman(newMachine(plugins), pods.Network{Version: "0.4.0"}.Conflist())
			ports := []string{"--network", "pods", "-p", "8080:80/tcp", "-p", "8080:80/udp", "-p", "192.0.2.1:8081:80"}
			var client, server pods.Pod
			s.step("containers: addresses, sysctl, traffic, host ports on TCP, UDP and one address", func() {
				client, server = p.container("client", "--network", "pods"), p.container("server", ports...)
				client.ExpectUp()
				server.ExpectUp()
				p.traffic("8080", "8081").Expect(client, server)
			})
			s.step("a container with a taken host port fails, and names the port", func() {
				_, err := p.try("run", "-d", "--name", "greedy", "--cgroup-parent", p.cgroup, "--network", "pods",
					"-p", "8080:80", image)
				p.must("rm", "-f", "-t", "0", "greedy")
				Expect(err).To(MatchError(ContainSubstring("8080")))
			})
			s.step("network reload after the rules were flushed", func() {
				p.Cmd("nft", "flush", "ruleset")
				p.must("network", "reload", "--all")
				p.traffic("8080", "8081").Expect(client, server)
			})
			s.step("containers are stopped and removed twice, nothing is left", func() {
				for range 2 {
					p.must("rm", "-f", "--ignore", "-t", "0", "client", "server")
				}
				pods.ExpectNothingLeft(p.Host)
			})
		})
	})
})

func underContainerdBeside(s story, plugins, dir string) {
	n := network
	n.IPv6 = true
	c := newContainerd(newMachine(plugins), dir, n.Conflist())
	var client, server sandboxed
	s.step("pods: addresses, sysctl, traffic, host ports on TCP, UDP and one address", func() {
		client.id, client.Pod = c.kubelet.start("client")
		server.id, server.Pod = c.kubelet.start("server", tcp(8080, 80), udp(8080, 80),
			on(pods.HostAddr, tcp(8081, 80)), on(pods.HostAddr6, tcp(8081, 80)))
		client.ExpectUp()
		server.ExpectUp()
		c.traffic("8080", "8081").Expect(client.Pod, server.Pod)
	})
	s.step("a pod with a taken host port fails, and names the port", func() {
		greedy, err := c.run("greedy", tcp(8080, 80))
		if err == nil {
			c.end(greedy)
		}
		Expect(err).To(MatchError(ContainSubstring("8080")))
	})
	s.step("killed and started again with live pods", func() {
		c.crash()
		c.start()
		c.ready()
		c.traffic("8080", "8081").Expect(client.Pod, server.Pod)
	})
	s.step("pods are stopped and removed twice, nothing is left", func() {
		ids := c.all()
		for _, do := range []func(string) error{c.stop, c.stop, c.remove, c.remove} {
			for _, id := range ids {
				Expect(do(id)).To(Succeed())
			}
		}
		pods.ExpectNothingLeft(c.Host)
	})
}
