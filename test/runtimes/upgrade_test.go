package runtimes_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// debian is the network as the reference plugins have it: three addresses, so that
// new pods have to get those of old ones.
var debian = pods.Network{Last: "10.88.0.4"}

var _ = Describe("a node under running pods", func() {
	DescribeTable("goes from the reference plugins to ours and back", Label("upgrade"), func(
		ref nstest.Reference, dir func() string, backend string, back, v6 bool,
	) {
		reference := ref.Dir()
		nstest.Need("iptables")
		theirs := debian
		theirs.IPv6 = v6
		ours := theirs
		ours.Backend = backend
		c := newContainerd(newMachine(reference), dir(), theirs.Conflist())
		client, server := c.upgradedTwo()

		c.install("")
		c.reconfigure(ours.Conflist())
		c.ready()
		c.expectMinded(ours.Conflist(), client, server)
		c.traffic("8080", "").Expect(client.Pod, server.Pod)
		_, err := c.run("greedy", tcp(8080, 80))
		Expect(err).To(MatchError(ContainSubstring("8080")), "the reference's rules hold the port")
		c.end(c.all()...)
		pods.ExpectNothingLeft(c.Host)

		client, server = c.upgradedTwo()
		c.expectMinded(ours.Conflist(), client, server)
		if !back {
			c.end(c.all()...)
			pods.ExpectNothingLeft(c.Host)
			return
		}
		c.install(reference)
		c.reconfigure(theirs.Conflist())
		c.ready()
		// Not the server: Debian's portmap fails in CHECK of its own host ports too.
		Expect(c.check(theirs.Conflist(), client.id, client.Pod)).To(Succeed())
		c.traffic("8080", "").Expect(client.Pod, server.Pod)
		c.end(c.all()...)
		pods.ExpectGone(c.Host)
		c.upgradedTwo()
		c.end(c.all()...)
		pods.ExpectGone(c.Host)

		c.install("") // the records of pods that the reference has deleted are in nobody's way
		c.reconfigure(ours.Conflist())
		c.ready()
		c.upgradedTwo()
		c.end(c.all()...)
		c.collect()
		pods.ExpectNothingLeft(c.Host)
	},
		Entry("containerd 1.6, our backend nftables, to ours only", nstest.Debian(), func() string { return "" }, "",
			false, false),
		Entry("containerd 1.6, our backend iptables, and back", nstest.Newest(), func() string { return "" },
			"iptables", true, false),
		Entry("containerd 2, our backend nftables, to ours only, IPv4 and IPv6", nstest.Newest(), built, "", false,
			true),
		Entry("containerd 2, our backend iptables, and back, IPv4 and IPv6", nstest.Debian(), built, "iptables", true,
			true),
	)

	It("that goes back with pods of the nftables backend stops them at the second try, and leaves elements", func() {
		reference := nstest.Debian().Dir()
		nstest.Need("iptables")
		c := newContainerd(newMachine(""), "", debian.Conflist())
		id, pod := c.start("pod", tcp(8080, 80))
		c.install(reference)
		Expect(c.stop(id)).To(MatchError(ContainSubstring("does not exist")))
		c.end(id)
		Expect(c.Cmd("nft", "list", "table", "inet", "hawser")).To(ContainSubstring(pod.Addr))
		c.install("")
		c.collect()
		pods.ExpectNothingLeft(c.Host)
	})
})

// upgradedTwo starts two pods and looks at their traffic.
func (d *daemon) upgradedTwo() (client, server sandboxed) {
	GinkgoHelper()
	client.id, client.Pod = d.start("client")
	server.id, server.Pod = d.start("server", tcp(8080, 80), udp(8080, 80))
	d.traffic("8080", "").Expect(client.Pod, server.Pod)
	return client, server
}

// expectMinded runs CHECK of both, and again when something is missing.
func (d *daemon) expectMinded(conflist string, client, server sandboxed) {
	GinkgoHelper()
	d.expectChecked(conflist, client, server)
	server.Cmd("ip", "route", "del", "default")
	Expect(d.check(conflist, server.id, server.Pod)).To(MatchError(ContainSubstring("0.0.0.0/0")))
	server.Cmd("ip", "route", "add", "default", "via", "10.88.0.1", "dev", "eth0")
}
