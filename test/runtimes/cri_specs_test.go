package runtimes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// Containerd 1.6 refuses a list whose cniVersion is 1.1.0; newer libraries choose from cniVersions.
var network = pods.Network{Versions: `["0.4.0", "1.0.0", "1.1.0"]`}

// built is the directory of a containerd 2 that the script has built.
func built() string {
	dir := os.Getenv("HAWSER_CONTAINERD")
	if dir == "" {
		Skip("needs containerd 2: HAWSER_CONTAINERD is not set (scripts/test-runtimes.sh builds it)")
	}
	return dir
}

var _ = Describe("containerd 1.6", func() { underContainerd("containerd 1.6.20", func() string { return "" }) })

var _ = Describe("containerd 2", func() { underContainerd("containerd 2.4.2", built) })

// livingPods is the life of two pods under containerd.
func livingPods(s story, plugins, dir string, v6, ptp bool) {
	n := network
	n.IPv6, n.PTP = v6, ptp
	c := newContainerd(newMachine(plugins), dir, n.Conflist())
	first, _ := c.start("first", tcp(8080, 80)) // what pods share is there from now on
	c.end(first)
	before, w := c.state(), c.traffic("8080", "8081")
	w.SeesNeighbours = ptp && !s.theirs
	var client, server sandboxed
	s.step("pods: addresses, sysctl, traffic, host ports on TCP, UDP and one address", func() {
		client, server = c.startTwo()
		client.ExpectUp()
		server.ExpectUp()
		w.Expect(client.Pod, server.Pod)
	})
	s.step("a pod with a taken host port fails, and names the port", func() {
		greedy, err := c.run("greedy", tcp(8080, 80))
		if err == nil {
			c.end(greedy)
		}
		Expect(err).To(MatchError(ContainSubstring("8080")))
		if !s.theirs {
			Expect(err).To(MatchError(ContainSubstring(server.id)), "by whom it is taken")
		}
		server.ExpectUp()
	})
	s.step("killed and started again with live pods", func() {
		c.crash()
		server.ExpectUp()
		c.launch()
		c.ready()
		Expect(c.all()).To(ContainElements(client.id, server.id))
		w.Expect(client.Pod, server.Pod)
	})
	s.step("pods are stopped and removed twice, nothing is left", func() {
		ids := c.all()
		for _, do := range []func(string) error{c.stop, c.stop, c.remove, c.remove} {
			for _, id := range ids {
				Expect(do(id)).To(Succeed())
			}
		}
		pods.ExpectNothingLeft(c.Host)
		if !s.theirs {
			Expect(c.state()).To(Equal(before))
		}
	})
}

func underContainerd(name string, dir func() string) {
	Describe("pods with IPv4 and IPv6", Label("runtimes"), func() {
		told(name, func(s story, plugins string) { livingPods(s, plugins, dir(), true, false) })
	})

	DescribeTable("has pods that live as those, with", Label("runtimes"), func(v6, ptp bool) {
		livingPods(story{client: name + " again"}, "", dir(), v6, ptp)
	},
		Entry("IPv4", false, false),
		Entry("ptp, IPv4 and IPv6", true, true),
	)

	It("has 20 pods at once, up and down", func() {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		const many = 20
		ids := make([]string, many)
		nstest.AtOnce(many, func(i int) {
			var err error
			ids[i], err = c.run(fmt.Sprint("pod", i), tcp(int32(9000+i), 80))
			Expect(err).NotTo(HaveOccurred())
		})
		taken := map[string]bool{}
		for _, id := range ids {
			pod := c.find(id)
			pod.ExpectUp()
			taken[pod.Addr] = true
		}
		Expect(taken).To(HaveLen(many))
		nstest.AtOnce(many, func(i int) { c.end(ids[i]) })
		pods.ExpectNothingLeft(c.Host)
	})

	It("sets the MAC address that tuning is told", func() {
		n := network
		n.Tuning = `, "mac": "02:00:00:00:00:aa"`
		c := newContainerd(newMachine(""), dir(), n.Conflist())
		id, pod := c.start("pod")
		Expect(pod.Cmd("ip", "-br", "link", "show", "eth0")).To(ContainSubstring("02:00:00:00:00:aa"))
		c.end(id)
		pods.ExpectNothingLeft(c.Host)
	})

	It("attaches pods to two networks at the same time, each with the host ports", func() {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		second := strings.NewReplacer(`"pods"`, `"second"`, "cni0", "cni1", "10.88.0.",
			"10.89.0.").Replace(network.Conflist())
		Expect(os.WriteFile(filepath.Join(c.netconf, "second.conflist"), []byte(second), 0o644)).To(Succeed())
		Eventually(c.read).Should(ContainElement(second))
		const many = 5
		ids := make([]string, many)
		nstest.AtOnce(many, func(i int) {
			var err error
			ids[i], err = c.run(fmt.Sprint("pod", i), tcp(int32(9000+i), 80), udp(int32(9000+i), 80), tcp(0, 81))
			Expect(err).NotTo(HaveOccurred())
		})
		for i, id := range ids {
			pod := c.find(id)
			pod.ExpectUp()
			Expect(pod.Cmd("ip", "-4", "-o", "addr", "show", "dev", "eth1")).To(ContainSubstring(" 10.89.0."))
			// Through whichever network came first. A UDP server that answers from the
			// address of its default route would need that to be the same.
			reach := func() (string, error) { return c.outside.Ask("tcp", fmt.Sprint("192.0.2.1:", 9000+i)) }
			Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		}
		nstest.AtOnce(many, func(i int) { c.end(ids[i]) })
		pods.ExpectNothingLeft(c.Host)
		Expect(c.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.89.0."))
	})

	It("gives addresses and ports of pods from before a reboot to new ones, and deletes the old afterwards", func() {
		n := network
		n.Last = "10.88.0.4"
		c := newContainerd(newMachine(""), dir(), n.Conflist())
		old, _ := c.start("old", tcp(8080, 80))
		c.crash()
		c.reboot()
		c.launch()
		c.ready()
		Expect(c.all()).To(ConsistOf(old))
		id, client := c.start("client")
		_, server := c.start("new", tcp(8080, 80), udp(8080, 80))
		c.traffic("8080", "").Expect(client, server)
		c.end(old)
		c.traffic("8080", "").Expect(client, server)
		Expect(c.stop(id)).To(Succeed())
		_, another := c.start("another")
		another.ExpectUp()
		c.end(c.all()...)
		pods.ExpectNothingLeft(c.Host)
	})

	It("is killed in the middle of ADDs, and GC collects what it forgot", Label("runtime-killed"), func() {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { _, _ = c.run(fmt.Sprint("pod", i), tcp(int32(9000+i), 80)) })
		}
		Eventually(func() []string { return pods.Leases(c.Host) }).ShouldNot(BeEmpty())
		c.crash()
		wg.Wait()
		c.launch()
		c.ready()
		c.end(c.all()...)
		AddReportEntry("addresses that containerd forgot", strings.Join(pods.Leases(c.Host), " "))
		c.collect()
		pods.ExpectNothingLeft(c.Host)
	})
}

var _ = Describe("the node of containerd 2", func() {
	It("is not ready while a range is full or a bridge's name taken, and says why", func() {
		n := network
		n.Last = "10.88.0.2"
		c := newContainerd(newMachine(""), built(), n.Conflist())
		c.start("only")
		Eventually(c.network).Should(And(HavePrefix("not ready: "), ContainSubstring("10.88.0.2")))
		_, err := c.run("second")
		Expect(err).To(MatchError(ContainSubstring("10.88.0.2")))
		c.end(c.all()...)
		Eventually(c.network).Should(Equal("ready"))

		c.Cmd("ip", "link", "del", "cni0")
		c.Cmd("ip", "link", "add", "cni0", "type", "veth", "peer", "name", "other")
		Eventually(c.network).Should(And(HavePrefix("not ready: "), ContainSubstring(`bridge "cni0"`)))
		c.Cmd("ip", "link", "del", "cni0")
		Eventually(c.network).Should(Equal("ready"))
		pods.ExpectNothingLeft(c.Host)
	})
})
