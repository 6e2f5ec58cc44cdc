package runtimes_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/test/pods"
)

// Containerd 1.6 refuses a list whose cniVersion is 1.1.0; newer libraries choose
// from cniVersions.
var network = pods.Network{Versions: `["0.4.0", "1.0.0", "1.1.0"]`}

// built is the directory of a containerd 2 that the script has built.
func built() string {
	dir := os.Getenv("HAWSER_CONTAINERD")
	if dir == "" {
		Skip("needs containerd 2: HAWSER_CONTAINERD is not set (scripts/test-runtimes.sh builds it)")
	}
	return dir
}

var _ = Describe("containerd 1.6", func() { underContainerd(func() string { return "" }) })

var _ = Describe("containerd 2", func() { underContainerd(built) })

func underContainerd(dir func() string) {
	DescribeTable("has pods with addresses, traffic, host ports, sysctls; removed twice", Label("runtimes"), func(
		v6, ptp bool,
	) {
		n := network
		n.IPv6, n.PTP = v6, ptp
		c := newContainerd(newMachine(""), dir(), n.Conflist())
		first, _ := c.kubelet.start("first", tcp(8080, 80)) // what pods share is there from now on
		c.end(first)
		pods.ExpectNothingLeft(c.Host)
		before := c.state()

		a, client := c.kubelet.start("client")
		b, server := c.kubelet.start("server", tcp(8080, 80), udp(8080, 80), on(pods.HostAddr, tcp(8081, 80)),
			on(pods.HostAddr6, tcp(8081, 80)))
		client.ExpectUp()
		server.ExpectUp()
		w := c.traffic("8080", "8081")
		w.SeesNeighbours = ptp
		w.Expect(client, server)

		_, err := c.run("greedy", tcp(8080, 80))
		Expect(err).To(MatchError(And(ContainSubstring("8080"), ContainSubstring(b))), "the port is taken, and by whom")
		server.ExpectUp()

		Expect(c.stop(a)).To(Succeed())
		Expect(c.stop(a)).To(Succeed())
		Expect(c.stop(b)).To(Succeed())
		for range 2 {
			Expect(c.remove(a)).To(Succeed())
			Expect(c.remove(b)).To(Succeed())
		}
		c.end(c.all()...)
		pods.ExpectNothingLeft(c.Host)
		Expect(c.state()).To(Equal(before))
	},
		Entry("IPv4", false, false),
		Entry("IPv4 and IPv6", true, false),
		Entry("ptp, IPv4 and IPv6", true, true),
	)

	It("has 20 pods at once, up and down", func() {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		const many = 20
		ids := make([]string, many)
		Expect(atOnce(many, func(i int) (err error) {
			ids[i], err = c.run(fmt.Sprint("pod", i), tcp(int32(9000+i), 80))
			return err
		})).To(Succeed())
		taken := map[string]bool{}
		for _, id := range ids {
			pod := c.find(id)
			pod.ExpectUp()
			taken[pod.Addr] = true
		}
		Expect(taken).To(HaveLen(many))
		Expect(atOnce(many, func(i int) error { return errors.Join(c.stop(ids[i]), c.remove(ids[i])) })).To(Succeed())
		pods.ExpectNothingLeft(c.Host)
	})

	It("sets the MAC address that tuning is told", func() {
		n := network
		n.Tuning = `, "mac": "02:00:00:00:00:aa"`
		c := newContainerd(newMachine(""), dir(), n.Conflist())
		id, pod := c.kubelet.start("pod")
		Expect(pod.Cmd("ip", "-br", "link", "show", "eth0")).To(ContainSubstring("02:00:00:00:00:aa"))
		c.end(id)
		pods.ExpectNothingLeft(c.Host)
	})

	It("attaches pods to two networks at the same time, each with the host ports", func() {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		second := strings.NewReplacer(`"pods"`, `"second"`, "cni0", "cni1", "10.88.0.",
			"10.89.0.").Replace(network.Conflist())
		Expect(os.WriteFile(filepath.Join(c.netconf, "20-second.conflist"), []byte(second), 0o644)).To(Succeed())
		Eventually(c.read).Should(ContainElement(second))
		const many = 5
		ids := make([]string, many)
		Expect(atOnce(many, func(i int) (err error) {
			ids[i], err = c.run(fmt.Sprint("pod", i), tcp(int32(9000+i), 80), udp(int32(9000+i), 80), tcp(0, 81))
			return err
		})).To(Succeed())
		for i, id := range ids {
			pod := c.find(id)
			pod.ExpectUp()
			Expect(pod.Cmd("ip", "-4", "-o", "addr", "show", "dev", "eth1")).To(ContainSubstring(" 10.89.0."))
			// Through whichever network came first. A UDP server that answers from the
			// address of its default route would need that to be the same.
			reach := func() (string, error) { return c.outside.Ask("tcp", fmt.Sprint("192.0.2.1:", 9000+i)) }
			Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		}
		Expect(atOnce(many, func(i int) error { return errors.Join(c.stop(ids[i]), c.remove(ids[i])) })).To(Succeed())
		pods.ExpectNothingLeft(c.Host)
		Expect(c.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.89.0."))
	})

	It("is killed while pods run, and deletes them afterwards", func() {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		id, pod := c.kubelet.start("pod", tcp(8080, 80))
		c.crash()
		pod.ExpectUp()
		c.start()
		c.ready()
		Expect(c.all()).To(ConsistOf(id))
		c.end(id)
		pods.ExpectNothingLeft(c.Host)
	})

	It("gives addresses and ports of pods from before a reboot to new ones, and deletes the old afterwards", func() {
		n := network
		n.Last = "10.88.0.4"
		c := newContainerd(newMachine(""), dir(), n.Conflist())
		old, _ := c.kubelet.start("old", tcp(8080, 80))
		c.crash()
		c.reboot()
		c.start()
		c.ready()
		Expect(c.all()).To(ConsistOf(old))
		id, client := c.kubelet.start("client")
		_, server := c.kubelet.start("new", tcp(8080, 80), udp(8080, 80))
		c.traffic("8080", "").Expect(client, server)
		c.end(old)
		c.traffic("8080", "").Expect(client, server)
		Expect(c.stop(id)).To(Succeed())
		_, another := c.kubelet.start("another")
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
		c.start()
		c.ready()
		c.end(c.all()...)
		AddReportEntry("addresses that containerd forgot", strings.Join(pods.Leases(c.Host), " "))
		c.collect(filepath.Join(c.netconf, "10-pods.conflist"))
		pods.ExpectNothingLeft(c.Host)
	})
}

// atOnce calls fn with 0 to n-1, all at once.
func atOnce(n int, fn func(int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
