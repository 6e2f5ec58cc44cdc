package ipt_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestIpt(t *testing.T) { nstest.RunSpecs(t, "ipt") }

var _ = DescribeTable("a rule", func(line string, args ...string) {
	rules := ipt.ParseRules([]string{"-P POSTROUTING ACCEPT", "-N X", "-A X " + line})
	Expect(rules).To(Equal([]ipt.Rule{ipt.NewRule("X", args...)}))
	again := ipt.ParseRules([]string{rules[0].Append()})
	Expect(again).To(Equal(rules))
	Expect(rules[0].Delete()).To(HavePrefix("-D X "))
},
	Entry("of plain words", "-s 10.0.0.1/32 -j Y", "-s", "10.0.0.1/32", "-j", "Y"),
	Entry("with a negation", "! -d 224.0.0.0/4 -j Y", "!", "-d", "224.0.0.0/4", "-j", "Y"),
	Entry("with blanks", `-m comment --comment "a b"`, "-m", "comment", "--comment", "a b"),
	Entry("with quotes", `--comment "name: \"n\" id: \"c\""`, "--comment", `name: "n" id: "c"`),
	Entry("with a backslash", `--comment "a\\b"`, "--comment", `a\b`),
	Entry("with an empty word", `--comment "" -j Y`, "--comment", "", "-j", "Y"),
	Entry("with an escaped apostrophe", `--comment "it\'s"`, "--comment", `it's`),
)

var _ = Describe("rules that are compared", func() {
	rule := ipt.NewRule("X", "-s", "10.0.0.1/32", "-m", "comment", "--comment", "c", "-j", "Y")

	It("are equal in any order of their arguments", func() {
		Expect(rule.Equal(
			ipt.NewRule("X", "-m", "comment", "--comment", "c", "-s", "10.0.0.1/32", "-j", "Y"))).To(BeTrue())
		Expect(rule.Equal(ipt.NewRule("Z", rule.Args...))).To(BeFalse())
		Expect(rule.Equal(ipt.NewRule("X", "-s", "10.0.0.1/32", "-j", "Y"))).To(BeFalse())
	})
})

var _ = It("rules are appended to a long chain in no time for each pair", func() {
	var rules []ipt.Rule
	for i := range 10_000 {
		rules = append(rules, ipt.NewRule("X", "-p", "tcp", "--dport", strconv.Itoa(i)))
	}
	e := &ipt.Edit{Rules: slices.Clone(rules)}
	began := time.Now()
	e.Append(rules...)
	Expect(e.Lines).To(BeEmpty())
	Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(5*time.Second)))
})

var _ = Describe("what the reference writes about a container", func() {
	It("is not longer than iptables accepts", func() {
		comment := ipt.OwnerComment("", "net1", strings.Repeat("c", 300))
		Expect(comment).To(And(HaveLen(255), HaveSuffix("ccc...")))
	})
})

var _ = Describe("the programs", Label("kernel"), func() {
	ctx := context.Background()

	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		for _, variant := range []ipt.Variant{ipt.NFT, ipt.Legacy} {
			name := map[nft.Family]string{nft.IPv4: "iptables-", nft.IPv6: "ip6tables-"}[family] + string(variant)

			It("change a table completely or not at all, with "+name, func() {
				nstest.Need("iptables-" + string(variant))
				host := nstest.NewHost()
				host.Do(func() {
					tool := ipt.Tool{Family: family, Variant: variant}
					comment := `name: "n" it's a\b id: "c"`
					rule := ipt.NewRule("OURS", "-m", "comment", "--comment", comment, "-j", "ACCEPT")
					Expect(tool.Restore(ctx, "nat", []string{":OURS - [0:0]", rule.Append()})).To(Succeed())
					Expect(look(tool).Rules).To(Equal([]ipt.Rule{rule}))
					err := tool.Restore(ctx, "nat", []string{"-A OURS -j DROP-NOT", rule.Delete()})
					Expect(err).To(HaveOccurred())
					Expect(err.Error()).To(ContainSubstring("DROP-NOT"))
					Expect(look(tool).Rules).To(Equal([]ipt.Rule{rule}))
					Expect(tool.Restore(ctx, "nat", []string{rule.Delete(), "-X OURS"})).To(Succeed())
					Expect(look(tool).HasChain("OURS")).To(BeFalse())
				})
			})
		}

		It("are found in the kernel's x_tables without creating a table", func() {
			nstest.Need("iptables-legacy")
			host := nstest.NewHost()
			host.Do(func() {
				tool := ipt.Tool{Family: family, Variant: ipt.Legacy}
				Expect(*look(tool)).To(BeZero())
				for _, f := range []string{"ip_tables_names", "ip6_tables_names"} {
					data := nstest.Must(os.ReadFile("/proc/thread-self/net/" + f))
					Expect(string(data)).To(BeEmpty())
				}
				Expect(tool.Restore(ctx, "nat", []string{":OURS-1 - [0:0]", "-A OURS-1 -j ACCEPT"})).To(Succeed())
				live := look(tool)
				Expect(live.Chains).To(ContainElements("OURS-1", "POSTROUTING"))
				Expect(live.Rules).To(Equal([]ipt.Rule{ipt.NewRule("OURS-1", "-j", "ACCEPT")}))
				filter := nstest.Must(tool.Read(ctx, "filter"))
				Expect(*filter).To(BeZero())
				GinkgoT().Setenv("PATH", GinkgoT().TempDir())
				_, err := tool.Read(ctx, "nat")
				Expect(ipt.NotInstalled(err)).To(BeTrue(), "%v", err)
			})
		})
	}

	It("get no line that they would cut into two, and no text of several lines", func() {
		tool := ipt.Tool{Family: nft.IPv4, Variant: ipt.NFT}
		for _, rest := range []string{strings.Repeat("x", 10238), "x\n-A Y -j ACCEPT"} {
			lines := []string{"-N X", ipt.NewRule("X", "-m", "comment", "--comment", rest).Append()}
			for _, run := range []func(context.Context, string, []string) error{tool.Restore, tool.Test} {
				err := run(ctx, "nat", lines)
				Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
				Expect(err).To(MatchError(ContainSubstring("rule for iptables: has ")))
			}
		}
	})

	It("are distinguished by the target of the links, or by their --version", func() {
		nstest.Need("iptables-nft")
		dir := GinkgoT().TempDir()
		for _, tail := range []string{"", "-restore"} {
			script := "#!/bin/sh\nexec iptables-nft" + tail + " \"$@\"\n"
			Expect(os.WriteFile(dir+"/iptables"+tail, []byte(script), 0o755)).To(Succeed())
		}
		path := os.Getenv("PATH")
		GinkgoT().Setenv("PATH", dir+":"+path)
		tool := nstest.Must(ipt.FindTool(ctx, nft.IPv4))
		Expect(tool.Variant).To(Equal(ipt.NFT))

		GinkgoT().Setenv("PATH", GinkgoT().TempDir())
		Expect(ipt.FindTool(ctx, nft.IPv6)).Error().To(
			And(MatchError(process.ErrNotFound), MatchError(ContainSubstring("ip6tables-restore"))))
		Expect(ipt.Tool{Family: nft.IPv4, Variant: ipt.Legacy}.Restore(ctx, "nat", nil)).
			To(MatchError(ContainSubstring("iptables-legacy-restore")))
		Expect(strings.Contains(ipt.CheckInstalled(nft.IPv4).Error(), "iptables-restore")).To(BeTrue())
	})
})

var _ = DescribeTable("modules that the kernel lacks are code 2, and named", Label("kernel-lacks"),
	func(program, says, modules string) {
		dir := GinkgoT().TempDir()
		script := "#!/bin/sh\ncat >&2 <<'END'\n" + says + "\nEND\nexit 4\n"
		Expect(os.WriteFile(dir+"/"+program, []byte(script), 0o755)).To(Succeed())
		GinkgoT().Setenv("PATH", dir+":"+os.Getenv("PATH"))
		tool := ipt.Tool{Family: nft.IPv4, Variant: ipt.Legacy}
		if strings.Contains(program, "nft") {
			tool.Variant = ipt.NFT
		}
		err := cni.AsError(tool.Restore(context.Background(), "nat", []string{"-A X -j MASQUERADE"}))
		if modules == "" {
			Expect(err.Code).To(Equal(cni.CodeInternal))
			return
		}
		Expect(err.Code).To(Equal(cni.CodeUnsupportedField))
		Expect(err.Msg).To(HaveSuffix(": not supported by this kernel, which may lack " + modules))
	},
	Entry("nf_tables", "iptables-nft-restore", "iptables-restore v1.8.9 (nf_tables): Could not fetch rule set "+
		"generation id: Invalid argument", "nf_tables"),
	Entry("no permission", "iptables-nft-restore", "iptables-restore v1.8.9 (nf_tables): Could not fetch rule set "+
		"generation id: Permission denied", ""),
	Entry("extensions", "iptables-nft-restore", "Warning: Extension comment revision 0 not supported, missing kernel "+
		"module?\nWarning: Extension tcp revision 0 not supported, missing kernel module?\nWarning: Extension DNAT "+
		"revision 0 not supported, missing kernel module?\nWarning: Extension SNAT revision 0 not supported, missing "+
		"kernel module?\niptables-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (No such file or "+
		"directory): rule in chain X", "nft_compat, xt_comment, xt_tcpudp, xt_nat"),
	Entry("the hook", "iptables-nft-restore", "iptables-restore v1.8.9 (nf_tables): \nline 5: CHAIN_ADD failed (No "+
		"such file or directory): chain POSTROUTING", "nft_chain_nat"),
	Entry("a missing chain", "iptables-nft-restore", "iptables-restore v1.8.9 (nf_tables): \nline 5: RULE_APPEND "+
		"failed (No such file or directory): rule in chain X", ""),
	Entry("a legacy table", "iptables-legacy-restore", "iptables-restore v1.8.9 (legacy): iptables-restore: unable to "+
		"initialize table 'nat'", "ip_tables, iptable_nat"),
	Entry("an extension of a legacy table", "iptables-legacy-restore", "Warning: Extension MARK revision 0 not "+
		"supported, missing kernel module?\niptables-restore: line 6 failed", "xt_mark"),
)

var _ = DescribeTable("the key of a backend", func(text *string, want ipt.Backend, failure string) {
	got, err := ipt.ParseBackend("backend", text)
	if failure != "" {
		Expect(err).To(MatchError(failure))
		return
	}
	Expect(err).NotTo(HaveOccurred())
	Expect(got).To(Equal(want))
},
	Entry("absent", nil, ipt.Auto, ""),
	Entry("nftables", new("nftables"), ipt.NFTables, ""),
	Entry("iptables", new("iptables"), ipt.IPTables, ""),
	Entry("empty", new(""), ipt.Auto, `backend: "" is neither "nftables" nor "iptables"`),
	Entry("something else", new("ipvs"), ipt.Auto, `backend: "ipvs" is neither "nftables" nor "iptables"`),
)

// look returns table nat.
func look(tool ipt.Tool) *ipt.Edit {
	GinkgoHelper()
	return nstest.Must(tool.Read(context.Background(), "nat"))
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
			jumps := []ipt.Rule{jump("OURS-1"),
				ipt.NewRule("POSTROUTING", "-o", "--comment", "-m", "comment", "--comment", "-j", "-j", "OURS-1")}

			// inHost creates OURS-1, with two jumps to it, and OURS-2, with none.
			inHost := func(fn func(nf *nft.Conn, tool ipt.Tool)) {
				GinkgoHelper()
				nstest.Need("iptables-" + string(variant))
				nstest.NewHost().Do(func() {
					nf := nft.New()
					defer func() { Expect(nf.Close()).To(Succeed()) }()
					tool := ipt.Tool{Family: family, Variant: variant}
					e := &ipt.Edit{}
					e.SetRules("OURS-1", rules("OURS-1"))
					e.SetRules("OURS-2", rules("OURS-2"))
					lines := append(e.Lines, jumps[0].Append(), jumps[1].Append())
					Expect(tool.Restore(ctx, "nat", lines)).To(Succeed())
					fn(nf, tool)
				})
			}
			of := " of iptables-" + string(variant) + " for IPv" + family.Digit()

			It("is found, with its rules and the jumps to it"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					Expect(named("OURS-1").Variants(ctx, nf)).To(Equal([]ipt.Variant{variant}))
					Expect(named("OURS-3").Variants(ctx, nf)).To(BeEmpty())
					all := slices.Concat(rules("OURS-1"), rules("OURS-2"), jumps)
					Expect(named("OURS-1").Verify(ctx, nf, func(found *ipt.Edit) []error {
						Expect(found.Rules).To(ConsistOf(all))
						return nil
					})).To(Succeed())
					Expect(named("OURS-3").Verify(ctx, nf, nil)).To(MatchError(ContainSubstring("is missing")))
					Expect(named("").Rules(ctx, nf, isOurs)).To(ConsistOf(all))
				})
			})

			It("is removed with the jumps to it, repeatedly"+of, func() {
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

			It("stays, with the jumps for other addresses"+of, func() {
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

			It("is read again if the change fails, and not changed if nothing differs"+of, func() {
				inHost(func(nf *nft.Conn, tool ipt.Tool) {
					looks := 0
					wrong := &ipt.Edit{Rules: []ipt.Rule{jump("OURS-2")}} // as if another program had deleted it
					Expect(tool.EditFrom(ctx, "nat", func() (*ipt.Edit, error) {
						if looks++; looks == 1 {
							return wrong, nil
						}
						return tool.Read(ctx, "nat")
					}, func(e *ipt.Edit) {
						e.Delete(jump("OURS-2").Equal)
						e.Append(jump("OURS-2"))
					})).To(Succeed())
					Expect(looks).To(Equal(2))
					Expect(look(tool).Rules).To(ContainElement(jump("OURS-2")))
					failed := errors.New("no table")
					Expect(tool.EditFrom(ctx, "nat", func() (*ipt.Edit, error) { return nil, failed },
						func(*ipt.Edit) {})).To(MatchError(failed))
					Expect(tool.EditFrom(ctx, "no such table", func() (*ipt.Edit, error) { return &ipt.Edit{}, nil },
						func(*ipt.Edit) {})).To(Succeed())
				})
			})
		}
	}

	It("of the legacy variant is found without waiting for the lock", func() {
		nstest.Need("iptables-legacy")
		nstest.NewHost().Do(func() {
			tool := ipt.Tool{Family: nft.IPv4, Variant: ipt.Legacy}
			Expect(tool.Restore(ctx, "nat", []string{":OURS-1 - [0:0]"})).To(Succeed())
			held := nstest.Must(statefile.LockFile(ctx, "/run/xtables.lock", 0o600))
			defer func() { Expect(held.Unlock()).To(Succeed()) }()
			Expect(look(tool).Chains).To(ContainElement("OURS-1"))
		})
	})
})

// table has chain X with two rules, and chain Y with a jump from FORWARD.
func table() *ipt.Edit {
	return &ipt.Edit{Chains: []string{"FORWARD", "X", "Y"}, Rules: []ipt.Rule{to("X", "ACCEPT"), to("FORWARD", "Y"),
		to("X", "DROP")}}
}

func to(chain, target string) ipt.Rule { return ipt.NewRule(chain, "-j", target) }

var _ = DescribeTable("an edit has the lines of the difference", func(change func(e *ipt.Edit), lines ...string) {
	e := table()
	change(e)
	Expect(append([]string{}, e.Lines...)).To(Equal(lines))
	change(e)
	Expect(append([]string{}, e.Lines...)).To(Equal(lines), "what it is to have it has then")
},
	Entry("none", func(e *ipt.Edit) {
		e.CreateChains("X", "Y")
		e.Prepend(to("X", "DROP"), to("FORWARD", "Y"))
		e.Append(to("X", "ACCEPT"))
		e.SetRules("X", []ipt.Rule{to("X", "ACCEPT"), to("X", "DROP")})
		e.SetRules("Y", nil)
		e.Remove("Z")
	}),
	Entry("missing chains", func(e *ipt.Edit) { e.CreateChains("X", "A", "B") }, "-N A", "-N B"),
	Entry("rules at the beginning", func(e *ipt.Edit) { e.Prepend(to("X", "A"), to("X", "DROP"), to("X", "B")) },
		"-I X -j B", "-I X -j A"),
	Entry("rules at the end", func(e *ipt.Edit) { e.Append(to("X", "A"), to("X", "DROP"), to("Y", "B")) },
		"-A X -j A", "-A Y -j B"),
	Entry("deleted rules", func(e *ipt.Edit) { e.Delete(func(r ipt.Rule) bool { return r.Chain == "X" }) },
		"-D X -j ACCEPT", "-D X -j DROP"),
	Entry("the rules of a chain, in another order", func(e *ipt.Edit) {
		e.SetRules("X", []ipt.Rule{to("X", "DROP"), to("X", "ACCEPT")})
	}, ":X - [0:0]", "-A X -j DROP", "-A X -j ACCEPT"),
	Entry("the rules of a chain that is missing", func(e *ipt.Edit) { e.SetRules("Z", []ipt.Rule{to("Z", "DROP")}) },
		":Z - [0:0]", "-A Z -j DROP"),
	Entry("a chain removed with its rules", func(e *ipt.Edit) { e.Remove("X") }, "-F X", "-X X"),
	Entry("no removal of a chain with a jump to it", func(e *ipt.Edit) { e.Remove("Y") }),
	Entry("a chain whose last jump is deleted", func(e *ipt.Edit) {
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
				e.SetRules(ours.Name, []ipt.Rule{to(ours.Name, "ACCEPT")})
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
			Expect(ours.Verify(ctx, nf, func(found *ipt.Edit) []error {
				Expect(found.Rules).To(Equal([]ipt.Rule{to("OURS", "ACCEPT")}))
				return nil
			})).To(Succeed())
			Expect(host.Cmd("iptables-legacy", "-S")).NotTo(ContainSubstring("OURS"))
			host.Cmd("iptables-legacy", "-N", "OURS")
			Expect(refill(nf)).To(Succeed())
			Expect(host.Cmd("iptables-legacy", "-S", "OURS")).To(ContainSubstring("-j ACCEPT"))
		})
	})

	It("needs no program if no variant has the chain, and otherwise names the missing one", func() {
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

	It("names the program in its errors", func() {
		nstest.Need("iptables-nft")
		nstest.NewHost().Do(func() {
			_, err := ipt.Tool{Family: nft.IPv4, Variant: ipt.NFT}.Read(ctx, "no such table")
			Expect(err).To(MatchError(ContainSubstring(`nft iptables table "no such table": running [`)))
			stopped, stop := context.WithCancelCause(ctx)
			stop(errors.New("the runtime gave up"))
			_, err = ipt.Tool{Family: nft.IPv4, Variant: ipt.NFT}.Read(stopped, "nat")
			Expect(err).To(MatchError(ContainSubstring("the runtime gave up")))
		})
	})
})
