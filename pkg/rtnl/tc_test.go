package rtnl_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

var _ = Describe("qdiscs and filters", Label("kernel"), func() {
	var h *nstest.Host
	var c *rtnl.Conn
	var a int
	BeforeEach(func() {
		nstest.Need("tbf", "ifb")
		h = nstest.NewNetns()
		veth(h, "v1", "v2")
		c = dial(h)
		a = index(c, "v1")
	})

	DescribeTable("TBF reads what it wrote, and what tc(8) says", func(t rtnl.TBF, want string) {
		Expect(c.Qdisc(a, rtnl.Root)).To(Equal(rtnl.Qdisc{}))
		Expect(c.AddTBF(a, t)).To(Succeed())
		Expect(c.Qdisc(a, rtnl.Root)).To(Equal(rtnl.Qdisc{Kind: "tbf", Handle: 1 << 16, TBF: t}))
		Expect(h.Cmd("tc", "qdisc", "show", "dev", "v1", "root")).To(ContainSubstring(want))
		Expect(c.AddTBF(a, t)).To(MatchError(unix.EEXIST))
		Expect(c.DelQdisc(a, rtnl.Root)).To(Succeed())
		Expect(c.Qdisc(a, rtnl.Root)).To(Equal(rtnl.Qdisc{}))
		Expect(c.DelQdisc(a, rtnl.Root)).To(Succeed())
	},
		Entry("of a usual rate", rtnl.TBF{Rate: 1_000_000, Buffer: 100_000_000 / 64, Limit: 125_000},
			"rate 8Mbit burst 100000b lat 25ms"),
		Entry("of one beyond 32 bits", rtnl.TBF{Rate: 12_500_000_000, Buffer: 1_000_000, Limit: 1 << 30},
			"rate 100Gbit"),
		Entry("of the largest numbers", rtnl.TBF{Rate: 1, Buffer: 1<<32 - 1, Limit: 1<<32 - 1}, "rate 8bit"),
	)

	It("does not take another qdisc for a TBF of its own", func() {
		h.Cmd("tc", "qdisc", "add", "dev", "v1", "root", "handle", "1:", "pfifo")
		q, err := c.Qdisc(a, rtnl.Root)
		Expect(err).NotTo(HaveOccurred())
		Expect(q).To(Equal(rtnl.Qdisc{Kind: "pfifo", Handle: 1 << 16}))
		Expect(q.IsTBF()).To(BeFalse())
		Expect(rtnl.Qdisc{Kind: "tbf", Handle: 5 << 16}.IsTBF()).To(BeFalse())
		Expect(rtnl.Qdisc{Kind: "tbf", Handle: 1 << 16}.IsTBF()).To(BeTrue())
	})

	It("redirects what a link receives, and says where to", func() {
		ifb := add(c, rtnl.NewLink{Name: "x", Kind: "ifb", MTU: 1400, Group: 7})
		Expect(show(h, "x").Linkinfo.Kind + show(h, "x").Group).To(Equal("ifb7"))
		Expect(show(h, "x").MTU).To(Equal(1400))
		Expect(c.AddLink(rtnl.NewLink{Name: "x", Kind: "ifb"})).To(MatchError(unix.EEXIST))

		Expect(c.Redirects(a)).To(BeEmpty())
		Expect(c.Redirect(a, ifb.Index)).NotTo(Succeed(), "there is no ingress qdisc")
		Expect(c.AddIngress(a)).To(Succeed())
		Expect(c.AddIngress(a)).To(MatchError(unix.EEXIST))
		Expect(c.Qdisc(a, rtnl.Ingress)).To(HaveField("Kind", "ingress"))
		Expect(c.Redirect(a, ifb.Index)).To(Succeed())
		all, other := rtnl.Redirection{To: ifb.Index, All: true}, rtnl.Redirection{To: -1}
		Expect(c.Redirects(a)).To(Equal([]rtnl.Redirection{all}))
		const x = "action mirred egress redirect dev x "
		for i, filter := range []string{"all u32 match u32 0 0 action mirred egress mirror dev x",
			"all u32 match u32 0 0 flowid 1:5", "all u32 match u32 0 0 " + x + "action mirred egress redirect dev v2",
			"all u32 match u32 0 0 " + x + x, "ip u32 match u32 0 0 " + x, "all u32 match ip dst 10.1.0.0/16 " + x} {
			h.Cmd("sh", "-c", fmt.Sprintf("tc filter add dev v1 ingress pref %d protocol %s", i+2, filter))
		}
		some := rtnl.Redirection{To: ifb.Index}
		Expect(c.Redirects(a)).To(Equal([]rtnl.Redirection{all, other, other, other, all, some, some}))
		Expect(c.DelRedirect(a)).To(Succeed())
		Expect(c.Redirects(a)).To(HaveLen(6))
		Expect(c.DelLink(ifb.Index)).To(Succeed())
		Expect(c.Redirects(a)).To(HaveExactElements(other, other, other, HaveField("To", 0), HaveField("To", 0),
			HaveField("To", 0)))
		Expect(c.DelQdisc(a, rtnl.Ingress)).To(Succeed())
		Expect(c.DelQdisc(a, rtnl.Ingress)).To(Succeed())
	})

	It("tells clsact from the ingress qdisc", func() {
		h.Cmd("tc", "qdisc", "add", "dev", "v1", "clsact")
		Expect(c.Qdisc(a, rtnl.Ingress)).To(HaveField("Kind", "clsact"))
		Expect(c.AddIngress(a)).To(MatchError(unix.EEXIST))
	})

	It("knows a link that is gone", func() {
		Expect(c.AddTBF(999, rtnl.TBF{Rate: 1, Buffer: 1e6, Limit: 1})).To(MatchError(rtnl.ErrNoLink))
		Expect(c.Qdisc(999, rtnl.Root)).Error().To(MatchError(rtnl.ErrNoLink))
		Expect(c.DelQdisc(999, rtnl.Root)).To(Succeed())
	})

	DescribeTable("asks for a qdisc without changing lo", func(commands ...string) {
		for _, c := range commands {
			h.Cmd("sh", "-ec", c)
		}
		before := h.Cmd("tc", "qdisc", "show")
		Expect(c.ProbeQdisc("tbf")).To(Succeed())
		Expect(c.ProbeQdisc("nosuch")).To(MatchError(unix.ENOENT))
		Expect(h.Cmd("tc", "qdisc", "show")).To(Equal(before))
	},
		Entry("which has the kernel's own"),
		Entry("which has another", "tc qdisc add dev lo root handle 1: pfifo"),
		Entry("which has one of that kind", "tc qdisc add dev lo root handle 1: tbf rate 1gbit burst 1mb latency 1s"),
		Entry("which has one of that kind under another handle",
			"tc qdisc add dev lo root handle 5: stab overhead 9 tbf rate 1gbit burst 1mb latency 1s"),
		Entry("which has classes", "tc qdisc add dev lo root handle 1: htb", "tc qdisc add dev lo clsact"),
	)
})
