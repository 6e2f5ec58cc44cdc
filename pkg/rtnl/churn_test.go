package rtnl_test

import (
	"fmt"
	"net/netip"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// churn makes and deletes links, with addresses and routes, on four threads
// until stop is closed.
func churn(h *nstest.Host, stop chan struct{}) *sync.WaitGroup {
	GinkgoHelper()
	var all sync.WaitGroup
	for i := range 4 {
		c := dial(h)
		all.Go(func() {
			defer GinkgoRecover()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("c%dx%d", i, n%7)
				Expect(c.AddVeth(rtnl.Veth{Name: name, Peer: rtnl.Peer{Name: name + "p"}})).To(Succeed())
				l, err := c.Link(name)
				Expect(err).NotTo(HaveOccurred())
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i), byte(n), 1}), 24)
				Expect(c.AddAddr(l.Index, rtnl.Addr{Prefix: p})).To(Succeed())
				Expect(c.SetLink(l.Index, rtnl.Change{Up: ptr(true)})).To(Succeed())
				Expect(c.DelLink(l.Index)).To(Succeed())
			}
		})
	}
	return &all
}

var _ = Describe("while four threads make and delete links", func() {
	It("200 rounds of reading and creating are complete and without an error", func() {
		h := nstest.NewHost()
		c := dial(h)
		// Enough that every list comes in several parts.
		for i := range 40 {
			veth(h, fmt.Sprintf("one%d", i), fmt.Sprintf("two%d", i))
		}
		one := index(c, "one0")
		ip(h, "link set one0 up")
		ip(h, "link set two0 up")
		for i := range 300 {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 200), byte(i%200 + 1)}), 32)
			Expect(c.AddAddr(one, rtnl.Addr{Prefix: p})).To(Succeed())
			Expect(c.AddRoute(rtnl.Route{
				Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, byte(i / 200), byte(i%200 + 1)}), 32), OutIndex: one,
			})).To(Succeed())
		}

		stop := make(chan struct{})
		all := churn(h, stop)
		defer all.Wait()
		defer close(stop)
		for n := range 200 {
			addrs, err := c.Addrs(one)
			Expect(err).NotTo(HaveOccurred())
			Expect(ipv4(addrs)).To(Equal(300))
			routes, err := c.Routes(one, unix.AF_INET)
			Expect(err).NotTo(HaveOccurred())
			Expect(len(routes)).To(Equal(600), "with the local table")
			name := fmt.Sprint("one", 100+n)
			Expect(c.AddVeth(rtnl.Veth{Name: name, Peer: rtnl.Peer{Name: fmt.Sprint("two", 100+n)}})).To(Succeed())
			Expect(c.Link(name)).To(HaveField("Name", name))
			if n%10 == 9 {
				links, err := c.Links()
				Expect(err).NotTo(HaveOccurred())
				Expect(named(links, "one", "two")).To(Equal(80 + 2*(n+1)))
			}
		}
	})
})

func ipv4(addrs []rtnl.Addr) int {
	n := 0
	for _, a := range addrs {
		if a.Prefix.Addr().Is4() {
			n++
		}
	}
	return n
}

func named(links []rtnl.Link, prefixes ...string) int {
	n := 0
	for _, l := range links {
		for _, p := range prefixes {
			if len(l.Name) > len(p) && l.Name[:len(p)] == p {
				n++
			}
		}
	}
	return n
}
