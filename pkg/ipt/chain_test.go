package ipt_test

import (
	"context"
	"errors"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

var _ = Describe("a chain", Label("kernel"), func() {
	ctx := context.Background()
	isOurs := func(name string) bool { return strings.HasPrefix(name, "OURS-") }

	for _, variant := range []ipt.Variant{ipt.NFT, ipt.Legacy} {
		for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
			named := func(name string) ipt.Chain {
				return ipt.Chain{Family: family, Table: "nat", Name: name, From: "POSTROUTING"}
			}
			rules := func(chain string) []ipt.Rule {
				return []ipt.Rule{ipt.NewRule(chain, "-j", "ACCEPT"), ipt.NewRule(chain, "-j", "RETURN")}
			}
			jump := func(chain string) ipt.Rule { return ipt.NewRule("POSTROUTING", "-j", chain) }

			// inHost makes OURS-1, to which two rules lead, and OURS-2, to which none does.
			inHost := func(fn func(nf *nft.Conn, tool ipt.Tool)) {
				GinkgoHelper()
				nstest.Need("iptables-" + string(variant))
				nstest.NewHost().Do(func() {
					nf := nft.New()
					defer func() { Expect(nf.Close()).To(Succeed()) }()
					tool, err := ipt.FindVariant(ctx, family, variant)
					Expect(err).NotTo(HaveOccurred())
					lines := slices.Concat(named("OURS-1").Fill(rules("OURS-1")), named("OURS-2").Fill(rules("OURS-2")),
						[]string{jump("OURS-1").Append(), jump("OURS-1").Append()})
					Expect(tool.Restore(ctx, "nat", lines)).To(Succeed())
					fn(nf, tool)
				})
			}
			of := " of iptables-" + string(variant) + " for IPv" + family.Digit()

			It("is found, with its rules and those that lead to it"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					Expect(named("OURS-1").Variants(ctx, nf)).To(Equal([]ipt.Variant{variant}))
					Expect(named("OURS-3").Variants(ctx, nf)).To(BeEmpty())
					live, jumps, err := named("OURS-1").Live(ctx, tool)
					Expect(err).NotTo(HaveOccurred())
					Expect(live).To(Equal(rules("OURS-1")))
					Expect(jumps).To(Equal([]ipt.Rule{jump("OURS-1"), jump("OURS-1")}))
					Expect(named("").Rules(ctx, nf, isOurs)).
						To(ConsistOf(slices.Concat(rules("OURS-1"), rules("OURS-2"), jumps)))
				})
			})

			It("goes with all that leads to it, and again"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					for range 2 {
						Expect(named("OURS-1").Remove(ctx, nf, variant)).To(Succeed())
					}
					Expect(named("OURS-1").Variants(ctx, nf)).To(BeEmpty())
					Expect(tool.List(ctx, "nat", "OURS-1", "OURS-2")).
						To(Equal(ipt.Saved{Chains: []string{"OURS-2"}, Rules: rules("OURS-2")}))
					Expect(tool.List(ctx, "nat", "POSTROUTING")).To(Equal(ipt.Saved{Chains: []string{"POSTROUTING"}}))
				})
			})

			It("has all of some rules, or lacks the first that it names"+of, func() {
				inHost(func(_ *nft.Conn, tool ipt.Tool) {
					has := []ipt.Rule{rules("OURS-1")[0], jump("OURS-1"), rules("OURS-2")[1]}
					_, lacks, err := tool.Missing(ctx, "nat", has)
					Expect(err).NotTo(HaveOccurred())
					Expect(lacks).To(BeFalse())
					missing, lacks, err := tool.Missing(ctx, "nat",
						append(has, jump("OURS-2"), ipt.NewRule("OURS-3", "-j", "ACCEPT")))
					Expect(err).NotTo(HaveOccurred())
					Expect(lacks).To(BeTrue())
					Expect(missing).To(Equal(jump("OURS-2")))
					_, _, err = tool.Missing(ctx, "nat", []ipt.Rule{ipt.NewRule("OURS-1", "--nonsense")})
					Expect(err).To(MatchError(ContainSubstring("--nonsense")))
				})
			})

			It("has its rules in their order and those of others, or nothing is said"+of, func() {
				inHost(func(_ *nft.Conn, tool ipt.Tool) {
					jump2 := ipt.NewRule("OURS-1", "-j", "OURS-2")
					other := ipt.NewRule("OURS-1", "-s", "192.0.2.1/32", "-j", "OURS-2")
					if family == nft.IPv6 {
						other = ipt.NewRule("OURS-1", "-s", "2001:db8::1/128", "-j", "OURS-2")
					}
					Expect(tool.Restore(ctx, "nat", []string{jump2.Append(), other.Append()})).To(Succeed())
					own := append(rules("OURS-1"), jump2, other)
					has := func(rules ...ipt.Rule) bool { return named("OURS-1").Has(ctx, rules) }
					for _, right := range [][]ipt.Rule{append(own, jump("OURS-1")), own[:2], own[2:],
						{jump("OURS-1")}} {
						Expect(has(right...)).To(Equal(variant == ipt.NFT))
					}
					for _, wrong := range [][]ipt.Rule{{own[0], own[2], own[1]}, {own[0], own[1], other, jump2},
						append(own, own[0]), append(own, jump("OURS-2")), append(own, jump("OURS-3"))} {
						Expect(has(wrong...)).To(BeFalse())
					}
				})
			})

			It("is changed by lines that are made again when they fail, and not when there are none"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					tries := 0
					Expect(tool.Change(ctx, "nat", func() ([]string, error) {
						if tries++; tries == 1 {
							return []string{jump("OURS-2").Delete()}, nil
						}
						return []string{jump("OURS-2").Append()}, nil
					})).To(Succeed())
					Expect(tries).To(Equal(2))
					live, err := tool.List(ctx, "nat", "POSTROUTING")
					Expect(err).NotTo(HaveOccurred())
					Expect(live.Rules).To(ContainElement(jump("OURS-2")))
					Expect(tool.Change(ctx, "no such table", func() ([]string, error) { return nil, nil })).
						To(Succeed())
					failed := errors.New("no lines")
					Expect(tool.Change(ctx, "nat", func() ([]string, error) { return nil, failed })).
						To(MatchError(failed))
				})
			})
		}
	}

	It("of the legacy variant is looked for without waiting for the lock", func() {
		nstest.Need("iptables-legacy")
		nstest.NewHost().Do(func() {
			tool, err := ipt.FindVariant(ctx, nft.IPv4, ipt.Legacy)
			Expect(err).NotTo(HaveOccurred())
			Expect(tool.Restore(ctx, "nat", []string{":OURS-1 - [0:0]"})).To(Succeed())
			held, err := statefile.Lock(ctx, "/run/xtables.lock", 0o600)
			Expect(err).NotTo(HaveOccurred())
			defer func() { Expect(held.Unlock()).To(Succeed()) }()
			saved, err := ipt.Save(ctx, nft.IPv4, ipt.Legacy, "nat")
			Expect(err).NotTo(HaveOccurred())
			Expect(saved.Chains).To(ContainElement("OURS-1"))
		})
	})
})
