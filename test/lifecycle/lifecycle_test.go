package lifecycle_test

import (
	"fmt"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("libcni", func() {
	DescribeTable("drives ADD, CHECK, STATUS, GC and DEL", func(version string, hasCheck, hasGC bool) {
		host := nstest.NewHost()
		outside := nstest.NewOutside(host)
		r := newRuntime(host, dualStack(version))
		c, lost := newContainer("one"), newContainer("lost")

		res, err := r.add(c)
		Expect(err).NotTo(HaveOccurred())
		Expect(res.Version()).To(Equal(version))
		Expect(addresses(res)).To(HaveExactElements("10.88.0.2", "fd00:88::2"))
		for _, server := range []string{"192.0.2.2:0", "[2001:db8::2]:0"} {
			seen, err := c.netns.Ask("tcp", outside.Serve("tcp", server))
			Expect(err).NotTo(HaveOccurred())
			Expect(seen).To(Or(HavePrefix("192.0.2.1:"), HavePrefix("[2001:db8::1]:")), "masqueraded")
		}

		if hasCheck {
			Expect(r.check(c)).To(Succeed())
			c.netns.Cmd("ip", "address", "del", "10.88.0.2/16", "dev", "eth0")
			Expect(r.check(c)).To(MatchError(ContainSubstring("10.88.0.2/16")))
			c.netns.Cmd("ip", "address", "add", "10.88.0.2/16", "dev", "eth0")
			c.netns.Cmd("ip", "route", "add", "default", "via", "10.88.0.1")
			Expect(r.check(c)).To(Succeed())
		}
		if hasGC {
			Expect(r.status()).To(Succeed())
			_, err := r.add(lost)
			Expect(err).NotTo(HaveOccurred())
			Expect(r.gc(c)).To(Succeed())
			Expect(host.Cmd("ls", "/var/lib/cni/networks/dual")).NotTo(ContainSubstring("10.88.0.3"))
			Expect(lost.netns.Cmd("ip", "-br", "link")).NotTo(ContainSubstring("eth0"))
			Expect(r.check(c)).To(Succeed())
		}
		Expect(r.del(c)).To(Succeed())
		Expect(r.del(c)).To(Succeed())
		expectNothingLeft(host, "dual")
	},
		Entry("0.3.1", "0.3.1", false, false),
		Entry("0.4.0", "0.4.0", true, false),
		Entry("1.0.0", "1.0.0", true, false),
		Entry("1.1.0", "1.1.0", true, true),
	)

	It("is told why an ADD failed, and that STATUS would have said so", func() {
		host := nstest.NewHost()
		host.Cmd("ip", "link", "add", "cni0", "type", "veth", "peer", "name", "other")
		r := newRuntime(host, dualStack("1.1.0"))
		before := host.Snapshot()
		_, err := r.add(newContainer("one"))
		Expect(err).To(MatchError(ContainSubstring(`bridge "cni0"`)))
		Expect(r.status()).To(MatchError(ContainSubstring(`bridge "cni0"`)))
		Expect(host.Snapshot()).To(Equal(before))
	})

	It("runs loopback beside the network of the same container", func() {
		host := nstest.NewHost()
		r := newRuntime(host, dualStack("1.0.0"))
		lo := newRuntime(host, `{"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`)
		c := newContainer("one")
		loopback := c
		conf := *c.RuntimeConf
		conf.IfName = "lo"
		loopback.RuntimeConf = &conf
		Expect(inParallel(2, func(i int) error {
			if i == 0 {
				_, err := r.add(c)
				return err
			}
			_, err := lo.add(loopback)
			return err
		})).To(Succeed())
		Expect(c.netns.Cmd("ip", "-br", "link", "show", "lo")).To(ContainSubstring("UP"))
		Expect(r.check(c)).To(Succeed())
		Expect(lo.del(loopback)).To(Succeed())
		Expect(r.del(c)).To(Succeed())
	})
})

var _ = Describe("a busy host", func() {
	It("takes 100 parallel ADDs and 100 parallel DELs, three times", func() {
		const many = 100
		host := nstest.NewHost()
		r := newRuntime(host, dualStack("1.1.0"))
		for round := range 3 {
			containers := make([]container, many)
			for i := range containers {
				containers[i] = newContainer(fmt.Sprintf("r%d-c%d", round, i))
			}
			var mu sync.Mutex
			owner := map[string]string{}
			Expect(inParallel(many, func(i int) error {
				res, err := r.add(containers[i])
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				for _, a := range addresses(res) {
					if other, taken := owner[a]; taken {
						return fmt.Errorf("%s was given to %s and %s", a, other, containers[i].ContainerID)
					}
					owner[a] = containers[i].ContainerID
				}
				return nil
			})).To(Succeed())
			Expect(owner).To(HaveLen(2 * many))
			Expect(host.Cmd("sh", "-c", "ip -br link show type bridge | wc -l")).To(Equal("1\n"))
			Expect(host.Cmd("sh", "-c", "ip -br link show master cni0 | wc -l")).To(Equal(fmt.Sprintln(many)))

			Expect(inParallel(many, func(i int) error { return r.del(containers[i]) })).To(Succeed())
			expectNothingLeft(host, "dual")
		}
	})
})

// inParallel calls fn with 0 to n-1, all at once, and returns the first error.
func inParallel(n int, fn func(int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() {
			defer GinkgoRecover()
			err := fn(i)
			if err != nil {
				err = fmt.Errorf("call %d: %w", i, err)
			}
			errs <- err
		}()
	}
	var first error
	for range n {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// expectNothingLeft looks for anything but what the next container shares.
func expectNothingLeft(host *nstest.Host, network string) {
	GinkgoHelper()
	Expect(host.Cmd("ip", "-br", "link", "show", "type", "veth")).NotTo(ContainSubstring("veth"), "links")
	Expect(host.Cmd("find", "/var/lib/cni/networks/"+network, "-name", "*[.:]*", "!", "-name", "last_reserved_ip.*")).To(BeEmpty(), "leases")
	Expect(host.Cmd("nft", "list", "ruleset")).NotTo(Or(ContainSubstring("goto"), ContainSubstring("CNI-")), "rules")
}
