package ipt_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// look is table nat.
func look(tool ipt.Tool) *ipt.Edit {
	GinkgoHelper()
	live, err := tool.Look(context.Background(), "nat")
	Expect(err).NotTo(HaveOccurred())
	return live
}

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
					tool := ipt.Tool{Family: family, Variant: variant}
					e := &ipt.Edit{}
					e.Fill("OURS-1", rules("OURS-1"))
					e.Fill("OURS-2", rules("OURS-2"))
					lines := append(e.Lines(), jump("OURS-1").Append(), jump("OURS-1").Append())
					Expect(tool.Restore(ctx, "nat", lines)).To(Succeed())
					fn(nf, tool)
				})
			}
			of := " of iptables-" + string(variant) + " for IPv" + family.Digit()

			It("is found, with its rules and those that lead to it"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					Expect(named("OURS-1").Variants(ctx, nf)).To(Equal([]ipt.Variant{variant}))
					Expect(named("OURS-3").Variants(ctx, nf)).To(BeEmpty())
					all := slices.Concat(rules("OURS-1"), rules("OURS-2"), []ipt.Rule{jump("OURS-1"), jump("OURS-1")})
					found, err := named("OURS-1").Look(ctx, nf)
					Expect(err).NotTo(HaveOccurred())
					Expect(found.Rules).To(ConsistOf(all))
					Expect(named("OURS-3").Look(ctx, nf)).To(BeNil())
					Expect(named("").Rules(ctx, nf, isOurs)).To(ConsistOf(all))
				})
			})

			It("goes with all that leads to it, and again"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					for range 2 {
						Expect(named("OURS-1").Remove(ctx, nf, variant, nil)).To(Succeed())
					}
					Expect(named("OURS-1").Variants(ctx, nf)).To(BeEmpty())
					left := look(tool)
					Expect(left.Chains).To(And(ContainElements("OURS-2", "POSTROUTING"), Not(ContainElement("OURS-1"))))
					Expect(left.Rules).To(Equal(rules("OURS-2")))
				})
			})

			It("stays, with the rules that lead to it from other addresses"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					text := map[nft.Family][]string{
						nft.IPv4: {"10.1.0.2/24", "10.1.0.0/24", "10.1.0.3/32", "10.2.0.0/24"},
						nft.IPv6: {"fd00:1::2/64", "fd00:1::/64", "fd00:1::3/128", "fd00:2::/64"}}[family]
					prefix := netip.MustParsePrefix(text[0])
					from := func(src string) ipt.Rule { return ipt.NewRule("POSTROUTING", "-s", src, "-j", "OURS-2") }
					own := from(netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen()).String())
					Expect(tool.Restore(ctx, "nat", []string{own.Append(), from(text[1]).Append(),
						from(text[2]).Append(), from(text[3]).Append()})).To(Succeed())
					Expect(named("OURS-2").Remove(ctx, nf, variant, []netip.Prefix{prefix})).To(Succeed())
					left := look(tool)
					Expect(left.Rules).To(And(ContainElements(from(text[2]), from(text[3]), rules("OURS-2")[0]),
						Not(ContainElement(own)), Not(ContainElement(from(text[1])))))
					Expect(named("OURS-2").Remove(ctx, nf, variant, nil)).To(Succeed())
					Expect(named("OURS-2").Variants(ctx, nf)).To(BeEmpty())
				})
			})

			It("is looked at again when the change fails, and not changed where nothing differs"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					looks := 0
					wrong := &ipt.Edit{Rules: []ipt.Rule{jump("OURS-2")}} // as somebody deleted it meanwhile
					Expect(tool.EditFound(ctx, "nat", func() (*ipt.Edit, error) {
						if looks++; looks == 1 {
							return wrong, nil
						}
						return tool.Look(ctx, "nat")
					}, func(e *ipt.Edit) {
						e.Delete(jump("OURS-2").Equal)
						e.Last(jump("OURS-2"))
					})).To(Succeed())
					Expect(looks).To(Equal(2))
					Expect(look(tool).Rules).To(ContainElement(jump("OURS-2")))
					failed := errors.New("no table")
					Expect(tool.EditFound(ctx, "nat", func() (*ipt.Edit, error) { return nil, failed },
						func(*ipt.Edit) {})).To(MatchError(failed))
					Expect(tool.EditFound(ctx, "no such table", func() (*ipt.Edit, error) { return &ipt.Edit{}, nil },
						func(*ipt.Edit) {})).To(Succeed())
				})
			})
		}
	}

	It("of the legacy variant is looked for without waiting for the lock", func() {
		nstest.Need("iptables-legacy")
		nstest.NewHost().Do(func() {
			tool := ipt.Tool{Family: nft.IPv4, Variant: ipt.Legacy}
			Expect(tool.Restore(ctx, "nat", []string{":OURS-1 - [0:0]"})).To(Succeed())
			held, err := statefile.LockFile(ctx, "/run/xtables.lock", 0o600)
			Expect(err).NotTo(HaveOccurred())
			defer func() { Expect(held.Unlock()).To(Succeed()) }()
			Expect(look(tool).Chains).To(ContainElement("OURS-1"))
		})
	})
})
