package ipt_test

import (
	"context"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/process"
)

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

	It("give their options", func() {
		Expect(rule.Option("-j")).To(Equal("Y"))
		Expect(rule.Option("--comment")).To(Equal("c"))
		Expect(rule.Option("-d")).To(BeEmpty())
		Expect(ipt.NewRule("X", "-j").Option("-j")).To(BeEmpty())
	})
})

var _ = Describe("what the reference writes about a container", func() {
	It("has the hash of network and container, and their names", func() {
		Expect(ipt.ContainerChain("CNI-", "net1", "c1")).To(Equal("CNI-c2d892b58e87e28a12fe6479"))
		Expect(ipt.ContainerChain("CNI-DN-", "net1", "c1")).To(Equal("CNI-DN-c2d892b58e87e28a12fe6"))
		Expect(ipt.IsContainerChain("CNI-", "CNI-c2d892b58e87e28a12fe6479")).To(BeTrue())
		Expect(ipt.IsContainerChain("CNI-", "CNI-DN-c2d892b58e87e28a12fe6")).To(BeFalse())
		Expect(ipt.IsContainerChain("CNI-", "CNI-HOSTPORT-MASQ")).To(BeFalse())
		Expect(ipt.OwnerComment("dnat ", "net1", "c1")).To(Equal(`dnat name: "net1" id: "c1"`))
		for _, comment := range []string{`dnat name: "net1" id: "c1"`, `name: "net1" id: "c1"`} {
			network, id, ok := ipt.ParseOwner(comment)
			Expect([]any{network, id, ok}).To(Equal([]any{"net1", "c1", true}))
		}
		_, _, ok := ipt.ParseOwner("CNI portfwd requiring masquerade")
		Expect(ok).To(BeFalse())
	})

	It("is no longer than iptables takes", func() {
		comment := ipt.OwnerComment("", "net1", strings.Repeat("c", 300))
		Expect(comment).To(And(HaveLen(255), HaveSuffix("ccc...")))
	})
})

var _ = Describe("the programs", Label("kernel"), func() {
	ctx := context.Background()

	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		for _, variant := range []ipt.Variant{ipt.NFT, ipt.Legacy} {
			name := map[nft.Family]string{nft.IPv4: "iptables-", nft.IPv6: "ip6tables-"}[family] + string(variant)

			It("change a table wholly or not at all, with "+name, func() {
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

		It("are looked for in the kernel's x_tables without making a table", func() {
			nstest.Need("iptables-legacy")
			host := nstest.NewHost()
			host.Do(func() {
				tool := ipt.Tool{Family: family, Variant: ipt.Legacy}
				Expect(*look(tool)).To(BeZero())
				for _, f := range []string{"ip_tables_names", "ip6_tables_names"} {
					data, err := os.ReadFile("/proc/thread-self/net/" + f)
					Expect(err).NotTo(HaveOccurred())
					Expect(string(data)).To(BeEmpty())
				}
				Expect(tool.Restore(ctx, "nat", []string{":OURS-1 - [0:0]", "-A OURS-1 -j ACCEPT"})).To(Succeed())
				live := look(tool)
				Expect(live.Chains).To(ContainElements("OURS-1", "POSTROUTING"))
				Expect(live.Rules).To(Equal([]ipt.Rule{ipt.NewRule("OURS-1", "-j", "ACCEPT")}))
				filter, err := tool.Look(ctx, "filter")
				Expect(err).NotTo(HaveOccurred())
				Expect(*filter).To(BeZero())
				GinkgoT().Setenv("PATH", GinkgoT().TempDir())
				_, err = tool.Look(ctx, "nat")
				Expect(ipt.NotInstalled(err)).To(BeTrue(), "%v", err)
			})
		})
	}

	It("are told apart by the name behind the links, or by what they say of themselves", func() {
		nstest.Need("iptables-nft")
		dir := GinkgoT().TempDir()
		for _, tail := range []string{"", "-restore"} {
			script := "#!/bin/sh\nexec iptables-nft" + tail + " \"$@\"\n"
			Expect(os.WriteFile(dir+"/iptables"+tail, []byte(script), 0o755)).To(Succeed())
		}
		path := os.Getenv("PATH")
		GinkgoT().Setenv("PATH", dir+":"+path)
		tool, err := ipt.Find(ctx, nft.IPv4)
		Expect(err).NotTo(HaveOccurred())
		Expect(tool.Variant).To(Equal(ipt.NFT))

		GinkgoT().Setenv("PATH", GinkgoT().TempDir())
		_, err = ipt.Find(ctx, nft.IPv6)
		Expect(err).To(MatchError(process.ErrNotFound))
		Expect(err).To(MatchError(ContainSubstring("ip6tables-restore")))
		Expect(ipt.Tool{Family: nft.IPv4, Variant: ipt.Legacy}.Restore(ctx, "nat", nil)).
			To(MatchError(ContainSubstring("iptables-legacy-restore")))
		Expect(strings.Contains(ipt.CheckInstalled(nft.IPv4).Error(), "iptables-restore")).To(BeTrue())
	})
})

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
