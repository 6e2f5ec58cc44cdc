package bridge

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// vlans lists a port's VLANs as bridge(8) shows them. "5u" is VLAN 5, untagged and the port's PVID.
func (w *world) vlans(port string) string {
	GinkgoHelper()
	var ports []struct {
		Ifname string
		Vlans  []struct {
			Vlan, VlanEnd int
			Flags         []string
		}
	}
	w.JSON(&ports, "bridge", "-j", "vlan", "show", "dev", port)
	var words []string
	for _, p := range ports {
		for _, v := range p.Vlans {
			word := fmt.Sprint(v.Vlan)
			if v.VlanEnd != 0 {
				word += fmt.Sprint("-", v.VlanEnd)
			}
			switch flags := strings.Join(v.Flags, " "); flags {
			case "":
			case "PVID Egress Untagged":
				word += "u"
			default:
				word += "(" + flags + ")"
			}
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

var _ = Describe("a kernel without VLAN filtering", func() {
	DescribeTable("causes code 2, with the value, for the key", func(more Object, says string) {
		w := newWorld()
		if w.Run(nstest.Program{Path: "ip",
			Args: strings.Fields("link add filtering type bridge vlan_filtering 1")}).Exit == 0 {
			Skip("this kernel has VLAN filtering")
		}
		add := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: conf(more)}
		lacks := And(HavePrefix(says+": "), ContainSubstring("which may lack CONFIG_BRIDGE_VLAN_FILTERING"))
		Expect(w.Fails(add, cni.CodeUnsupportedField)).To(lacks)
		IP(w.Host, "link add name br up type bridge")
		Expect(w.Fails(add, cni.CodeUnsupportedField)).To(lacks)
	},
		Entry("vlan", Object{"vlan": 100}, "vlan: 100"),
		Entry("vlanTrunk", Object{"vlanTrunk": []Object{{"id": 7}}}, "vlanTrunk: [7]"),
	)
})

var _ = Describe("VLANs", Label("kernel"), func() {
	var w *world
	BeforeEach(func() {
		nstest.Need("vlan_filtering")
		w = newWorld()
	})

	DescribeTable("of the port are set by", func(more Object, want string) {
		a := w.Attach("one", conf(more))
		Expect(Show(w.Host, "br").Linkinfo.Data.Filtering).To(Equal(1))
		Expect(w.vlans(hostEnd(a.Result))).To(Equal(want))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
	},
		Entry("vlan", Object{"vlan": 100}, "100u"),
		Entry("vlan 1, which is the default one", Object{"vlan": 1}, "1u"),
		Entry("vlan and preserveDefaultVlan", Object{"vlan": 100, "preserveDefaultVlan": true},
			"1(Egress Untagged) 100u"),
		Entry("vlanTrunk", Object{"vlanTrunk": []Object{{"id": 7}, {"minID": 10, "maxID": 12}}}, "1u 7 10 11 12"),
		Entry("vlan and vlanTrunk", Object{"vlan": 5, "vlanTrunk": []Object{{"minID": 4, "maxID": 6}}},
			"4 5u 6"),
		Entry("a vlanTrunk of all", Object{"vlanTrunk": []Object{{"minID": 1, "maxID": 4094}}}, "1u "+span(2, 4094)),
		Entry("an empty vlanTrunk", Object{"vlanTrunk": []Object{}}, "1u"),
	)

	It("separate containers", func() {
		a, b := w.Attach("one", conf(Object{"vlan": 100})), w.Attach("two", conf(Object{"vlan": 100}))
		c := w.Attach("three", conf(Object{"vlan": 200}))
		from, same, other := a.Host.Wiretap("eth0"), b.Host.Wiretap("eth0"), c.Host.Wiretap("eth0")
		from.Send(from.MAC, nstest.Broadcast, "hello")
		Expect(same.Next()).To(Equal("hello"))
		other.Nothing()
	})

	It("connect a port to a trunk, with tags, and to the gateway of its VLAN", func() {
		nstest.Need("8021q")
		gateway := Object{"isGateway": true, "vlan": 100}
		a := w.Attach("one", l3(gateway), "10.1.0.2/24", "2001:db8:1::2/64")
		Expect(a.Result.Interfaces).To(HaveLen(4))
		Expect(a.Result.Interfaces[3].Name).To(Equal("br.100"))
		Expect(Show(w.Host, "br.100").Addrs()).To(ConsistOf("10.1.0.1/24", "2001:db8:1::1/64"))
		Expect(Show(w.Host, "br").Addrs()).To(BeEmpty())
		Expect(Ping(a.Host, "10.1.0.1") && Ping(a.Host, "2001:db8:1::1")).To(BeTrue())
		w.Succeeds(a.As("CHECK"))

		trunk := w.Attach("trunk", conf(Object{"vlanTrunk": []Object{{"id": 100}}}))
		trunk.Host.IP("link add link eth0 name eth0.100 type vlan id 100",
			"link add link eth0 name eth0.200 type vlan id 200", "link set eth0.200 up", "link set eth0.100 up",
			"addr add 10.1.0.9/24 dev eth0.100")
		Expect(Ping(trunk.Host, "10.1.0.2") && Ping(trunk.Host, "10.1.0.1")).To(BeTrue())
		in, wrong := a.Host.Wiretap("eth0"), trunk.Host.Wiretap("eth0.200")
		wrong.Send(wrong.MAC, nstest.Broadcast, "wrong")
		in.Nothing()

		b := w.Attach("two", l3(gateway), "10.1.0.3/24")
		Expect(Ping(b.Host, "10.1.0.1")).To(BeTrue())
		before := w.Snapshot("links")
		for _, c := range []Attached{a, b} {
			w.Succeeds(c.As("DEL"))
		}
		Expect(before).To(ContainSubstring("ifname=br.100"))
		Expect(Names(w.Host, "")).To(ContainElement("br.100"))
	})

	DescribeTable("are verified by CHECK, which finds", func(command, says string) {
		a := w.Attach("one", l3(Object{"isGateway": true, "vlan": 100, "vlanTrunk": []Object{{"id": 7}}}),
			"10.1.0.2/24")
		w.Succeeds(a.As("CHECK"))
		var gw []struct{ Link string }
		w.JSON(&gw, "ip", "-j", "link", "show", "dev", "br.100")
		command = strings.NewReplacer("PORT", hostEnd(a.Result), "GWPORT", gw[0].Link).Replace(command)
		args := strings.Fields(command)
		w.Cmd(args[0], args[1:]...)
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring(says))
	},
		Entry("a missing VLAN", "bridge vlan del vid 7 dev PORT", "vlan 7 is missing"),
		Entry("an untagged VLAN that became tagged", "bridge vlan add vid 100 dev PORT", "vlan 100 is missing"),
		Entry("an additional VLAN", "bridge vlan add vid 8 dev PORT", "vlan 8 is unexpected"),
		Entry("the gateway down", "ip link set br.100 down", "br.100"),
		Entry("a missing gateway", "ip link del br.100", "br.100"),
		Entry("a missing address of the gateway", "ip addr del 10.1.0.1/24 dev br.100", "10.1.0.1/24"),
		Entry("the gateway's port out of the bridge", "ip link set GWPORT nomaster", "is not a port"),
		Entry("the gateway's port in another VLAN", "bridge vlan del vid 100 dev GWPORT", "vlan 100 is missing"),
	)

	It("cause a warning on an existing bridge without VLAN filtering, which ADD does not turn on", func() {
		IP(w.Host, "link add name br up type bridge")
		cont := nstest.NewNetns()
		a := w.Call(Call{Command: "ADD", Netns: cont.Path, Conf: conf(Object{"vlan": 100})})
		a.Added()
		Expect(a.Stderr).To(ContainSubstring("vlan_filtering"))
		Expect(Show(w.Host, "br").Linkinfo.Data.Filtering).To(BeZero())
	})

	It("get a complete gateway after a killed ADD left an incomplete one", func() {
		c := l3(Object{"isGateway": true, "vlan": 100})
		w.Attach("one", c, "10.1.0.2/24")
		var gw []struct{ Link string }
		w.JSON(&gw, "ip", "-j", "link", "show", "dev", "br.100")
		w.Host.IP("link set br.100 down", "link set "+gw[0].Link+" nomaster")
		b := w.Attach("two", c, "10.1.0.3/24")
		Expect(Ping(b.Host, "10.1.0.1")).To(BeTrue())
	})

	It("get their gateway again after the bridge was deleted", func() {
		c := l3(Object{"isGateway": true, "vlan": 100})
		w.Attach("one", c, "10.1.0.2/24")
		IP(w.Host, "link del dev br")
		b := w.Attach("two", c, "10.1.0.3/24")
		Expect(Ping(b.Host, "10.1.0.1")).To(BeTrue())
		w.Succeeds(b.As("CHECK"))
	})

	It("use a gateway that an administrator created", func() {
		nstest.Need("8021q")
		IP(w.Host, "link add name br up type bridge vlan_filtering 1")
		IP(w.Host, "link add link br name br.100 type vlan id 100")
		w.Cmd("bridge", "vlan", "add", "vid", "100", "dev", "br", "self")
		a := w.Attach("one", l3(Object{"isGateway": true, "vlan": 100}), "10.1.0.2/24")
		Expect(Ping(a.Host, "10.1.0.1")).To(BeTrue())
		w.Succeeds(a.As("CHECK"))
	})

	It("keep the MAC address of a gateway that follows the bridge's while a container is detached",
		Label("gateway-mac"), func() {
			nstest.Need("8021q")
			w.Host.IP("link add name br up type bridge vlan_filtering 1", "link add link br name br.7 type vlan id 7",
				"addr add 10.1.0.1/24 dev br.7")
			w.Cmd("bridge", "vlan", "add", "vid", "7", "dev", "br", "self")
			mac := Show(w.Host, "br.7").Address
			w.losesNothing(w.four(l3(Object{"isGateway": true, "vlan": 7})))
			Expect(Show(w.Host, "br.7").Address).To(Equal(mac))
		})

	It("have a gateway with a MAC address that neither ports nor udev change", Label("gateway-mac"), func() {
		w.losesNothing(w.four(l3(Object{"isGateway": true, "vlan": 7})))
		Expect(w.Cmd("cat", "/sys/class/net/br.7/addr_assign_type")).To(HavePrefix("3"))
	})

	It("have a gateway whose port does not lower the bridge's MTU", Label("bridge-mtu"), func() {
		large := w.Attach("one", conf())
		a := w.Attach("two", l3(Object{"isGateway": true, "vlan": 100, "mtu": 1000}), "10.1.0.2/24")
		Expect(Show(w.Host, "br.100").MTU).To(Equal(1000))
		Expect(Show(w.Host, "br").MTU).To(Equal(1500))
		w.Succeeds(a.As("CHECK"))

		By("until no other port has the larger MTU")
		w.Succeeds(large.As("DEL"))
		w.Attach("three", conf(Object{"mtu": 1000}))
		Expect(Show(w.Host, "br").MTU).To(Equal(1000))
		w.Succeeds(a.As("CHECK"))
	})

	It("have one gateway each", func() {
		for i, id := range []int{100, 200} {
			c := l3(Object{"isGateway": true, "vlan": id})
			a := w.Attach(fmt.Sprint("c", id), c, fmt.Sprintf("10.%d.0.2/24", i))
			Expect(Ping(a.Host, fmt.Sprintf("10.%d.0.1", i))).To(BeTrue())
		}
		Expect(Names(w.Host, "")).To(ContainElements("br.100", "br.200"))
	})
})

func span(first, last int) string {
	var words []string
	for id := first; id <= last; id++ {
		words = append(words, fmt.Sprint(id))
	}
	return strings.Join(words, " ")
}

const spoofTablePrinted = `table bridge hawser {
	comment "Hawser CNI plugins"
	set macspoof_ports_v1 {
		type ifname
		comment "ports whose frames are checked"
		elements = { "veth1" comment "MARK" }
	}

	set macspoof_pairs_v1 {
		type ifname . ether_addr
		comment "port . MAC address of its container"
		elements = { "veth1" . 02:00:00:00:00:01 comment "MARK" }
	}

	chain macspoof_v1 {
		comment "macspoofchk of containers"
		type filter hook prerouting priority dstnat; policy accept;
		iifname @macspoof_ports_v1 iifname . ether saddr != @macspoof_pairs_v1 drop
	}
}
`

// spoofed returns the check of a port. An empty port stands for the attachment's host end.
func spoofed(id, ifName, port string, mac byte) spoofCheck {
	a := cni.Attachment{Network: "net1", ContainerID: id, IfName: ifName}
	return spoofCheck{Attachment: a, Port: cmp.Or(port, iface.HostNames(a)[0]), MAC: net.HardwareAddr{2, 0, 0, 0, 0,
		mac}}
}

// inHost runs fn in the host with a new connection.
func inHost(h *nstest.Host, fn func(context.Context, *nft.Conn) error) error {
	GinkgoHelper()
	var err error
	h.Do(func() {
		nf := nft.New()
		err = fn(context.Background(), nf)
		Expect(nf.Close()).To(Succeed())
	})
	return err
}

var _ = Describe("the MAC spoof check", Label("kernel"), func() {
	var host *nstest.Host
	one := spoofed("c1", "eth0", "veth1", 1)

	add := func(s spoofCheck) error { return inHost(host, s.add) }
	check := func(s spoofCheck) error {
		return inHost(host, func(_ context.Context, nf *nft.Conn) error { return s.verify(nf) })
	}
	del := func(s spoofCheck) error {
		return inHost(host, func(ctx context.Context, nf *nft.Conn) error {
			return deleteSpoofCheck(ctx, nf, s.Attachment, false)
		})
	}
	collect := func(valid ...cni.Attachment) error {
		return inHost(host, func(ctx context.Context, nf *nft.Conn) error {
			return collectSpoofChecks(ctx, nf, cni.NewSet("net1", valid))
		})
	}
	ruleset := func() string { return host.Cmd("nft", "list", "ruleset") }

	BeforeEach(func() {
		nstest.Need("nft", "nft-bridge")
		host = nstest.NewHost()
	})

	It("is restored with the address that the interface had at ADD", func() {
		w := newWorld()
		a := w.Attach("one", l3(Object{"macspoofchk": true}), "10.1.0.2/24")
		mac := Show(a.Host, "eth0").Address
		a.Host.IP("link set eth0 address 02:00:00:00:00:66")
		for _, flush := range []bool{false, true} {
			if flush {
				w.Cmd("nft", "flush", "ruleset")
			}
			w.Reapply(a.As("CHECK"))
			Expect(w.Cmd("nft", "list", "table", "bridge", "hawser")).To(And(ContainSubstring(" . "+mac),
				Not(ContainSubstring("02:00:00:00:00:66"))))
			Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).NotTo(ContainSubstring("MAC spoof check"))
		}
	})

	It("is restored even if the masquerade is not", func() {
		nstest.Need("iptables")
		w := newWorld()
		keys := Object{"macspoofchk": true, "ipMasq": true, "ipMasqBackend": "iptables"}
		a := w.Attach("one", l3(keys), "10.1.0.2/24")
		w.Cmd("sh", "-c", "nft flush ruleset; rm -r /run/hawser/masq")
		Expect(w.Reapply(a.As("CHECK"))).To(ContainSubstring("masquerade: not restored: it has no record"))
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).NotTo(ContainSubstring("MAC spoof check"))
	})

	It("keeps its address if the result has none, as before version 0.3.0", func() {
		w := newWorld()
		a := w.Attach("one", l3(Object{"macspoofchk": true}), "10.1.0.2/24")
		mac := Show(a.Host, "eth0").Address
		a.Host.IP("link set eth0 address 02:00:00:00:00:66")
		a.Result.Text = strings.Replace(a.Result.Text, `"mac": "`+mac+`"`, `"mac": ""`, 1)
		w.Succeeds(a.As("CHECK"))
		Expect(w.Reapply(a.As("CHECK"))).To(BeEmpty())
		Expect(w.Cmd("nft", "list", "table", "bridge", "hawser")).To(And(ContainSubstring(" . "+mac),
			Not(ContainSubstring("02:00:00:00:00:66"))))
	})

	It("is printed in the form that nft reads, with its owner, and can be reloaded", func() {
		Expect(add(one)).To(Succeed())
		want := strings.ReplaceAll(spoofTablePrinted, "MARK", one.Attachment.Mark())
		Expect(ruleset()).To(Equal(want))
		file := GinkgoT().TempDir() + "/saved"
		host.Cmd("sh", "-c", "nft list ruleset >"+file+" && nft flush ruleset && nft -f "+file)
		Expect(ruleset()).To(Equal(want))
		Expect(check(one)).To(Succeed())
	})

	It("has one rule for all ports, and only the new owner's address for a reused port", func() {
		two := spoofed("c2", "eth0", "veth2", 2)
		Expect(add(one)).To(Succeed())
		Expect(add(two)).To(Succeed())
		Expect(strings.Count(host.Cmd("nft", "-j", "list", "ruleset"), `{"rule"`)).To(Equal(1))
		reused := spoofed("c3", "eth0", "veth1", 3)
		Expect(add(reused)).To(Succeed())
		Expect(ruleset()).NotTo(ContainSubstring("02:00:00:00:00:01"))
		Expect(check(one)).To(MatchError(ContainSubstring(`port "veth1"`)))
		Expect(del(one)).To(Succeed())
		Expect(check(reused)).To(Succeed())
		Expect(check(two)).To(Succeed())
		Expect(add(reused)).To(Succeed())
		Expect(check(reused)).To(Succeed())
	})

	DescribeTable("finds, and the next ADD restores if all share it, the loss of", func(change string, repaired bool) {
		Expect(add(one)).To(Succeed())
		host.Cmd("sh", "-c", change)
		Expect(check(one)).NotTo(Succeed())
		Expect(add(spoofed("c2", "eth0", "veth2", 2))).To(Succeed())
		if repaired {
			Expect(check(one)).To(Succeed())
		}
	},
		Entry("the rule", "nft flush table bridge hawser", true),
		Entry("the port", `nft delete element bridge hawser macspoof_ports_v1 '{ "veth1" }'`, false),
		Entry("the address", `nft delete element bridge hawser macspoof_pairs_v1 '{ "veth1" . 02:00:00:00:00:01 }'`,
			false),
		Entry("everything", "nft flush ruleset", false),
	)

	It("is deleted and collected only for its owner, and need not exist", func() {
		Expect(del(one)).To(Succeed())
		Expect(collect()).To(Succeed())
		Expect(ruleset()).To(BeEmpty())
		one := spoofed("c1", "eth0", "", 1)
		second := spoofed("c1", "net1", "veth2", 2)
		elsewhere := spoofed("c1", "eth0", "veth3", 3)
		elsewhere.Attachment.Network = "net2"
		for _, s := range []spoofCheck{one, second, elsewhere} {
			Expect(add(s)).To(Succeed())
		}
		Expect(del(one)).To(Succeed())
		Expect(ruleset()).NotTo(ContainSubstring(one.Attachment.Mark()))
		Expect(check(second)).To(Succeed())
		Expect(add(one)).To(Succeed())
		Expect(collect(cni.Attachment{ContainerID: "c1", IfName: "net1"})).To(Succeed())
		Expect(check(one)).NotTo(Succeed())
		Expect(check(second)).To(Succeed())
		Expect(collect()).To(Succeed())
		Expect(check(second)).NotTo(Succeed())
		Expect(check(elsewhere)).To(Succeed())
	})

	It("is deleted without the lock if the attachment has none", func() {
		Expect(add(spoofed("c1", "eth0", "", 1))).To(Succeed())
		host.Do(func() {
			held := nstest.Must(statefile.LockFile(context.Background(), nft.LockPath, 0o600))
			defer held.Unlock()
			nf := nft.New()
			c1, c2 := one.Attachment, spoofed("c2", "eth0", "", 2).Attachment
			Expect(deleteSpoofCheck(context.Background(), nf, c2, false)).To(Succeed())
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			Expect(deleteSpoofCheck(ctx, nf, c1, false)).To(MatchError(statefile.ErrBusy))
			Expect(nf.Close()).To(Succeed())
		})
	})

	It("is deleted for a container whose ID is too long for the name of a chain", func() {
		long := spoofed(strings.Repeat("c", 300), "eth0", "", 1)
		Expect(add(long)).To(Succeed())
		Expect(del(long)).To(Succeed())
		Expect(ruleset()).NotTo(ContainSubstring("ccc"))
	})

	// reference attaches containers with the reference plugin, which checks their ports.
	reference := func(ref nstest.Reference, ids ...string) {
		GinkgoHelper()
		for _, id := range ids {
			out := host.Run(nstest.Program{Path: ref.Program("bridge"), Stdin: `{"cniVersion": "1.0.0", "name": "net1",
				"type": "bridge", "bridge": "br0",
					"macspoofchk": true}`, Env: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + id,
				"CNI_NETNS=" + nstest.NewNetns().Path, "CNI_IFNAME=eth0", "CNI_PATH=" + ref.Dir()}})
			Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
		}
	}

	for _, ref := range nstest.QuickReferences() {
		It("of "+ref.Name+" passes CHECK, and is deleted", Label("reference-left"), func() {
			reference(ref, "c1", "c2")
			Expect(ruleset()).To(ContainSubstring("cni-br-iface-c1-eth0-mac"))
			Expect(check(one)).To(Succeed())
			host.Cmd("nft", "flush", "chain", "bridge", "nat", "cni-br-iface-c1-eth0-mac")
			Expect(check(one)).NotTo(Succeed())
			Expect(del(one)).To(Succeed())
			Expect(ruleset()).To(And(Not(ContainSubstring("c1-eth0")),
				ContainSubstring("jump cni-br-iface-c2-eth0"), ContainSubstring("jump cni-br-iface-c2-eth0-mac")))
		})
	}
})
