package rtnl_test

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("waiting for IPv6 addresses of our own", func() {
	It("ends when packets for them are taken", func() {
		h := nstest.NewHost()
		c := dial(h)
		veth(h, "one", "two")
		one := index(c, "one")
		ip(h, "link set one up")
		ip(h, "link set two up")
		Expect(c.WaitLocal(ended(), one)).To(Succeed())
		addrs := []netip.Addr{netip.MustParseAddr("2001:db8::3"), netip.MustParseAddr("2001:db8:1::3")}
		err := c.WaitLocal(ended(), one, addrs...)
		Expect(err).To(MatchError(context.DeadlineExceeded))
		Expect(err).To(MatchError(HavePrefix(`link "one": wait for address 2001:db8::3`)))
		done := make(chan error, 1)
		go func() { done <- c.WaitLocal(patience(), one, addrs...) }()
		ip(h, "addr add 2001:db8::3/64 nodad dev one")
		Consistently(done, "50ms").ShouldNot(Receive())
		ip(h, "addr add 2001:db8:1::3/64 nodad dev one")
		Eventually(done, "10s").Should(Receive(BeNil()))
		Expect(ip(h, "-6 route show table local")).To(ContainSubstring("local 2001:db8:1::3"))
		Expect(c.WaitLocal(ended(), one, addrs...)).To(Succeed())
	})
})
