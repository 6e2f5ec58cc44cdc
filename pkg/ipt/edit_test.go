package ipt_test

import (
	"context"
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// table is a table with chain X, which has two rules, and chain Y, to which a rule of FORWARD leads.
func table() *ipt.Edit {
	return &ipt.Edit{Chains: []string{"FORWARD", "X", "Y"}, Rules: []ipt.Rule{to("X", "ACCEPT"), to("FORWARD", "Y"),
		to("X", "DROP")}}
}

func to(chain, target string) ipt.Rule { return ipt.NewRule(chain, "-j", target) }

var _ = DescribeTable("an edit has the lines of the difference", func(change func(e *ipt.Edit), lines ...string) {
	e := table()
	change(e)
	Expect(append([]string{}, e.Lines()...)).To(Equal(lines))
	change(e)
	Expect(append([]string{}, e.Lines()...)).To(Equal(lines), "what it is to have it has then")
},
	Entry("none", func(e *ipt.Edit) {
		e.Make("X", "Y")
		e.First(to("X", "DROP"), to("FORWARD", "Y"))
		e.Last(to("X", "ACCEPT"))
		e.Fill("X", []ipt.Rule{to("X", "ACCEPT"), to("X", "DROP")})
		e.Fill("Y", nil)
		e.Remove("Z")
	}),
	Entry("chains that are missing", func(e *ipt.Edit) { e.Make("X", "A", "B") }, "-N A", "-N B"),
	Entry("rules that are to be first", func(e *ipt.Edit) { e.First(to("X", "A"), to("X", "DROP"), to("X", "B")) },
		"-I X -j B", "-I X -j A"),
	Entry("rules that are to be last", func(e *ipt.Edit) { e.Last(to("X", "A"), to("X", "DROP"), to("Y", "B")) },
		"-A X -j A", "-A Y -j B"),
	Entry("rules that go", func(e *ipt.Edit) { e.Delete(func(r ipt.Rule) bool { return r.Chain == "X" }) },
		"-D X -j ACCEPT", "-D X -j DROP"),
	Entry("the rules of a chain, in another order", func(e *ipt.Edit) {
		e.Fill("X", []ipt.Rule{to("X", "DROP"), to("X", "ACCEPT")})
	}, ":X - [0:0]", "-A X -j DROP", "-A X -j ACCEPT"),
	Entry("the rules of a chain that is missing", func(e *ipt.Edit) { e.Fill("Z", []ipt.Rule{to("Z", "DROP")}) },
		":Z - [0:0]", "-A Z -j DROP"),
	Entry("a chain that goes with its rules", func(e *ipt.Edit) { e.Remove("X") }, "-F X", "-X X"),
	Entry("no chain that a rule leads to", func(e *ipt.Edit) { e.Remove("Y") }),
	Entry("a chain that no rule leads to any more", func(e *ipt.Edit) {
		e.Delete(func(r ipt.Rule) bool { return r.Option("-j") == "Y" })
		e.Remove("Y")
	}, "-D FORWARD -j Y", "-F Y", "-X Y"),
)

var _ = Describe("the editor", Label("kernel"), func() {
	ctx := context.Background()
	ours := ipt.Chain{Family: nft.IPv4, Table: "filter", Name: "OURS"}
	refill := func(nf *nft.Conn) error { // in each variant that has the chain
		where, err := ours.Variants(ctx, nf)
		for _, v := range where {
			tool := ipt.Tool{Family: ours.Family, Variant: v}
			err = errors.Join(err, tool.Edit(ctx, "filter", func(e *ipt.Edit) {
				e.Fill(ours.Name, []ipt.Rule{to(ours.Name, "ACCEPT")})
			}))
		}
		return err
	}

	It("changes a table of each variant that has the chain, and no other", func() {
		nstest.Need("iptables-legacy")
		host := nstest.NewHost()
		host.Cmd("iptables-nft", "-N", "OURS")
		host.Cmd("iptables-legacy", "-N", "OTHER")
		host.Do(func() {
			nf := nft.New()
			defer func() { Expect(nf.Close()).To(Succeed()) }()
			Expect(refill(nf)).To(Succeed())
			found, err := ours.Look(ctx, nf)
			Expect(err).NotTo(HaveOccurred())
			Expect(found.Rules).To(Equal([]ipt.Rule{to("OURS", "ACCEPT")}))
			Expect(host.Cmd("iptables-legacy", "-S")).NotTo(ContainSubstring("OURS"))
			host.Cmd("iptables-legacy", "-N", "OURS")
			Expect(refill(nf)).To(Succeed())
			Expect(host.Cmd("iptables-legacy", "-S", "OURS")).To(ContainSubstring("-j ACCEPT"))
		})
	})

	It("needs no program where no variant has the chain, and says which one is missing else", func() {
		nstest.Need("iptables-nft")
		host := nstest.NewHost()
		host.Do(func() {
			nf := nft.New()
			defer func() { Expect(nf.Close()).To(Succeed()) }()
			host.Cmd("iptables-nft", "-N", "OTHER")
			path := GinkgoT().TempDir()
			GinkgoT().Setenv("PATH", path)
			Expect(refill(nf)).To(Succeed())
			ours.Name = "OTHER"
			err := refill(nf)
			Expect(ipt.NotInstalled(err)).To(BeTrue(), "%v", err)
			Expect(err).To(MatchError(ContainSubstring(`"iptables-nft"`)))
			ours.Name = "OURS"
		})
	})

	It("says whose words an error of the program are", func() {
		nstest.Need("iptables-nft")
		nstest.NewHost().Do(func() {
			_, err := ipt.Tool{Family: nft.IPv4, Variant: ipt.NFT}.Look(ctx, "no such table")
			Expect(err).To(MatchError(ContainSubstring(`nft iptables table "no such table": running [`)))
			stopped, stop := context.WithCancelCause(ctx)
			stop(errors.New("the runtime gave up"))
			_, err = ipt.Tool{Family: nft.IPv4, Variant: ipt.NFT}.Look(stopped, "nat")
			Expect(err).To(MatchError(ContainSubstring("the runtime gave up")))
		})
	})
})
