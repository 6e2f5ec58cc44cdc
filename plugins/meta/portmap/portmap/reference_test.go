package portmap

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// reference runs a release of the reference plugin as call runs Hawser's.
func (c *container) reference(ref nstest.Reference, command string, more ...Object) {
	GinkgoHelper()
	prev := Merge(c.prevResult(), Object{"cniVersion": "1.0.0"})
	a := c.w.Reference(ref, c.as(command, append([]Object{{"cniVersion": "1.0.0", "prevResult": prev}}, more...)...))
	Expect(a.Code).To(BeZero(), a.Stdout+a.Stderr)
}

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

// saved returns the nat table of both families as iptables saves it.
func (w *world) saved() string {
	GinkgoHelper()
	text := ""
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		for line := range strings.Lines(w.Cmd(program, "-t", "nat")) {
			if !strings.HasPrefix(line, "#") {
				text += counters.ReplaceAllString(line, "[0:0]")
			}
		}
	}
	return text
}

var _ = Describe("together with", Label("kernel"), func() {
	for _, ref := range nstest.QuickReferences() {
		for _, k := range kinds[1:] {
			if ref != nstest.Newest() && k.variant == "legacy" { // the releases' rules do not depend on the variant
				continue
			}
			Context(ref.Name+" on "+k.name+":", nstest.Variant(k.variant), func() { besideReference(ref, k) })
		}
	}
})

// besideReference registers the specs of a release and a variant of iptables: rules that each plugin creates and
// removes, and, for the newest release, decisions about them, because the rules of all releases are the same.
func besideReference(ref nstest.Reference, k kind) {
	mapped := ports("8080:80", "192.0.2.1:8081:81", "[::]:53:53/udp", "0.0.0.0:54:53/udp", "127.0.0.1:9:9/sctp")

	var w *world
	var c *container

	BeforeEach(func() {
		nstest.UseVariant(k.variant)
		w, c = newContainer()
		c.serve(80)
	})

	sameRules := func(config Object) {
		GinkgoHelper()
		c.reference(ref, "ADD", k.config, config, mapped)
		theirs := w.saved()
		c.reference(ref, "DEL", k.config, config, mapped)
		empty := w.saved()
		c.add(k.config, config, mapped)
		Expect(w.saved()).To(Equal(theirs))
		c.check(k.config, config, mapped)
		c.del()
		Expect(w.saved()).To(Equal(empty))
	}

	DescribeTable("the rules are the same byte for byte", Label("portmap-format"), sameRules,
		Entry("by default", Object{}),
		Entry("with snat off", Object{"snat": false}),
		Entry("with another bit", Object{"markMasqBit": 7}),
		Entry("with an external chain that marks", Object{"externalSetMarkChain": "KUBE-MARK-MASQ", "snat": false}),
		Entry("with conditions", Object{"conditionsV4": []string{"!", "-s", "203.0.113.0/24"},
			"conditionsV6": []string{"-s", "2001:db8::/32", "-m", "mark", "--mark", "0x7"}}),
	)

	It("the reference's DEL removes Hawser's rules", Label("portmap-format"), func() {
		c.reference(ref, "ADD", k.config, mapped)
		c.reference(ref, "DEL", k.config, mapped)
		empty := w.saved()
		c.add(k.config, mapped)
		c.reference(ref, "DEL", k.config, mapped)
		Expect(w.saved()).To(Equal(empty))
		c.del()
		c.add(k.config, mapped)
		c.check(k.config, mapped)
	})

	if ref != nstest.Newest() {
		return
	}

	It("both create the same rules on a new host", func() {
		c.add(k.config, mapped)
		ours := w.saved()
		other := newWorld()
		twin := other.container(1, 2)
		twin.reference(ref, "ADD", k.config, mapped)
		Expect(sortedLines(ours)).To(Equal(sortedLines(other.saved())))
	})

	It("chains of an older version are also removed", func() {
		chain := ipt.ContainerChain("CNI-SN-", c.network, c.id)
		for _, program := range []string{"iptables", "ip6tables"} {
			w.Cmd("sh", "-ec",
				fmt.Sprintf("%[1]s -t nat -N CNI-HOSTPORT-SNAT; %[1]s -t nat -N %[2]s; %[1]s -t nat -A %[2]s -j RETURN",
					program, chain))
		}
		empty := w.saved()
		for _, program := range []string{"iptables", "ip6tables"} {
			w.Cmd(program, "-t", "nat", "-A", "CNI-HOSTPORT-SNAT", "-j", chain)
		}
		c.del()
		Expect(w.saved()).NotTo(ContainSubstring(chain))
		Expect(empty).To(ContainSubstring(chain))
	})

	It("the rules of masqAll, which older releases lack, are also the same", func() {
		sameRules(Object{"masqAll": true})
	})

	It("the reference's DEL of Hawser's attachment releases the host ports", func() {
		other := w.container(1, 3)
		c.add(k.config, mapped)
		c.reference(ref, "DEL", k.config, mapped)
		other.add(k.config, mapped)
		other.del()
		c.add(k.config, mapped)
		c.check(k.config, mapped)
	})

	It("Hawser's CHECK accepts the reference's rules instead of its own", func() {
		other := w.container(1, 3)
		c.add(k.config, mapped)
		c.reference(ref, "DEL", k.config, mapped)
		other.id, other.ifName = c.id, c.ifName // as its next ADD, with another address
		other.reference(ref, "ADD", k.config, mapped)
		other.check(k.config, mapped)
		Expect(other.call("CHECK", k.config, ports("8080:81")).Msg).To(ContainSubstring("changed since ADD"))
		Expect(c.call("CHECK", k.config, mapped).Code).To(Equal(cni.CodeDrift), "the address that it had before")
	})

	It("Hawser's CHECK accepts the reference's rules, with any backend, and detects missing ones", func() {
		c.reference(ref, "ADD", k.config, mapped)
		for _, config := range []Object{{}, k.config} {
			c.check(config, mapped)
		}
		Expect(c.fails("CHECK", cni.CodeDrift, mapped, Object{"markMasqBit": 7})).
			To(And(ContainSubstring("is missing"), Not(ContainSubstring("record"))))
		w.Cmd("sh", "-ec", "echo 0 >/proc/sys/net/ipv4/conf/br1/route_localnet")
		Expect(c.call("CHECK", mapped).Msg).To(ContainSubstring("route_localnet is 0"))
		c.del()
		Expect(c.call("CHECK", mapped).Msg).To(ContainSubstring("there is no record"))
	})

	It("a port of the reference's container is refused, naming the container", func() {
		other := w.container(1, 3)
		other.serve(80)
		other.reference(ref, "ADD", k.config, ports("8080:80"))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		before := w.rules()
		for _, config := range []Object{{}, k.config} {
			Expect(c.fails("ADD", cni.CodePortTaken, config, ports("192.0.2.1:8080:80"))).
				To(ContainSubstring(`host port 192.0.2.1:8080/tcp: held by network "net1", container "c1-3"`))
			Expect(w.rules()).To(Equal(before))
		}
		var o outcome
		nstest.WithoutPrograms(func() { o = c.call("ADD", ports("8081:80")) })
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stderr).To(ContainSubstring("may have rules of other plugins for the same ports"))
		c.del()
		c.add(ports("8081:80", "8080:80/udp"))
		Expect(w.reach(8081)).To(Equal("192.0.2.2"))
		c.del()
	})

	It("a port of a former container of the reference passes to the container that has its address now", func() {
		for _, config := range []Object{{}, k.config} {
			old := &container{w: w, Host: c.Host, network: "net1", id: "dead", ifName: "eth0", ips: c.ips}
			old.reference(ref, "ADD", k.config, ports("8080:81"))
			c.add(config, ports("8080:80"))
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			Expect(w.saved()).NotTo(ContainSubstring(`id: \"dead\"`))
			c.del()
		}
	})
}

var _ = Describe("the reference plugin's rules in nftables", Label("kernel"), func() {
	It("are removed by DEL, and by GC if a record names their owner", func() {
		w := newWorld()
		a, b := w.container(1, 2), w.container(2, 2)
		b.id = a.id
		load := func() {
			for _, v6 := range []bool{false, true} {
				f := map[bool]string{true: "ip6", false: "ip"}[v6]
				text := strings.ReplaceAll("add table F cni_hostport\n"+
					"add chain F cni_hostport hostports { type nat hook prerouting priority -100 ; }\n"+
					"add chain F cni_hostport hostip_hostports\n"+
					"add chain F cni_hostport masquerading { type nat hook postrouting priority 100 ; }\n", "F", f)
				for _, c := range []*container{a, b} {
					addr := c.addr(v6)
					text += fmt.Sprintf("add rule %s cni_hostport hostports tcp dport 8080 dnat to %s comment \"%s\"\n",
						f, net.JoinHostPort(addr, "80"), c.id)
					text += fmt.Sprintf("add rule %[1]s cni_hostport masquerading %[1]s saddr %[2]s %[1]s daddr %[2]s "+
						"masquerade comment \"%[3]s\"\n", f, addr, c.id)
				}
				out := w.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"}, Stdin: text})
				Expect(out.Exit).To(BeZero(), out.Stderr)
			}
		}
		load()
		w.gc("net1")
		Expect(w.Cmd("nft", "list", "ruleset")).To(ContainSubstring("10.1.0.2"), "no network is known")
		o := w.container(1, 3).call("ADD", ports("8080:80"))
		Expect(o.Code).To(Equal(cni.CodePortTaken))
		Expect(o.Msg).To(ContainSubstring(`host port 0.0.0.0:8080/tcp: held by container "c1-2", ` +
			"through the nftables rules of other plugins"))
		w.Cmd("nft",
			"add rule ip cni_hostport hostports ip daddr 127.0.0.1 tcp dport 8085 dnat to 10.1.0.9:80 comment x")
		beside := w.container(1, 4)
		Expect(beside.call("ADD", ports("8085:80")).Code).To(Equal(cni.CodePortTaken))
		beside.add(ports("192.0.2.1:8085:80", "8080:80/udp"))
		beside.del()
		a.add(ports("9000:80"))
		a.del()
		Expect(w.Cmd("nft", "list", "ruleset")).NotTo(MatchRegexp(`10\.1\.0\.2|fd00:1::2`))
		Expect(w.Cmd("nft", "list", "ruleset")).To(And(ContainSubstring("10.2.0.2:80"),
			ContainSubstring("[fd00:2::2]:80")), "the other network's")
		b.del()
		Expect(w.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("dport 8080"))
		w.Cmd("nft", "flush", "ruleset")
		load()
		a.add(ports("9000:80"))
		w.gc("net1", "c1-9/eth0")
		Expect(w.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.1.0.2:80"))
		Expect(w.Cmd("nft", "list", "ruleset")).To(ContainSubstring("10.2.0.2:80"))
	})
})

var _ = Describe("host ports of the newest reference plugin in nftables", Label("kernel"), func() {
	nft := Object{"backend": "nftables"}
	mapped := ports("8080:80", "192.0.2.1:8081:81", "[::]:53:53/udp", "127.0.0.1:9:9/sctp")
	var w *world
	var c *container

	BeforeEach(func() {
		w, c = newContainer()
		c.serve(80)
	})

	rules := func() string {
		return w.Cmd("nft", "list", "table", "ip", "cni_hostport") + w.Cmd("nft", "list", "table", "ip6",
			"cni_hostport")
	}

	DescribeTable("pass CHECK while complete, and end with DEL,", Label("portmap-reference"), func(config Object) {
		other := w.container(1, 3)
		other.reference(nstest.Newest(), "ADD", nft, config, ports("7000:80"))
		before := rules()
		c.reference(nstest.Newest(), "ADD", nft, config, mapped)
		c.check(config, mapped)
		c.check(nft, config, mapped)
		Expect(c.call("CHECK", config, ports("8080:81")).Msg).
			To(ContainSubstring("no rule of host port 0.0.0.0:8080/tcp"))
		Expect(c.call("CHECK", config, ports("127.0.0.1:8080:80")).Code).To(Equal(cni.CodeDrift))
		c.del(config)
		Expect(rules()).To(Equal(before))
		Expect(c.call("CHECK", config, mapped).Msg).To(ContainSubstring("there is no record"))
		other.check(config, ports("7000:80"))
	},
		Entry("by default", Object{}),
		Entry("with snat off", Object{"snat": false}),
		Entry("with masqAll", Object{"masqAll": true}),
		Entry("with conditions", Object{"conditionsV4": []string{"ip", "saddr", "192.0.2.0/24"}}),
	)

	DescribeTable("fail CHECK without", func(command, want string) {
		c.reference(nstest.Newest(), "ADD", nft, mapped)
		c.check(mapped)
		w.Cmd("bash", "-ec", command)
		Expect(c.fails("CHECK", cni.CodeDrift, mapped)).To(ContainSubstring(want))
	},
		Entry("a rule",
			`nft delete rule ip cni_hostport hostports handle $(
				nft -a list chain ip cni_hostport hostports | sed -n 's/.*8081.*handle //p')`,
			"no rule of host port 192.0.2.1:8081/tcp"),
		Entry("the masquerade", `nft flush chain ip6 cni_hostport masquerading`,
			"0 rules masquerade packets to fd00:1::2"),
		Entry("the jump to them", `nft flush chain ip cni_hostport output`,
			`no rule jumps from chain "output" to chain "hostports_all"`),
		Entry("route_localnet", `echo 0 >/proc/sys/net/ipv4/conf/br1/route_localnet`, "route_localnet is 0"),
	)

	It("of a container on two networks are removed by the DEL of their network", func() {
		second := c.second("eth1", 2, 2)
		c.reference(nstest.Newest(), "ADD", nft, mapped)
		second.reference(nstest.Newest(), "ADD", nft, ports("9000:80"))
		second.del()
		c.check(mapped)
		Expect(rules()).NotTo(ContainSubstring("9000"))
	})

	It("masquerade all packets to the container with masqAll, but Hawser's only those to host ports", func() {
		IP(w.out, "route add 10.1.0.0/24 via 192.0.2.1")
		c.serve(81)
		direct := func() string { return ask(w.out, "tcp", c.addr(false)+":81", patience()) }
		masqAll := Object{"masqAll": true}
		c.reference(nstest.Newest(), "ADD", nft, masqAll, mapped)
		Expect(direct()).To(Equal("10.1.0.1"))
		c.reference(nstest.Newest(), "DEL", nft, masqAll, mapped)
		c.add(nft, masqAll, mapped)
		Expect(direct()).To(Equal("192.0.2.2"))
		Expect(w.reach(8080)).To(Equal("10.1.0.1"))
	})

	It("are not removed by GC, because they name no network", Label("portmap-reference"), func() {
		c.reference(nstest.Newest(), "ADD", nft, mapped)
		w.gc("net1")
		c.check(mapped)
		c.del()
		Expect(rules()).NotTo(ContainSubstring("8080"))
	})
})

func sortedLines(text string) []string {
	list := strings.Split(text, "\n")
	slices.Sort(list)
	return list
}
