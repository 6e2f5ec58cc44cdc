package rtnl_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// patience is a context that ends only when something went wrong.
func patience() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(20*time.Second))
	DeferCleanup(cancel)
	return ctx
}

func ended() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	DeferCleanup(cancel)
	return ctx
}

var _ = Describe("waiting", func() {
	var h *nstest.Host
	var c *rtnl.Conn
	var one int
	BeforeEach(func() {
		h = nstest.NewHost()
		c = dial(h)
		veth(h, "one", "two")
		one = index(c, "one")
	})
	waiting := func(wait func() error) chan error {
		done := make(chan error, 1)
		go func() { done <- wait() }()
		return done
	}

	It("for a link ends when the other end comes up, whatever else happens meanwhile", func() {
		ip(h, "link set one up")
		done := waiting(func() error { return c.WaitUp(patience(), one) })
		for range 20 {
			veth(h, "x", "y")
			ip(h, "link del x")
		}
		Consistently(done, "100ms").ShouldNot(Receive())
		ip(h, "link set two up")
		Eventually(done, "10s").Should(Receive(BeNil()))
		Expect(show(h, "one").Operstate).To(Equal("UP"))
	})

	It("for a link that is up, or has no states, ends at once", func() {
		ip(h, "link set one up")
		ip(h, "link set two up")
		Expect(c.WaitUp(patience(), one)).To(Succeed())
		Expect(c.WaitUp(ended(), one)).To(Succeed())
		Expect(c.WaitUp(ended(), index(c, "lo"))).To(Succeed())
	})

	It("for a link ends at the deadline, naming the state", func() {
		ip(h, "link set one up")
		err := c.WaitUp(ended(), one)
		Expect(err).To(MatchError(context.DeadlineExceeded))
		Expect(err).To(MatchError(`link "one": wait for state up, is lowerlayerdown: context deadline exceeded`))
	})

	It("ends when it is cancelled", func() {
		ip(h, "link set one up")
		ctx, cancel := context.WithCancel(context.Background())
		done := waiting(func() error { return c.WaitUp(ctx, one) })
		Consistently(done, "50ms").ShouldNot(Receive())
		cancel()
		Eventually(done, "10s").Should(Receive(MatchError(context.Canceled)))
	})

	It("for a link ends when the link is deleted", func() {
		ip(h, "link set one up")
		done := waiting(func() error { return c.WaitUp(patience(), one) })
		Consistently(done, "50ms").ShouldNot(Receive())
		ip(h, "link del one")
		Eventually(done, "10s").Should(Receive(MatchError(rtnl.ErrNoLink)))
	})

	It("for duplicate address detection ends when it is done, not before", func() {
		ip(h, "link set one up")
		ip(h, "addr add 2001:db8::3/64 dev one")
		ip(h, "link set two up")
		Expect(ip(h, "-6 addr show dev one")).To(ContainSubstring("tentative"))
		Expect(c.WaitDAD(patience(), one)).To(Succeed())
		Expect(ip(h, "-6 addr show dev one")).NotTo(ContainSubstring("tentative"))
	})

	It("for duplicate address detection ends at the deadline, naming the address", func() {
		h.SetSysctl("net/ipv6/conf/one/addr_gen_mode", "1")
		ip(h, "link set one up")
		ip(h, "addr add 2001:db8::3/64 dev one")
		err := c.WaitDAD(ended(), one)
		Expect(err).To(MatchError(context.DeadlineExceeded))
		Expect(err).To(MatchError(HavePrefix(`link "one": wait for duplicate address detection of 2001:db8::3/64`)))
	})

	It("for duplicate address detection fails when there is a duplicate", func() {
		h.SetSysctl("net/ipv6/conf/two/accept_dad", "0")
		ip(h, "link set two up")
		ip(h, "addr add 2001:db8::3/64 nodad dev two")
		h.SetSysctl("net/ipv6/conf/one/accept_dad", "1")
		h.SetSysctl("net/ipv6/conf/one/enhanced_dad", "0")
		ip(h, "addr add 2001:db8::3/64 dev one")
		ip(h, "link set one up")
		err := c.WaitDAD(patience(), one)
		Expect(err).To(MatchError(rtnl.ErrDuplicate))
		Expect(err).To(MatchError(HavePrefix(`link "one": address 2001:db8::3/64: `)))
	})

	It("without addresses ends at once", func() {
		Expect(c.WaitDAD(ended(), one)).To(Succeed())
	})
})
