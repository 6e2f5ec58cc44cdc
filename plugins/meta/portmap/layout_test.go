package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// parts returns the lines of a ruleset that belong to attachments: elements, and chains that are not shared.
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
		w, c := newContainer()
		c.add(ports("8080:80", "192.0.2.1:8081:81", "[::]:53:5353/udp", "0.0.0.0:54:53/udp", "9:9/sctp"))
		list := func() string { return w.Cmd("nft", "list", "ruleset") }
		text := list()
		golden := nstest.Must(os.ReadFile("testdata/ruleset.nft"))
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
		w, c := newContainer()
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

const (
	chainC1   = "CNI-DN-45f36743c0e772d73e562"
	commentC1 = `-m comment --comment "dnat name: \"pnet\" id: \"c1\""`
)

// script is what iptables-restore is given.
func script(lines []string) string { return strings.Join(lines, "\n") + "\n" }

var _ = Describe("the rules of iptables", func() {
	v4, v6 := sample(nil).Addrs[0], sample(nil).Addrs[1]

	DescribeTable("are in chains named as the reference does", func(network, id, name string) {
		r := &record{Attachment: cni.Attachment{Network: network, ContainerID: id}}
		Expect(r.chain()).To(Equal(name))
		Expect(referenceSNATChain(nft.IPv4, r).Name).To(Equal(strings.Replace(name, "DN", "SN", 1)))
		Expect(len(name)).To(Equal(28))
	},
		Entry("c1", "pnet", "c1", "CNI-DN-45f36743c0e772d73e562"),
		Entry("c2", "pnet", "c2", "CNI-DN-398934acb76b8c85ef9cb"),
	)

	It("make one restore where all that is shared is there", func() {
		Expect(script(sample(nil).usualLines(v4))).To(Equal(
			`-C PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-C OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-C POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-C CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
-C CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
:` + chainC1 + ` - [0:0]
-A ` + chainC1 + ` -s 10.1.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A ` + chainC1 + ` -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A ` + chainC1 + ` -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
-A ` + chainC1 + ` -s 10.1.0.0/24 -d 192.0.2.1/32 -p tcp -m tcp --dport 8081 -j CNI-HOSTPORT-SETMARK
-A ` + chainC1 + ` -s 127.0.0.1/32 -d 192.0.2.1/32 -p tcp -m tcp --dport 8081 -j CNI-HOSTPORT-SETMARK
-A ` + chainC1 + ` -d 192.0.2.1/32 -p tcp -m tcp --dport 8081 -j DNAT --to-destination 10.1.0.2:81
-A ` + chainC1 + ` -s 10.1.0.0/24 -p udp -m udp --dport 54 -j CNI-HOSTPORT-SETMARK
-A ` + chainC1 + ` -s 127.0.0.1/32 -p udp -m udp --dport 54 -j CNI-HOSTPORT-SETMARK
-A ` + chainC1 + ` -p udp -m udp --dport 54 -j DNAT --to-destination 10.1.0.2:53
-A CNI-HOSTPORT-DNAT -p tcp ` + commentC1 + ` -m multiport --dports 8080,8081 -j ` + chainC1 + `
-A CNI-HOSTPORT-DNAT -p udp ` + commentC1 + ` -m multiport --dports 53,54 -j ` + chainC1 + `
`))
	})

	It("make what is missing of the shared ones, the masquerade first", func() {
		st := sample(func(s *record) { s.Options.MarkBit = 5 })
		live := &ipt.Edit{Chains: []string{hostportDNAT, chainC1}, Rules: []ipt.Rule{
			ipt.NewRule("PREROUTING", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "CNI-HOSTPORT-DNAT")}}
		st.edit(live, v6)
		Expect(script(live.Lines)).To(Equal(`-N CNI-HOSTPORT-SETMARK
-N CNI-HOSTPORT-MASQ
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-I POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x20/0x20
-A CNI-HOSTPORT-MASQ -m mark --mark 0x20/0x20 -j MASQUERADE
-A ` + chainC1 + ` -s fd00:1::/64 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A ` + chainC1 + ` -p tcp -m tcp --dport 8080 -j DNAT --to-destination [fd00:1::2]:80
-A ` + chainC1 + ` -s fd00:1::/64 -p udp -m udp --dport 53 -j CNI-HOSTPORT-SETMARK
-A ` + chainC1 + ` -p udp -m udp --dport 53 -j DNAT --to-destination [fd00:1::2]:5353
-A CNI-HOSTPORT-DNAT -p tcp ` + commentC1 + ` -m multiport --dports 8080,8081 -j ` + chainC1 + `
-A CNI-HOSTPORT-DNAT -p udp ` + commentC1 + ` -m multiport --dports 53,54 -j ` + chainC1 + `
`))
	})

	It("name fifteen ports in a rule, and protocols in order", func() {
		st := sample(func(s *record) {
			s.Mappings = nil
			for i := range 31 {
				s.Mappings = append(s.Mappings, mapping{17, netip.Addr{}, uint16(100 + i), 1})
			}
			s.Mappings = append(s.Mappings, mapping{6, netip.Addr{}, 99, 1}, mapping{132, netip.Addr{}, 98, 1})
		})
		var got []string
		for _, r := range st.entryRules(nft.IPv4) {
			got = append(got, fmt.Sprintf("%s %d %s", r.Option("-p"), strings.Count(r.Option("--dports"), ",")+1,
				strings.Split(r.Option("--dports"), ",")[0]))
		}
		Expect(got).To(Equal([]string{"sctp 1 98", "tcp 1 99", "udp 15 100", "udp 15 115", "udp 1 130"}))
	})

	DescribeTable("that others made are read for what they hold", func(rule string, want string) {
		f, ok := hostPortOf(ipt.NewRule(chainC1, strings.Fields(rule)...))
		Expect(ok).To(Equal(want != ""))
		if ok {
			Expect(fmt.Sprintf("%s to %s", f, f.To)).To(Equal(want))
		}
	},
		Entry("all addresses", "-p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.2:8080",
			"0.0.0.0:80/tcp to 10.1.0.2:8080"),
		Entry("one address", "-d 192.0.2.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.1.0.2:53",
			"192.0.2.1:53/udp to 10.1.0.2:53"),
		Entry("IPv6", "-p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00::2]:80", "[::]:80/tcp to [fd00::2]:80"),
		Entry("a mark", "-p tcp -m tcp --dport 80 -j CNI-HOSTPORT-SETMARK", ""),
		Entry("a port that is none", "-p tcp --dport 80:90 -j DNAT --to-destination 10.1.0.2:80", ""),
	)
})
