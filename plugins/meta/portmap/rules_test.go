package main

import (
	"fmt"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

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
		Expect(script(live.Lines())).To(Equal(`-N CNI-HOSTPORT-SETMARK
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
