package nft_test

import (
	"context"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// natSample has every statement that translating destinations needs.
func natSample() nft.Layout {
	service := []nft.Type{nft.InetProto, nft.InetService}
	return nft.Layout{
		Table: table,
		Sets: []nft.Set{
			{Name: "to4", Key: service, Data: []nft.Type{nft.IPv4Addr, nft.InetService}},
			{Name: "to6", Key: service, Data: []nft.Type{nft.IPv6Addr, nft.InetService}},
			{Name: "at4", Key: []nft.Type{nft.InetProto, nft.IPv4Addr, nft.InetService},
				Data: []nft.Type{nft.IPv4Addr, nft.InetService}},
			{Name: "at6", Key: []nft.Type{nft.InetProto, nft.IPv6Addr, nft.InetService},
				Data: []nft.Type{nft.IPv6Addr, nft.InetService}},
		},
		Chains: []nft.Chain{
			{Name: "four", Rules: []nft.Rule{
				{nft.DNATMap(nft.IPv4, "at4", nft.L4Proto, nft.IPDaddr, nft.THDport)},
				{nft.DNATMap(nft.IPv4, "to4", nft.L4Proto, nft.THDport)},
			}},
			{Name: "six", Rules: []nft.Rule{
				{nft.DNATMap(nft.IPv6, "at6", nft.L4Proto, nft.IP6Daddr, nft.THDport)},
				{nft.DNATMap(nft.IPv6, "to6", nft.L4Proto, nft.THDport)},
			}},
			{Name: "marked", Rules: []nft.Rule{{nft.FwmarkWith(1 << 13)}, {nft.Goto("four")}}},
			{Name: "before", Hook: &nft.Hook{Type: "nat", Point: nft.Prerouting, Priority: -99}, Rules: []nft.Rule{
				{nft.IsFamily(nft.IPv4), nft.DaddrIsLocal(), nft.Goto("marked")},
				{nft.IsFamily(nft.IPv6), nft.DaddrIsLocal(), nft.Goto("six")},
			}},
			{Name: "after", Hook: &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: 100}, Rules: []nft.Rule{
				{nft.CtTranslated(), nft.FwmarkHas(1 << 13), nft.Masquerade()},
			}},
		},
	}
}

const natPrinted = `
	chain four {
		dnat ip to meta l4proto . ip daddr . th dport map @at4
		dnat ip to meta l4proto . th dport map @to4
	}

	chain six {
		dnat ip6 to meta l4proto . ip6 daddr . th dport map @at6
		dnat ip6 to meta l4proto . th dport map @to6
	}

	chain marked {
		meta mark set meta mark | 0x00002000
		goto four
	}

	chain before {
		type nat hook prerouting priority dstnat + 1; policy accept;
		meta nfproto ipv4 fib daddr type local goto marked
		meta nfproto ipv6 fib daddr type local goto six
	}

	chain after {
		type nat hook postrouting priority srcnat; policy accept;
		ct status dnat meta mark & 0x00002000 == 0x00002000 masquerade
	}
}
`

var _ = Describe("translation of destinations", Label("kernel"), func() {
	var host *nstest.Host

	BeforeEach(func() {
		nstest.Need("nft", "nft-inet-nat", "nft-fib")
		host = nstest.NewHost()
	})

	It("is printed by nft as an administrator would write it, and recognised again", func() {
		ensure := func(tx *nft.Tx) error {
			err := tx.EnsureLayout(natSample())
			return err
		}
		Expect(update(host, ensure)).To(Succeed())
		text := host.Cmd("nft", "list", "ruleset")
		Expect(text).To(HaveSuffix(natPrinted))
		with(host, func(c *nft.Conn) { Expect(c.Verify(natSample())).To(Succeed()) })
		for _, c := range natSample().Chains {
			for _, r := range c.Rules {
				Expect(text).To(ContainSubstring("\t\t" + r.String() + "\n"))
			}
		}
		Expect(update(host, ensure)).To(Succeed())
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(text))
	})

	It("tells by their values which of somebody else's rules mention an address", func() {
		host.Cmd("nft", "add table ip theirs; add chain ip theirs c { type nat hook prerouting priority -100 ; };"+
			"add rule ip theirs c tcp dport 80 dnat to 10.1.0.2:8080;"+
			"add rule ip theirs c ip saddr 10.1.0.3 counter accept")
		with(host, func(c *nft.Conn) {
			rules, err := c.Rules(nft.Table{Family: nft.IPv4, Name: "theirs"}, "c")
			Expect(err).NotTo(HaveOccurred())
			Expect(rules).To(HaveLen(2))
			Expect(rules[0].Mentions([]byte{10, 1, 0, 2})).To(BeTrue())
			Expect(rules[0].Mentions([]byte{0, 80})).To(BeTrue())
			Expect(rules[0].Mentions([]byte{10, 1, 0, 3})).To(BeFalse())
			Expect(rules[0].Compared(2)).To(Equal([][]byte{{0, 80}}))
			Expect(rules[0].Compared(4)).To(BeEmpty())
			Expect(rules[1].Mentions([]byte{10, 1, 0, 3})).To(BeTrue())
		})
	})

	It("removes somebody else's rules and the chains to which they lead, without a lock where there are none", func() {
		host.Cmd("nft", "add table ip theirs; add chain ip theirs c; add chain ip theirs gone;"+
			"add rule ip theirs c ip saddr 10.1.0.3 goto gone; add rule ip theirs gone accept;"+
			"add rule ip theirs c ip saddr 10.1.0.4 accept")
		leftover := nft.Removal{Table: nft.Table{Family: nft.IPv4, Name: "theirs"}, Chain: "c",
			Rule: func(r nft.LiveRule) bool { return r.Target == "gone" }, Drop: []string{"gone", "absent"}}
		with(host, func(c *nft.Conn) {
			Expect(leftover.Remove(context.Background(), c)).To(Succeed())
			Expect(host.Cmd("nft", "list", "ruleset")).To(And(ContainSubstring("10.1.0.4"),
				Not(ContainSubstring("10.1.0.3")), Not(ContainSubstring("gone"))))
			Expect(os.RemoveAll("/run/hawser")).To(Succeed())
			Expect(leftover.Remove(context.Background(), c)).To(Succeed())
			Expect("/run/hawser").NotTo(BeADirectory())
			Expect(c.Chain(leftover.Table, strings.Repeat("x", 256))).To(BeNil())
			leftover.Chain, leftover.Drop = "", nil
			leftover.Rule = func(r nft.LiveRule) bool { return r.Chain == "c" }
			Expect(leftover.Remove(context.Background(), c)).To(Succeed())
		})
		Expect(host.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.1.0.4"))
	})
})
