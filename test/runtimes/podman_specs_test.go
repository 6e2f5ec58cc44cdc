package runtimes_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

var _ = Describe("podman", func() {
	DescribeTable("has containers with addresses, traffic, host ports, MACs; removed twice", Label("runtimes"), func(
		v6 bool,
	) {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0", IPv6: v6}.Conflist())
		p.container("first", "--network", "pods", "-p", "8080:80")
		p.must("rm", "-f", "-t", "0", "first")
		pods.ExpectNothingLeft(p.Host)
		before := p.state()

		client := p.container("client", "--network", "pods:ip=10.88.0.77,mac=02:00:00:00:00:aa")
		server := p.container("server", "--network", "pods", "-p", "8080:80/tcp", "-p", "8080:80/udp",
			"-p", "192.0.2.1:8081:80", "-p", "[2001:db8::1]:8081:80", "-p", "127.0.0.1:9000-9001:80-81")
		Expect(client.Addr).To(Equal("10.88.0.77"))
		Expect(client.Cmd("ip", "-br", "link", "show", "eth0")).To(ContainSubstring("02:00:00:00:00:aa"))
		client.ExpectUp()
		server.ExpectUp()
		p.traffic("8080", "8081").Expect(client, server)
		Expect(p.Ask("tcp", "127.0.0.1:9000")).To(HavePrefix("10.88.0.1:"))
		_, err := p.outside.Ask("tcp", "192.0.2.1:9000")
		Expect(err).To(MatchError(ContainSubstring("refused")))
		_, err = p.try("run", "-d", "--name", "greedy", "--cgroup-parent", p.cgroup, "--network", "pods", "-p",
			"8080:80", image)
		Expect(err).To(MatchError(ContainSubstring("8080")))

		for range 2 {
			p.must("stop", "-t", "1", "client")
			p.must("stop", "-t", "1", "server")
		}
		p.must("rm", "-f", "client", "server", "greedy")
		p.must("rm", "-f", "--ignore", "client", "server")
		pods.ExpectNothingLeft(p.Host)
		Expect(p.state()).To(Equal(before))
	},
		Entry("IPv4", false),
		Entry("IPv4 and IPv6", true),
	)

	It("sets the MAC address that tuning is told", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0",
			Tuning: `, "mac": "02:00:00:00:00:aa"`}.Conflist())
		Expect(p.container("one", "--network", "pods").Cmd("ip", "-br", "link", "show",
			"eth0")).To(ContainSubstring("02:00:00:00:00:aa"))
		p.must("rm", "-f", "-t", "0", "one")
		pods.ExpectNothingLeft(p.Host)
	})

	It("reloads the network of a live container, also after its rules were flushed", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		client := p.container("client", "--network", "pods")
		server := p.container("server", "--network", "pods", "-p", "8080:80/tcp", "-p", "8080:80/udp")
		p.Cmd("nft", "flush", "ruleset")
		p.must("network", "reload", "--all")
		Expect(p.find("client").Addr).To(Equal(client.Addr))
		Expect(p.find("server").Addr).To(Equal(server.Addr))
		client.ExpectUp()
		server.ExpectUp()
		p.traffic("8080", "").Expect(client, server)
		p.must("rm", "-f", "-t", "0", "client", "server")
		pods.ExpectNothingLeft(p.Host)
	})

	It("publishes a port of a container that joins a second network as long as it is on the first", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		p.create("second", "--subnet", "10.89.0.0/24")
		p.container("one", "--network", "pods", "-p", "8080:80")
		reach := func() (string, error) { return p.outside.Ask("tcp", "192.0.2.1:8080") }
		Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		for range 2 {
			p.must("network", "connect", "second", "one")
			Eventually(reach).Should(HavePrefix("192.0.2.2:"))
			p.must("network", "disconnect", "second", "one")
			Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		}
		p.must("network", "connect", "second", "one")
		p.must("network", "disconnect", "pods", "one")
		_, err := reach()
		Expect(err).To(HaveOccurred())
		p.must("network", "connect", "pods", "one")
		Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		p.must("rm", "-f", "-t", "0", "one")
		pods.ExpectNothingLeft(p.Host)
	})

	It("connects and disconnects live containers, to networks that podman has written", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		p.create("second", "--subnet", "10.89.0.0/24", "--ipv6", "--subnet", "fd00:89::/64")
		p.create("shut", "--internal", "--subnet", "10.90.0.0/24")
		c := p.container("one", "--network", "pods", "-p", "8080:80")
		for range 2 {
			p.must("network", "connect", "--ip", "10.89.0.7", "--mac-address", "02:00:00:00:00:bb", "second", "one")
			Expect(c.Cmd("ip", "-o", "addr", "show", "dev", "eth1")).To(And(ContainSubstring(" 10.89.0.7/24 "),
				ContainSubstring(" fd00:89::")))
			Expect(c.Cmd("ip", "-br", "link", "show", "eth1")).To(ContainSubstring("02:00:00:00:00:bb"))
			p.must("network", "connect", "shut", "one")
			Expect(c.Cmd("ip", "-o", "addr", "show", "dev", "eth2")).To(ContainSubstring(" 10.90.0."))
			p.must("network", "disconnect", "second", "one")
			p.must("network", "disconnect", "shut", "one")
			Expect(c.Cmd("ip", "-br", "link")).NotTo(Or(ContainSubstring("eth1"), ContainSubstring("eth2")))
			c.ExpectUp()
		}
		p.must("rm", "-f", "-t", "0", "one")
		pods.ExpectNothingLeft(p.Host)
	})

	It("keeps containers of the reference plugins alive with ours: reload, stop; and goes back", func() {
		reference := nstest.Debian().Dir()
		nstest.Need("iptables")
		n := pods.Network{Version: "0.4.0", Backend: "iptables"}
		p := newPodman(newMachine(reference), n.Conflist())
		ports := []string{"--network", "pods", "-p", "8080:80/tcp", "-p", "8080:80/udp"}
		client, server := p.container("client", "--network", "pods"), p.container("server", ports...)
		for _, plugins := range []string{"", reference} {
			p.install(plugins)
			p.traffic("8080", "").Expect(client, server)
			p.must("network", "reload", "--all")
			p.traffic("8080", "").Expect(client, server)
			p.must("rm", "-f", "-t", "0", "client", "server")
			pods.ExpectGone(p.Host)
			client, server = p.container("client", "--network", "pods"), p.container("server", ports...)
			p.traffic("8080", "").Expect(client, server)
		}
		p.install("")
		p.must("rm", "-f", "-t", "0", "client", "server")
		p.collect(filepath.Join(p.dir, "net.d", "pods.conflist")) // records of what the reference has deleted
		pods.ExpectNothingLeft(p.Host)
	})

	It("has 20 containers at once, up and down", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		const many = 20
		Expect(atOnce(many, func(i int) error {
			defer GinkgoRecover()
			_, err := p.try("run", "-d", "--name", fmt.Sprint("c", i), "--cgroup-parent", p.cgroup,
				"--network", "pods", "-p", fmt.Sprintf("%d:80", 9000+i), image)
			return err
		})).To(Succeed())
		Expect(pods.Leases(p.Host)).To(HaveLen(many))
		Expect(atOnce(many, func(i int) error {
			defer GinkgoRecover()
			_, err := p.try("rm", "-f", "-t", "0", fmt.Sprint("c", i))
			return err
		})).To(Succeed())
		pods.ExpectNothingLeft(p.Host)
	})

	It("starts containers from before a reboot again, with their ports and the addresses that they asked for", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		p.container("client", "--network", "pods")
		p.container("server", "--network", "pods:ip=10.88.0.77", "-p", "8080:80/tcp", "-p", "8080:80/udp")
		p.reboot()
		p.must("start", "client", "server")
		server := p.find("server")
		Expect(server.Addr).To(Equal("10.88.0.77"))
		p.traffic("8080", "").Expect(p.find("client"), server)
		Expect(pods.Leases(p.Host)).To(HaveLen(2))
		p.must("rm", "-f", "-t", "0", "client", "server")
		pods.ExpectNothingLeft(p.Host)
	})

	It("is killed in the middle of ADDs, and GC collects what it forgot", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		var running []*exec.Cmd
		for i := range 5 {
			running = append(running, p.Start(nstest.Program{Path: "podman", Env: p.env,
				Args: []string{"run", "-d", "--name", fmt.Sprint("c", i),
					"--cgroup-parent", p.cgroup, "--network", "pods", "-p", fmt.Sprintf("%d:80", 9000+i), image}}))
		}
		lent := func() []string { return pods.Leases(p.Host) }
		Eventually(lent).ShouldNot(BeEmpty())
		for _, cmd := range running {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		pods.Settle(p.plugins)
		_, _ = p.try("rm", "-f", "-a", "-t", "0") // it may find its own storage in use
		AddReportEntry("addresses that podman forgot", strings.Join(pods.Leases(p.Host), " "))
		p.collect(filepath.Join(p.dir, "net.d", "pods.conflist"))
		pods.ExpectNothingLeft(p.Host)
	})
})
