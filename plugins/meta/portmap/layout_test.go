package main

import (
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// parts returns the lines of a ruleset that belong to attachments: elements,
// and chains that are not shared.
func parts(ruleset string) string {
	var out []string
	keep, elements := false, false
	for line := range strings.Lines(ruleset) {
		if line = strings.TrimRight(line, "\n"); line == "}" {
			keep = false
		}
		name, _, _ := strings.Cut(strings.TrimSpace(line), " {")
		_, name, _ = strings.Cut(name, " ")
		switch {
		case strings.HasPrefix(line, "\tchain "):
			keep = strings.Contains(name, "_masq_") || strings.Contains(name, "_conditions_")
		case strings.HasPrefix(line, "\tmap "), strings.HasPrefix(line, "\tset "):
			keep = false
			out = append(out, "@"+name)
		}
		elements = elements || strings.HasPrefix(line, "\t\telements")
		if keep && line != "" || elements {
			out = append(out, strings.TrimSpace(line))
		}
		elements = elements && !strings.HasSuffix(line, "}")
	}
	var filled []string
	for i, line := range out {
		if strings.HasPrefix(line, "@") && (i+1 == len(out) || strings.HasPrefix(out[i+1], "@") ||
			strings.HasPrefix(out[i+1], "chain")) {
			continue
		}
		filled = append(filled, line)
	}
	return strings.Join(filled, "\n") + "\n"
}

var _ = Describe("the layout in nftables", Label("kernel"), func() {
	It("is in the kernel as an administrator would write it, and outlives a reload", func() {
		nstest.NeedProgram("nft")
		w := newWorld()
		c := w.container(1, 2)
		c.add(ports("8080:80", "192.0.2.1:8081:81", "[::]:53:5353/udp", "0.0.0.0:54:53/udp", "9:9/sctp"))
		list := func() string { return w.Cmd("nft", "list", "ruleset") }
		text := list()
		golden, err := os.ReadFile("testdata/ruleset.nft")
		Expect(err).NotTo(HaveOccurred())
		if os.Getenv("UPDATE") != "" {
			Expect(os.WriteFile("testdata/ruleset.nft", []byte(text), 0o644)).To(Succeed())
		}
		Eventually(list).Should(Equal(string(golden))) // elements stand there twice while a map grows
		text = list()
		saved := GinkgoT().TempDir() + "/saved"
		Expect(os.WriteFile(saved, []byte(text), 0o600)).To(Succeed())
		w.Cmd("nft", "flush", "ruleset")
		w.Cmd("nft", "-f", saved)
		c.check(ports("8080:80", "192.0.2.1:8081:81", "[::]:53:5353/udp", "0.0.0.0:54:53/udp", "9:9/sctp"))
	})

	DescribeTable("follows the options", func(config Object, want string) {
		w := newWorld()
		c := w.container(1, 2)
		c.ips = c.ips[:1]
		all := []Object{config, ports("8080:80", "127.0.0.1:81:81")}
		c.add(all...)
		mark := cni.Attachment{Network: c.network, ContainerID: c.id, IfName: c.ifName}
		got := parts(w.Cmd("nft", "list", "ruleset"))
		Expect(strings.NewReplacer(mark.Mark(), "OWNER", mark.Hash(), "HASH").Replace(got)).To(Equal(want))
		c.check(all...)
		c.del(all...)
		Expect(parts(w.Cmd("nft", "list", "ruleset"))).To(Equal("\n"))
	},
		Entry("snat off", Object{"snat": false}, `@portmap4_v1
elements = { tcp . 8080 comment "OWNER" : 10.1.0.2 . 80 }
@portmap4_at_v1
elements = { tcp . 127.0.0.1 . 81 comment "OWNER" : 10.1.0.2 . 81 }
`),
		Entry("masqAll", Object{"masqAll": true}, `@portmap4_v1
elements = { tcp . 8080 comment "OWNER" : 10.1.0.2 . 80 }
@portmap4_at_v1
elements = { tcp . 127.0.0.1 . 81 comment "OWNER" : 10.1.0.2 . 81 }
@portmap4_via_v1
elements = { tcp . 8080 comment "OWNER" : goto portmap4_masq_v1_13_all }
@portmap4_at_via_v1
elements = { tcp . 127.0.0.1 . 81 comment "OWNER" : goto portmap4_masq_v1_13_all }
@portmap_localnet_v1
elements = { "br1" comment "route_localnet was 0" }
chain portmap4_masq_v1_13_all {
meta mark set meta mark | 0x00002000
goto portmap4_dnat_v1
}
`),
		Entry("another bit", Object{"markMasqBit": 31}, `@portmap4_v1
elements = { tcp . 8080 comment "OWNER" : 10.1.0.2 . 80 }
@portmap4_at_v1
elements = { tcp . 127.0.0.1 . 81 comment "OWNER" : 10.1.0.2 . 81 }
@portmap4_via_v1
elements = { tcp . 8080 comment "OWNER" : goto portmap4_masq_v1_31_10.1.0.0/24 }
@portmap4_at_via_v1
elements = { tcp . 127.0.0.1 . 81 comment "OWNER" : goto portmap4_masq_v1_31_10.1.0.0/24 }
@portmap_localnet_v1
elements = { "br1" comment "route_localnet was 0" }
chain portmap4_masq_v1_31_10.1.0.0/24 {
ip saddr 10.1.0.0/24 meta mark set meta mark | 0x80000000
ip saddr 127.0.0.0/8 meta mark set meta mark | 0x80000000
goto portmap4_dnat_v1
}
`),
		Entry("conditions", Object{"conditionsV4": []string{"ip", "saddr", "!=", "203.0.113.0/24"}}, `@portmap4_v1
elements = { tcp . 8080 comment "OWNER" : 10.1.0.2 . 80 }
@portmap4_at_v1
elements = { tcp . 127.0.0.1 . 81 comment "OWNER" : 10.1.0.2 . 81 }
@portmap4_via_v1
elements = { tcp . 8080 comment "OWNER" : goto portmap4_conditions_v1_HASH }
@portmap4_at_via_v1
elements = { tcp . 127.0.0.1 . 81 comment "OWNER" : goto portmap4_conditions_v1_HASH }
@portmap_localnet_v1
elements = { "br1" comment "route_localnet was 0" }
chain portmap4_masq_v1_13_10.1.0.0/24 {
ip saddr 10.1.0.0/24 meta mark set meta mark | 0x00002000
ip saddr 127.0.0.0/8 meta mark set meta mark | 0x00002000
goto portmap4_dnat_v1
}
chain portmap4_conditions_v1_HASH {
ip saddr != 203.0.113.0/24 goto portmap4_masq_v1_13_10.1.0.0/24
}
`),
	)
})

var _ = Describe("the elements of a host port", func() {
	It("are keyed as the maps are, and lead through a chain named after what it masquerades", func() {
		var got []string
		for _, it := range sample(nil).items() {
			got = append(got, fmt.Sprintf("%s %x %x %s", it.Set, it.Key, it.Data, it.Goto))
			Expect(elementPort(it).String()).To(Equal(it.Name))
		}
		Expect(got).To(ContainElements(
			"portmap4_v1 060000001f900000 0a01000200500000 ",
			"portmap4_at_v1 06000000c00002011f910000 0a01000200510000 ",
			"portmap6_v1 1100000000350000 fd00000100000000000000000000000214e90000 ",
			"portmap6_via_v1 1100000000350000  portmap6_masq_v1_13_fd00-1--/64"))
	})
})

var _ = Describe("the name of a chain that masquerades", func() {
	DescribeTable("says all of the chain", func(name string, want ...string) {
		chain, ok := chainNamed(name)
		Expect(ok).To(BeTrue())
		var rules []string
		for _, r := range chain.Rules {
			rules = append(rules, r.String())
		}
		Expect(rules).To(Equal(want))
	},
		Entry("IPv4", "portmap4_masq_v1_13_10.1.0.0/24", "ip saddr 10.1.0.0/24 meta mark set meta mark | 0x00002000",
			"ip saddr 127.0.0.0/8 meta mark set meta mark | 0x00002000", "goto portmap4_dnat_v1"),
		Entry("IPv6", "portmap6_masq_v1_0_fd00-1--/64", "ip6 saddr fd00:1::/64 meta mark set meta mark | 0x00000001",
			"goto portmap6_dnat_v1"),
		Entry("everything", "portmap6_masq_v1_5_all", "meta mark set meta mark | 0x00000020", "goto portmap6_dnat_v1"),
	)

	DescribeTable("is no other", func(name string) {
		_, ok := chainNamed(name)
		Expect(ok).To(BeFalse())
	},
		Entry("a shared chain", "portmap4_dnat_v1"),
		Entry("a bit too great", "portmap4_masq_v1_32_all"),
		Entry("no prefix", "portmap4_masq_v1_13_10.1.0.0"),
		Entry("none", ""),
	)
})
