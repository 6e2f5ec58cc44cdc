package hostlocal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("exclude", Label("exclude"), func() {
	const excluded = `, "exclude": ["10.1.2.2", "10.1.2.4/30", "2001:db8:1::/65", "203.0.113.0/24"]`

	It("keeps addresses and networks out of all ranges", func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/28", "rangeEnd": "10.1.2.9"}],
			[{"subnet": "2001:db8:1::/64"}]]` + excluded)
		n = n.withKeys(`"runtimeConfig": {"ipRanges": [[{"subnet": "203.0.112.0/23", "rangeEnd": "203.0.113.5"}]]}`)
		Expect(n.add("a", "b", "c")).To(Equal([]string{"203.0.112.2", "10.1.2.3", "2001:db8:1:0:8000::",
			"203.0.112.3", "10.1.2.8", "2001:db8:1:0:8000::1", "203.0.112.4", "10.1.2.9", "2001:db8:1:0:8000::2"}))
		Expect(n.fails("ADD", "d", cni.CodeTryAgain)).To(ContainSubstring("10.1.2.1-10.1.2.1,10.1.2.3-10.1.2.3," +
			"10.1.2.8-10.1.2.9: 3 leases of 3 owners"))
		n.succeeds("DEL", "b")
		Expect(n.add("d")).To(ContainElement("10.1.2.8"))
	})

	It("also refuses requests for them, and a range without other addresses", func() {
		n := newNetwork(slash24 + excluded)
		Expect(n.withKeys(`"args": {"cni": {"ips": ["10.1.2.5"]}}`).fails("ADD", "a", cni.CodeConfig)).To(
			HavePrefix(`args.cni.ips[0]: 10.1.2.5 is in none of the ranges`))
		n.ipam = slash24 + `, "exclude": ["10.1.0.0/16"]`
		Expect(n.fails("ADD", "a", cni.CodeConfig)).To(Equal(
			"ipam.exclude: leaves no address of ipam.ranges[0][0], 10.1.2.1-10.1.2.254"))
		n.ipam = slash24 + `, "exclude": ["10.1.2.9/24"]`
		Expect(n.fails("ADD", "a", cni.CodeConfig)).To(HavePrefix(`ipam.exclude[0]: 10.1.2.9/24 has host bits set`))
	})

	It("does not affect a container that already has such an address", func() {
		n := newNetwork(slash24)
		a := n.call("ADD", "a")
		Expect(addresses(n.Add(a))).To(Equal([]string{"10.1.2.2"}))
		n.ipam += excluded
		n.succeeds("CHECK", "a")
		n.gc("a")
		Expect(n.leases()).To(HaveLen(1))
		n.succeeds("STATUS", "")
		Expect(n.add("b")).To(Equal([]string{"10.1.2.3"}))
		n.succeeds("DEL", "a")
		Expect(n.add("c")).To(Equal([]string{"10.1.2.8"}))
	})
})

var _ = Describe("a sticky address", Label("sticky"), func() {
	const ranges = `"ranges": [[{"subnet": "10.1.2.0/28"}], [{"subnet": "2001:db8:1::/64"}]], "sticky": true`
	pod := func(name string) string { return "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + name }
	start := func(n network, id, args string) string {
		GinkgoHelper()
		c := n.call("ADD", id)
		c.Args = args
		return strings.Join(addresses(n.Add(c)), " ")
	}

	It("is assigned to the pod again, in both families, while it is free", func() {
		n := newNetwork(ranges)
		Expect(start(n, "a", pod("web-0"))).To(Equal("10.1.2.2 2001:db8:1::2"))
		Expect(start(n, "b", pod("web-1"))).To(Equal("10.1.2.3 2001:db8:1::3"))
		n.succeeds("DEL", "a", "b")
		Expect(start(n, "c", pod("other-x"))).To(Equal("10.1.2.4 2001:db8:1::4"))
		Expect(start(n, "f", pod("web-0"))).To(Equal("10.1.2.2 2001:db8:1::2"))
		Expect(start(n, "e", "")).To(Equal("10.1.2.5 2001:db8:1::5")) // not web-1's, which follows web-0's
		Expect(start(n, "d", pod("web-1"))).To(Equal("10.1.2.3 2001:db8:1::3"))
		c := n.call("ADD", "f")
		c.Args, c.IfName = pod("web-0"), "net1"
		Expect(addresses(n.Add(c))).To(Equal([]string{"10.1.2.6", "2001:db8:1::6"}))

		By("but not while another container has it")
		n.succeeds("DEL", "d")
		taker := n.withKeys(`"args": {"cni": {"ips": ["10.1.2.3"]}}`)
		Expect(start(taker, "g", "")).To(HavePrefix("10.1.2.3 "))
		Expect(start(n, "h", pod("web-1"))).To(Equal("10.1.2.7 2001:db8:1::3"))
	})

	It("is not used without the key, for another pod, or outside the ranges", func() {
		n := newNetwork(ranges)
		Expect(start(n, "a", pod("web-0"))).To(HavePrefix("10.1.2.2 "))
		n.succeeds("DEL", "a")
		plain := n
		plain.ipam = strings.ReplaceAll(ranges, "true", "false")
		Expect(start(plain, "b", pod("web-0"))).To(HavePrefix("10.1.2.3 "))
		Expect(start(n, "c", "IgnoreUnknown=1;K8S_POD_NAMESPACE=sho;K8S_POD_NAME=pweb-0")).To(HavePrefix("10.1.2.4 "))
		n.ipam += `, "exclude": ["10.1.2.2"]`
		Expect(start(n, "d", pod("web-0"))).To(HavePrefix("10.1.2.5 "))
		Expect(start(n, "e", "K8S_POD_NAME=lone")).To(HavePrefix("10.1.2.6 "))
	})

	It("is assigned to the pod again after a reboot, although it was not released", func() {
		n := newNetwork(ranges)
		live := nstest.NewNetns()
		c := n.call("ADD", "a")
		c.Netns, c.Args = live.Path, pod("web-0")
		Expect(addresses(n.Add(c))).To(ContainElement("10.1.2.2"))
		Expect(start(n, "b", "")).To(HavePrefix("10.1.2.3 "))
		n.changeNote("10.1.2.2", 0, "0123456789abcdef")
		n.changeNote("2001:db8:1::2", 0, "0123456789abcdef")
		Expect(start(n, "c", pod("web-0"))).To(Equal("10.1.2.2 2001:db8:1::2"))
	})

	It("needs a table that does not grow and is not trusted", func() {
		n := newNetwork(ranges)
		table := filepath.Join(n.dataDir, ".hawser", ".sticky", "net")
		for i := range 300 {
			start(n, "a", pod(fmt.Sprint("job-", i)))
			n.succeeds("DEL", "a")
		}
		Expect(nstest.Must(os.Stat(table)).Size()).To(BeNumerically("<=", slots*entrySize))
		Expect(nstest.Must(os.ReadDir(n.dir()))).To(HaveLen(3)) // as without the key: lock, last_reserved_ip.0 and .1
		Expect(start(n, "a", pod("web-0"))).NotTo(BeEmpty())
		data := nstest.Must(os.ReadFile(table))
		for i := range data {
			if i%entrySize >= hashSize && data[i/entrySize*entrySize] != 0 {
				data[i] = 0xff
			}
		}
		for _, broken := range [][]byte{data, data[:7], nil} {
			Expect(os.WriteFile(table, broken, 0o600)).To(Succeed())
			n.succeeds("DEL", "a")
			Expect(start(n, "a", pod("web-0"))).To(HavePrefix("10.1.2."))
		}
		Expect(os.Remove(table)).To(Succeed())
		Expect(os.Symlink("/etc/passwd", table)).To(Succeed())
		before := nstest.Must(os.ReadFile("/etc/passwd"))
		n.succeeds("DEL", "a")
		c := n.call("ADD", "a")
		c.Args = pod("web-0")
		Expect(n.Call(c).Stderr).To(ContainSubstring("ipam.sticky: "))
		Expect(os.ReadFile("/etc/passwd")).To(Equal(before))
	})
})
