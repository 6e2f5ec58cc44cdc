package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("CHECK", Label("kernel"), func() {
	mapped := ports("8080:80", "192.0.2.1:8081:81", "53:53/udp")

	// changed expects CHECK to fail and to say this.
	changed := func(k kind, command string, want ...string) {
		GinkgoHelper()
		w := newWorld()
		c := w.container(1, 2)
		c.add(k.config, mapped)
		c.check(k.config, mapped)
		command = strings.NewReplacer("@CHAIN", c.chain(), "HASH", ownerHash(c)).Replace(command)
		w.Cmd("sh", "-ec", command)
		o := c.call("CHECK", k.config, mapped)
		Expect(o.Code).To(Equal(cni.CodeDrift), o.text())
		for _, text := range want {
			Expect(o.stdout).To(ContainSubstring(text))
		}
		c.del()
		c.add(k.config, mapped)
		c.check(k.config, mapped)
	}

	Context("on nftables", func() {
		k := kinds[0]
		DescribeTable("notices", func(command string, want ...string) {
			useVariant("nft")
			changed(k, command, want...)
		},
			Entry("a port that is gone", `nft delete element inet hawser portmap4_v1 '{ tcp . 8080 }'`,
				`set \"portmap4_v1\", 0.0.0.0:8080/tcp: ruleset differs: no element`),
			Entry("several, in one answer",
				`nft delete element inet hawser portmap4_v1 '{ tcp . 8080 }';
						nft delete element inet hawser portmap6_v1 '{ udp . 53 }'`, `8080/tcp`, `53/udp`),
			Entry("a port that leads elsewhere",
				`nft delete element inet hawser portmap4_v1 '{ tcp . 8080 }';
						nft add element inet hawser portmap4_v1 \
							'{ tcp . 8080 comment "HASH net1 c1-2 eth0" : 10.1.0.9 . 80 }'`,
				`leads to another address or port`),
			Entry("a port of one address", `nft delete element inet hawser portmap4_at_v1 '{ tcp . 192.0.2.1 . 8081 }'`,
				`portmap4_at_v1\", 192.0.2.1:8081/tcp: ruleset differs: no element`),
			Entry("no masquerade", `nft delete element inet hawser portmap4_via_v1 '{ tcp . 8080 }'`,
				`portmap4_via_v1\", 0.0.0.0:8080/tcp: ruleset differs: no element`),
			Entry("flushed rules", `nft flush table inet hawser`, `portmap_prerouting_v1`, `portmap_output_v1`,
				`portmap_snat13_v1`, `portmap_guard_v1`, `portmap4_masq_v1_13_10.1.0.0/24`),
			Entry("a rule that is gone", `nft flush chain inet hawser portmap_output_v1`,
				`rule \"ip6 daddr ::1 return\" is missing`),
			Entry("route_localnet off", `echo 0 >/proc/sys/net/ipv4/conf/br1/route_localnet`,
				`route_localnet is 0, so 127.0.0.1 leads to no container`),
			Entry("route_localnet without its guard", `nft delete element inet hawser portmap_localnet_v1 '{ "br1" }'`,
				`nothing keeps containers from the host's loopback`),
			Entry("no record", `rm /run/hawser/portmap/HASH.json`, `there is no record`),
		)

		It("notices a port that somebody else has, and ADD leaves it to them", func() {
			w := newWorld()
			c := w.container(1, 2)
			c.add(mapped)
			w.Cmd("sh", "-ec",
				`nft delete element inet hawser portmap4_v1 '{ tcp . 8080 }';
						nft add element inet hawser portmap4_v1 '{ tcp . 8080 comment "mine" : 10.1.0.9 . 80 }'`)
			Expect(c.call("CHECK", mapped).Msg).
				To(ContainSubstring(`8080/tcp: ruleset differs: the element belongs to "mine"`))
			c.del()
			before := w.rules()
			o := c.call("ADD", mapped)
			Expect(o.Code).To(Equal(cni.CodePortTaken))
			Expect(o.Msg).To(ContainSubstring(`held by "mine"`))
			Expect(w.rules()).To(Equal(before))
			Expect(before).To(ContainSubstring("mine"))
		})

		It("notices other conditions", func() {
			w := newWorld()
			c := w.container(1, 2)
			cond := Object{"conditionsV4": []string{"ip", "saddr", "192.0.2.0/24", "counter"}}
			c.add(cond, mapped)
			c.serve(80)
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			c.check(cond, mapped)
			w.Cmd("sh", "-ec",
				strings.ReplaceAll(`nft flush chain inet hawser portmap4_conditions_v1_HASH;
						nft add rule inet hawser portmap4_conditions_v1_HASH ip saddr 10.0.0.0/8 goto portmap4_dnat_v1`,
					"HASH", ownerHash(c)))
			o := c.call("CHECK", cond, mapped)
			Expect(o.Msg).To(ContainSubstring("does not have the rule of conditionsV4"))
			Expect(c.call("CHECK", mapped).Msg).To(ContainSubstring("the configuration changed since ADD"))
		})
	})

	Context("on iptables", func() {
		DescribeTable("notices", func(command string, want ...string) {
			useVariant("nft")
			changed(kinds[1], command, want...)
		},
			Entry("a chain that is gone",
				`iptables -t nat -F CNI-HOSTPORT-DNAT; iptables -t nat -F @CHAIN;
						iptables -t nat -X @CHAIN`, `chain \"CNI-DN-`),
			Entry("an entry that is gone", `ip6tables -t nat -F CNI-HOSTPORT-DNAT`, `ip6 table nat: rule`,
				`--dports 8080,8081`, `--dports 53`),
			Entry("a translation that is gone",
				`iptables -t nat -D @CHAIN -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80`,
				`-j DNAT --to-destination 10.1.0.2:80`),
			Entry("a translation that leads elsewhere",
				`iptables -t nat -D @CHAIN -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80;
						iptables -t nat -A @CHAIN -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.9:80`,
				`10.1.0.2:80`),
			Entry("a mark behind its translation",
				`iptables -t nat -D @CHAIN -s 10.1.0.0/24 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK;
						iptables -t nat -A @CHAIN -s 10.1.0.0/24 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK`,
				`is missing`),
			Entry("marks that changed places",
				`iptables -t nat -R @CHAIN 1 -s 10.1.0.0/24 -d 192.0.2.1 -p tcp --dport 8081 -j CNI-HOSTPORT-SETMARK;
						iptables -t nat -R @CHAIN 4 -s 10.1.0.0/24 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK`,
				`is missing`),
			Entry("no way in", `iptables -t nat -F OUTPUT`,
				`-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT`),
			Entry("no masquerade", `ip6tables -t nat -F CNI-HOSTPORT-MASQ`, `-A CNI-HOSTPORT-MASQ`),
			Entry("route_localnet without its guard",
				`nft delete element inet hawser portmap_localnet_v1 '{ "br1" }'`,
				`nothing keeps containers from the host's loopback`),
		)
	})

	It("asks for a prevResult, and compares what it says", func() {
		w := newWorld()
		c := w.container(1, 2)
		Expect(c.call("CHECK", Object{"prevResult": nil}).Code).To(Equal(cni.CodeConfig))
		c.check()
		c.add(mapped)
		Expect(c.call("CHECK", ports("8080:80")).Msg).To(ContainSubstring("portMappings changed since ADD"))
		c.ips = []string{"10.1.0.77/24"}
		Expect(c.call("CHECK", mapped).Msg).
			To(ContainSubstring("the container's addresses in prevResult changed since ADD"))
	})

	It("knows the backend of the ADD, whatever it would be now", func() {
		useVariant("nft")
		w := newWorld()
		c := w.container(1, 2)
		c.add(Object{"backend": "iptables"}, mapped)
		c.check(mapped)
	})
})
