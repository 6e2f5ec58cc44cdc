package portmap

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("CHECK", Label("kernel"), func() {
	mapped := ports("8080:80", "192.0.2.1:8081:81", "53:53/udp")

	// changed checks that CHECK reports the change of a command, and that DEL and ADD repair it.
	changed := func(k kind, command string, want ...string) {
		GinkgoHelper()
		w, c := newContainer()
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
			nstest.UseVariant("nft")
			changed(k, command, want...)
		},
			Entry("a missing port", `nft delete element inet hawser portmap4_v1 '{ tcp . 8080 }'`,
				`set \"portmap4_v1\", 0.0.0.0:8080/tcp: ruleset differs: no element`),
			Entry("several missing ports together",
				`nft delete element inet hawser portmap4_v1 '{ tcp . 8080 }';
						nft delete element inet hawser portmap6_v1 '{ udp . 53 }'`, `8080/tcp`, `53/udp`),
			Entry("a port with another target",
				`nft delete element inet hawser portmap4_v1 '{ tcp . 8080 }';
						nft add element inet hawser portmap4_v1 \
							'{ tcp . 8080 comment "HASH net1 c1-2 eth0" : 10.1.0.9 . 80 }'`,
				`translates to another address or port`),
			Entry("a port of 192.0.2.1", `nft delete element inet hawser portmap4_at_v1 '{ tcp . 192.0.2.1 . 8081 }'`,
				`portmap4_at_v1\", 192.0.2.1:8081/tcp: ruleset differs: no element`),
			Entry("a missing masquerade", `nft delete element inet hawser portmap4_via_v1 '{ tcp . 8080 }'`,
				`portmap4_via_v1\", 0.0.0.0:8080/tcp: ruleset differs: no element`),
			Entry("flushed rules", `nft flush table inet hawser`, `portmap_prerouting_v1`, `portmap_output_v1`,
				`portmap_snat13_v1`, `portmap_guard_v2`, `portmap4_masq_v1_13_10.1.0.0/24`),
			Entry("a missing rule", `nft flush chain inet hawser portmap_output_v1`,
				`rule \"ip6 daddr ::1 return\" is missing`),
			Entry("route_localnet off", `echo 0 >/proc/sys/net/ipv4/conf/br1/route_localnet`,
				`route_localnet is 0, so host ports of 127.0.0.1 do not work`),
			Entry("route_localnet without its guard", `nft delete element inet hawser portmap_localnet_v1 '{ "br1" }'`,
				`no rule keeps containers from the host's loopback`),
			Entry("a missing record", `rm /run/hawser/portmap/HASH.json`, `there is no record`),
		)

		It("detects a port that another program has, which ADD then refuses", func() {
			w, c := newContainer()
			c.add(mapped)
			w.Cmd("sh", "-ec",
				`nft delete element inet hawser portmap4_v1 '{ tcp . 8080 }';
						nft add element inet hawser portmap4_v1 '{ tcp . 8080 comment "mine" : 10.1.0.9 . 80 }'`)
			Expect(c.call("CHECK", mapped).Msg).
				To(ContainSubstring(`8080/tcp: ruleset differs: the element belongs to "mine"`))
			c.del()
			before := w.rules()
			Expect(c.fails("ADD", cni.CodePortTaken, mapped)).To(
				ContainSubstring(`held by "mine", which has no record (another program added it`))
			Expect(w.rules()).To(Equal(before))
			Expect(before).To(ContainSubstring("mine"))
		})

		It("accepts the guard of the first layout, and the next ADD replaces it", func() {
			w, c := newContainer()
			c.add(mapped)
			w.Cmd("sh", "-ec", `nft -f - <<-END
				delete chain inet hawser portmap_guard_v2
				add chain inet hawser portmap_guard_v1 { type filter hook prerouting priority raw; }
				add rule inet hawser portmap_guard_v1 iifname @portmap_localnet_v1 ip daddr 127.0.0.0/8 drop
				add rule inet hawser portmap_guard_v1 iifname @portmap_localnet_v1 ip saddr 127.0.0.0/8 drop
				END`)
			c.check(mapped)
			w.Cmd("nft", "flush", "chain", "inet", "hawser", "portmap_guard_v1")
			Expect(c.call("CHECK", mapped).Msg).To(ContainSubstring("portmap_guard_v2"))
			w.container(1, 3).add(ports("8090:80"))
			Expect(w.rules()).NotTo(ContainSubstring("portmap_guard_v1"))
			c.check(mapped)
		})

		It("notices other conditions", func() {
			w, c := newContainer()
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
		It("also requires the rules of the previous version for ports that are left to another network", func() {
			nstest.UseVariant("nft")
			w := newWorld()
			k := kinds[1]
			c := w.container(1, 2)
			c.add(k.config, ports("0.0.0.0:8080:80"))
			d := c.second("eth1", 2, 2)
			both := ports("8080:80", "9090:90")
			d.add(k.config, both)
			entry := `-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net2\" id: \"c1-2\"" ` +
				"-m multiport --dports "
			Expect(w.Cmd("iptables", "-t", "nat", "-S")).To(And(ContainSubstring(entry+"9090 -j "+d.chain()),
				Not(ContainSubstring("10.2.0.2:80"))))
			Expect(w.Cmd("ip6tables", "-t", "nat", "-S")).To(And(ContainSubstring(entry+"8080,9090 -j "+d.chain()),
				ContainSubstring("--dport 8080 -j DNAT --to-destination [fd00:2::2]:80")))
			d.check(k.config, both)
			By("but none for a family whose ports are all left to the other network")
			e := c.second("eth2", 2, 3)
			four := Object{"name": "net3"}
			e.network = "net3"
			e.add(k.config, four, ports("0.0.0.0:8080:80"))
			Expect(w.natRules()).NotTo(ContainSubstring(e.chain()))
			e.check(k.config, four, ports("0.0.0.0:8080:80"))
		})

		It("also requires the rules of the previous version for a family with conditions and without ports", func() {
			nstest.UseVariant("nft")
			w := newWorld()
			k := kinds[1]
			c := w.container(1, 2)
			four := []Object{k.config, {"conditionsV6": []string{"-s", "fd99::/16"}}, ports("192.0.2.1:8080:80")}
			c.add(four...)
			Expect(w.Cmd("ip6tables", "-t", "nat", "-S", "CNI-HOSTPORT-DNAT")).To(And(ContainSubstring("-s fd99::/16"),
				ContainSubstring("--dports 8080 -j "+c.chain())))
			c.check(four...)
			w.Cmd("ip6tables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT")
			Expect(c.call("CHECK", four...).Msg).To(ContainSubstring("ip6 table nat: rule"))
		})

		DescribeTable("notices", func(command string, want ...string) {
			nstest.UseVariant("nft")
			changed(kinds[1], command, want...)
		},
			Entry("a missing chain",
				`iptables -t nat -F CNI-HOSTPORT-DNAT; iptables -t nat -F @CHAIN;
						iptables -t nat -X @CHAIN`, `chain \"CNI-DN-`),
			Entry("a missing entry rule", `ip6tables -t nat -F CNI-HOSTPORT-DNAT`, `ip6 table nat: rule`,
				`--dports 8080,8081`, `--dports 53`),
			Entry("a missing translation",
				`iptables -t nat -D @CHAIN -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80`,
				`-j DNAT --to-destination 10.1.0.2:80`),
			Entry("a translation to another target",
				`iptables -t nat -D @CHAIN -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80;
						iptables -t nat -A @CHAIN -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.9:80`,
				`10.1.0.2:80`),
			Entry("a mark after its translation",
				`iptables -t nat -D @CHAIN -s 10.1.0.0/24 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK;
						iptables -t nat -A @CHAIN -s 10.1.0.0/24 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK`,
				`is missing`),
			Entry("marks that changed places",
				`iptables -t nat -R @CHAIN 1 -s 10.1.0.0/24 -d 192.0.2.1 -p tcp --dport 8081 -j CNI-HOSTPORT-SETMARK;
						iptables -t nat -R @CHAIN 4 -s 10.1.0.0/24 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK`,
				`is missing`),
			Entry("a missing jump", `iptables -t nat -F OUTPUT`,
				`-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT`),
			Entry("a missing masquerade", `ip6tables -t nat -F CNI-HOSTPORT-MASQ`, `-A CNI-HOSTPORT-MASQ`),
			Entry("route_localnet without its guard",
				`nft delete element inet hawser portmap_localnet_v1 '{ "br1" }'`,
				`no rule keeps containers from the host's loopback`),
		)
	})

	It("requires a prevResult, and compares its addresses", func() {
		_, c := newContainer()
		Expect(c.call("CHECK", Object{"prevResult": nil}).Code).To(Equal(cni.CodeConfig))
		c.check()
		c.add(mapped)
		Expect(c.call("CHECK", ports("8080:80")).Msg).To(ContainSubstring("portMappings changed since ADD"))
		c.ips = []string{"10.1.0.77/24"}
		Expect(c.call("CHECK", mapped).Msg).To(
			ContainSubstring("the container's addresses in prevResult, or the host's route to them, changed since ADD"))
	})

	It("uses the backend of the ADD, also if ADD would use another one now", func() {
		nstest.UseVariant("nft")
		_, c := newContainer()
		c.add(Object{"backend": "iptables"}, mapped)
		c.check(mapped)
	})
})

// generation returns the number of the kernel's nftables ruleset, which each committed batch increments.
func generation(h *nstest.Host) uint32 {
	GinkgoHelper()
	var id uint32
	h.Do(func() {
		fd := nstest.Must(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER))
		defer unix.Close(fd)
		// struct nlmsghdr and struct nfgenmsg
		ask := binary.NativeEndian.AppendUint32(nil, 20)
		ask = binary.NativeEndian.AppendUint16(ask, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN)
		ask = append(binary.NativeEndian.AppendUint16(ask, unix.NLM_F_REQUEST), make([]byte, 12)...)
		Expect(unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})).To(Succeed())
		answer := make([]byte, 4096)
		n, _, err := unix.Recvfrom(fd, answer, 0)
		Expect(err).NotTo(HaveOccurred())
		for rest := answer[20:n]; len(rest) >= 8; rest = rest[(binary.NativeEndian.Uint16(rest)+3)&^3:] {
			if binary.NativeEndian.Uint16(rest[2:]) == unix.NFTA_GEN_ID {
				id = binary.BigEndian.Uint32(rest[4:])
			}
		}
	})
	Expect(id).NotTo(BeZero())
	return id
}

// many returns n mappings, of the port first and those after it.
func many(first, n int, proto string) Object {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("%d:%d/%s", first+i, first+i, proto))
	}
	return ports(list...)
}

var _ = Describe("many mappings", Label("kernel"), func() {
	It("are committed in one batch, and so is one mapping next to them", Label("one-batch"), func() {
		w := newWorld()
		w.settle(kinds[0])
		a, b, c := w.container(1, 2), w.container(1, 3), w.container(1, 4)
		before := generation(w.Host)
		began := time.Now()
		a.add(many(1000, 1000, "tcp"))
		AddReportEntry("1,000 mappings of two families", time.Since(began))
		Expect(generation(w.Host)).To(Equal(before + 1))
		a.check(many(1000, 1000, "tcp"))
		b.ips, c.ips = b.ips[:1], c.ips[:1]
		b.add(many(10000, 10000, "tcp"))
		c.serve(80)
		before = generation(w.Host)
		began = time.Now()
		c.add(ports("8080:80"))
		AddReportEntry("1 mapping with 11,000 present", time.Since(began))
		Expect(generation(w.Host)).To(Equal(before + 1))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		c.check(ports("8080:80"))
		Expect(c.call("ADD", ports("8080:80", "15000:80")).exit).To(Equal(1))
		before = generation(w.Host)
		began = time.Now()
		c.del()
		AddReportEntry("DEL of 1 mapping with 11,000 present", time.Since(began))
		Expect(generation(w.Host)).To(Equal(before + 1))
		before = generation(w.Host)
		b.del()
		Expect(generation(w.Host)).To(Equal(before + 1))
		a.del()
		Expect(parts(w.Cmd("nft", "list", "ruleset"))).To(Equal("\n"))
	})

	It("of one host address are not compared with those of the next ADD in pairs", func() {
		w, a, b := newContainers()
		var list []string
		for i := range 8000 {
			list = append(list, fmt.Sprintf("192.0.2.1:%d:80", 1000+i))
		}
		a.ips, b.ips = a.ips[:1], b.ips[:1]
		a.add(ports(list...))
		began := time.Now()
		b.add(many(1000, 8000, "udp"))
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(5*time.Second)))
		a.del()
		b.del()
		Expect(parts(w.Cmd("nft", "list", "ruleset"))).To(Equal("\n"))
	})

	It("of one number at many addresses are not compared in pairs", func() {
		var wanted, owned []hostPort
		for i := range 50_000 {
			low := [4]byte{10, 0, byte(i >> 8), byte(i)}
			wanted = append(wanted, hostPort{Proto: 6, Port: 80, Addr: netip.AddrFrom4(low)})
			low[1] = 1
			owned = append(owned, hostPort{Proto: 6, Port: 80, Addr: netip.AddrFrom4(low)})
		}
		owned = append(owned, wanted[7])
		began := time.Now()
		out, first := call{&netplugin.Call{}}.conflicts(wanted, owned)
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(5*time.Second)))
		Expect(out).To(Equal(wanted[7:8]))
		Expect(first).To(Equal(wanted[7]))
	})

	It("of one number at many addresses are not compared with each UDP flow", func() {
		r := &record{Addrs: []address{{Addr: netip.MustParsePrefix("10.1.0.2/24")}},
			Mappings: []mapping{{Proto: 17, HostPort: 53, ContainerPort: 1, HostIP: netip.IPv4Unspecified()}}}
		addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
		const count = 50_000
		for i := range count {
			r.Mappings = append(r.Mappings, mapping{Proto: 17, HostPort: 53, ContainerPort: 2, HostIP: addr(i)})
		}
		began := time.Now()
		portsAt := udpPorts(nft.IPv4, []*record{r})
		for i := range 2 * count {
			Expect(len(portsAt(netip.AddrPortFrom(addr(i), 53)))).To(Equal(1 + (2*count-1-i)/count))
		}
		Expect(portsAt(netip.AddrPortFrom(addr(0), 54))).To(BeEmpty())
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(5*time.Second)))
	})

	It("are committed in one batch if they are the first, or replace a former owner's", func() {
		w, a, b := newContainers()
		before := generation(w.Host)
		a.add(many(1000, 300, "udp"))
		Expect(generation(w.Host)).To(Equal(before + 1))
		a.vanish()
		before = generation(w.Host)
		b.add(many(1000, 300, "udp"))
		Expect(generation(w.Host)).To(Equal(before + 1))
		b.check(many(1000, 300, "udp"))
	})

	It("of other containers on the bridge do not make ADD read their records", func() {
		w := newWorld()
		for i := range 8 {
			w.container(1, 2+i).add(ports(fmt.Sprintf("%d:80", 8080+i)))
		}
		w.Cmd("sh", "-ec", "touch -a -d '2 days ago' /run/hawser/portmap/*.json")
		w.container(1, 20).add(ports("9000:80"))
		read := w.Cmd("sh", "-ec", "find /run/hawser/portmap -name '*.json' -amin -60")
		Expect(strings.Fields(read)).To(HaveLen(1), "its own, which is new: %s", read)
	})

	It("leave no files or rules if there are none", Label("one-batch"), func() {
		w, c := newContainer()
		o := c.call("ADD")
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stdout).To(ContainSubstring(`"10.1.0.2/24"`))
		Expect(w.Files("/run/hawser")).To(BeEmpty())
		Expect(w.Cmd("nft", "list", "ruleset")).To(BeEmpty())
	})
})

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
	It("is listed in the form that nft reads, and can be reloaded", func() {
		nstest.NeedProgram("nft")
		w, c := newContainer()
		c.add(ports("8080:80", "192.0.2.1:8081:81", "[::]:53:5353/udp", "0.0.0.0:54:53/udp", "9:9/sctp"))
		list := func() string { // older releases of nft print a priority of the hook output without its name
			return strings.ReplaceAll(w.Cmd("nft", "list", "ruleset"), "priority -99;", "priority dstnat + 1;")
		}
		golden := nstest.Must(os.ReadFile("testdata/ruleset.nft"))
		if os.Getenv("UPDATE") != "" {
			Expect(os.WriteFile("testdata/ruleset.nft", []byte(list()), 0o644)).To(Succeed())
		}
		Eventually(list).Should(Equal(string(golden))) // elements can be listed twice while a map grows
		saved := GinkgoT().TempDir() + "/saved"
		w.Cmd("sh", "-c", "nft list ruleset >"+saved)
		w.Cmd("nft", "flush", "ruleset")
		w.Cmd("nft", "-f", saved)
		c.check(ports("8080:80", "192.0.2.1:8081:81", "[::]:53:5353/udp", "0.0.0.0:54:53/udp", "9:9/sctp"))
	})

	const mapped = `@portmap4_v1
elements = { tcp . 8080 comment "OWNER" : 10.1.0.2 . 80 }
@portmap4_at_v1
elements = { tcp . 127.0.0.1 . 81 comment "OWNER" : 10.1.0.2 . 81 }
`
	DescribeTable("has the elements and chains of", func(config Object, want string) {
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
		Entry("snat off", Object{"snat": false}, mapped),
		Entry("masqAll", Object{"masqAll": true}, mapped+`@portmap4_via_v1
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
		Entry("another bit", Object{"markMasqBit": 31}, mapped+`@portmap4_via_v1
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
		Entry("conditions", Object{"conditionsV4": []string{"ip", "saddr", "!=", "203.0.113.0/24"}},
			mapped+`@portmap4_via_v1
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

var _ = Describe("the name of a chain that masquerades", func() {
	DescribeTable("is not", func(name string) {
		_, ok := chainByName(name)
		Expect(ok).To(BeFalse())
	},
		Entry("a shared chain", "portmap4_dnat_v1"),
		Entry("one with bit 32", "portmap4_masq_v1_32_all"),
		Entry("one without a prefix length", "portmap4_masq_v1_13_10.1.0.0"),
		Entry("an empty one", ""),
	)
})

var _ = Describe("the rules of iptables", func() {
	It("can have the highest bit of the fwmark, also if an int has 32 bits", func() {
		_, rules := (&record{Options: options{SNAT: true, MarkBit: 31}}).sharedRules()
		Expect(rules[len(rules)-1].Option("--mark")).To(Equal("0x80000000/0x80000000"))
	})

	It("have at most fifteen ports each, and protocols in order", func() {
		published := &record{Mappings: []mapping{{6, netip.Addr{}, 99, 1}, {132, netip.Addr{}, 98, 1}}}
		for i := range 31 {
			published.Mappings = append(published.Mappings, mapping{17, netip.Addr{}, uint16(100 + i), 1})
		}
		var got []string
		for _, r := range published.entryRules(nft.IPv4) {
			got = append(got, fmt.Sprintf("%s %d %s", r.Option("-p"), strings.Count(r.Option("--dports"), ",")+1,
				strings.Split(r.Option("--dports"), ",")[0]))
		}
		Expect(got).To(Equal([]string{"sctp 1 98", "tcp 1 99", "udp 15 100", "udp 15 115", "udp 1 130"}))
	})

	DescribeTable("of other programs are decoded as host ports", func(rule string, want string) {
		f, ok := iptHostPort(ipt.NewRule("CNI-DN-1", strings.Fields(rule)...))
		Expect(ok).To(Equal(want != ""))
		if ok {
			Expect(fmt.Sprintf("%s to %s", f, f.Target)).To(Equal(want))
		}
	},
		Entry("all addresses", "-p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.2:8080",
			"0.0.0.0:80/tcp to 10.1.0.2:8080"),
		Entry("one address", "-d 192.0.2.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.1.0.2:53",
			"192.0.2.1:53/udp to 10.1.0.2:53"),
		Entry("IPv6", "-p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00::2]:80", "[::]:80/tcp to [fd00::2]:80"),
		Entry("except a mark", "-p tcp -m tcp --dport 80 -j CNI-HOSTPORT-SETMARK", ""),
		Entry("except a range of ports", "-p tcp --dport 80:90 -j DNAT --to-destination 10.1.0.2:80", ""),
	)
})
