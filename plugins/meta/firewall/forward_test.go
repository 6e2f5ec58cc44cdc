package main

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// dockerStarts is what Docker does to table filter when it starts.
const dockerStarts = `for t in iptables ip6tables; do
	for c in '' -FORWARD -BRIDGE -CT -ISOLATION-STAGE-1 -ISOLATION-STAGE-2 -USER; do
		$t -N DOCKER$c
	done
	$t -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
	$t -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
	$t -A DOCKER-BRIDGE -o docker0 -j DOCKER
	$t -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	$t -A DOCKER ! -i docker0 -o docker0 -j DROP
	$t -A DOCKER-FORWARD -j DOCKER-CT
	$t -A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
	$t -A DOCKER-FORWARD -j DOCKER-BRIDGE
	$t -A DOCKER-FORWARD -i docker0 -j ACCEPT
	$t -I FORWARD -j DOCKER-FORWARD
	$t -I FORWARD -j DOCKER-USER
	$t -P FORWARD DROP
done`

// saved has a whole ruleset saved and loaded again, with the policy that an administrator wrote into the file.
const saved = `for t in iptables ip6tables; do
	$t-save | sed 's/^:FORWARD ACCEPT/:FORWARD DROP/' | $t-restore
done`

// isWhole says that the containers reach what they are to reach, and all that has to be there is.
func (w *world) isWhole(a, b *container) {
	GinkgoHelper()
	a.arrives(true)
	Expect(reaches(w.out, "192.0.2.1:"+hostPort, true)).To(BeTrue())
	Expect(reaches(w.out, "[2001:db8::1]:"+hostPort, true)).To(BeTrue())
	for _, addr := range b.addrs {
		Expect(pings(a.Host, addr, true)).To(BeTrue())
	}
	a.check()
}

// fresh is a host on which no table of iptables was ever made, with two containers that have rules.
func fresh() (w *world, a, b *container) {
	GinkgoHelper()
	nstest.Need("br_netfilter", "nft-inet-nat")
	w = newWorld(1)
	w.SetBridgeNF(true)
	a, b = w.container(1, 2), w.container(1, 3)
	a.add()
	b.add()
	a.Serve("tcp", "[::]:"+servedPort)
	w.out.Serve("tcp", "[::]:80")
	w.nft("%s", dnat)
	return w, a, b
}

var _ = Describe("where FORWARD did not exist yet", Label("kernel"), func() {
	for _, variant := range []string{"nft", "legacy"} {
		Context("on a host with iptables-"+variant, func() {
			BeforeEach(func() { nstest.UseVariant(variant) })

			DescribeTable("containers live on when somebody has it drop", Label("forward-later"), func(script string) {
				w, a, b := fresh()
				w.isWhole(a, b)
				w.Cmd("sh", "-ec", script)
				Expect(w.filter()).To(ContainSubstring("-P FORWARD DROP"))
				w.isWhole(a, b)
			},
				Entry("by its policy", "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP"),
				Entry("as Docker does when it starts", dockerStarts),
				Entry("by a ruleset that was saved with our chains", saved),
			)

			It("it is made as the programs make it", func() {
				w, _, _ := fresh()
				w.forward("DROP")
				for _, program := range []string{"iptables", "ip6tables"} {
					Expect(w.Cmd(program, "-S")).To(Equal(skeleton("CNI-ADMIN")))
					for _, rule := range [][]string{
						{"FORWARD", "-m", "comment", "--comment", "CNI firewall plugin rules", "-j", "CNI-FORWARD"},
						{"HAWSER-ACCEPTED", "-m", "mark", "--mark", "0x1000/0x1000", "-j", "ACCEPT"}} {
						w.Cmd(program, append([]string{"-C"}, rule...)...)
						w.Cmd(program, append([]string{"-D"}, rule...)...)
					}
					Expect(w.Cmd(program+"-save", "-t", "filter")).NotTo(ContainSubstring("incompatible"))
				}
			})
		})
	}

	It("it is made with no program, once, and in the families that a container has", func() {
		w, c := newContainer()
		c.prev["ips"] = c.prev["ips"].([]Object)[:1]
		nstest.WithoutPrograms(func() { Expect(w.Call(c.as("ADD")).Stderr).To(BeEmpty()) })
		c.check()
		Expect(w.Cmd("nft", "list", "tables")).To(And(ContainSubstring("table ip filter"),
			Not(ContainSubstring("table ip6 filter"))))
		before := w.Cmd("iptables", "-S")
		d := w.container(1, 3)
		d.add()
		Expect(w.Cmd("iptables", "-S")).To(Equal(before))
		Expect(w.Cmd("ip6tables", "-S")).To(Equal(before))
	})

	It("it is made in a table that has none", func() {
		w := newWorld(1)
		w.Cmd("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "25", "-j", "DROP")
		w.container(1, 2).add()
		w.forward("DROP")
		Expect(w.Cmd("iptables", "-S")).To(And(ContainSubstring("-A INPUT -p tcp"),
			ContainSubstring("-A HAWSER-ACCEPTED -m mark --mark 0x1000/0x1000 -j ACCEPT")))
	})

	It("it is made beside an administrator's own chains of nft, as the programs do", func() {
		w := newWorld(1)
		own := "chain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n" +
			"\t\tct state new accept\n\t}"
		w.nft("table ip filter { %s; }", own)
		c := w.container(1, 2)
		c.add()
		Expect(w.Cmd("nft", "list", "table", "ip", "filter")).To(ContainSubstring(own))
		w.Cmd("iptables", "-P", "FORWARD", "DROP")
		w.out.Serve("tcp", "[::]:80")
		c.arrives(true)
		c.check()
	})

	It("and was flushed with the whole ruleset, CHECK says so, and the next ADD makes it again", func() {
		w, a, _ := fresh()
		w.Cmd("nft", "delete", "table", "ip", "filter")
		Expect(a.drifts()).To(ContainSubstring(`nothing leads from FORWARD to "CNI-FORWARD"`))
		w.Cmd("nft", "flush", "ruleset")
		d := w.container(1, 4)
		d.add()
		d.check()
		w.forward("DROP")
		d.arrives(true)
	})
})

const (
	ourBit   = "0x1000"
	otherBit = "0x20000"
)

// marks is a world whose FORWARD drops, with a container of ours, a container of nobody, and a server outside.
func marks(variant string, keys ...Object) (w *world, ours, foreign *container) {
	GinkgoHelper()
	nstest.UseVariant(variant)
	w = newWorld(1)
	w.forward("DROP")
	ours, foreign = w.container(1, 2), w.container(1, 3)
	ours.add(keys...)
	w.out.Serve("tcp", "[::]:80")
	return w, ours, foreign
}

// arrives says of both families whether a connection outside is answered.
func (c *container) arrives(wanted bool) {
	GinkgoHelper()
	for _, to := range []string{"192.0.2.2:80", "[2001:db8::2]:80"} {
		Expect(reaches(c.Host, to, wanted)).To(Equal(wanted), to)
	}
}

// nft loads a script.
func (w *world) nft(format string, args ...any) {
	GinkgoHelper()
	out := w.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"}, Stdin: fmt.Sprintf(format, args...)})
	Expect(out.Exit).To(BeZero(), out.Stderr)
}

// mangle appends a rule for both families to table mangle.
func (w *world) mangle(rule string) {
	GinkgoHelper()
	w.Cmd("sh", "-ec", "for t in iptables ip6tables; do $t -t mangle -A "+rule+"; done")
}

var _ = Describe("the bit of the fwmark", Label("kernel"), func() {
	for _, variant := range []string{"nft", "legacy"} {
		Context("beside iptables-"+variant, func() {
			DescribeTable("opens FORWARD to nobody else who marks packets with it", Label("fwmark"), func(
				mark func(w *world),
			) {
				w, ours, foreign := marks(variant)
				mark(w)
				ours.arrives(true)
				foreign.arrives(false)
				ours.del()
				ours.arrives(false)
				foreign.arrives(false)
			},
				Entry("before they are routed, as policy routing does",
					func(w *world) { w.mangle("PREROUTING -j MARK --set-xmark " + ourBit + "/" + ourBit) }),
				Entry("while they are forwarded, as QoS does",
					func(w *world) { w.mangle("FORWARD -j MARK --set-xmark " + ourBit + "/" + ourBit) }),
				Entry("in nftables", func(w *world) {
					w.nft("table inet qos { chain c { type filter hook prerouting priority 0; meta mark set %s; }; }",
						ourBit)
				}),
			)

			It("is in no connmark, and all other bits are where they were", func() {
				w, ours, _ := marks(variant)
				w.mangle("PREROUTING -j MARK --set-xmark " + otherBit + "/" + otherBit)
				w.mangle("FORWARD -j CONNMARK --save-mark")
				w.mangle("POSTROUTING -j CONNMARK --save-mark")
				w.nft("table inet look { chain post { type filter hook postrouting priority 400;"+
					"oifname ext meta l4proto tcp jump seen; };"+
					"chain seen { ct mark & %[1]s != 0 drop; meta mark & %[1]s != 0 drop; meta mark & %[2]s == 0 drop;"+
					"ct mark & %[2]s == 0 drop; }; }", ourBit, otherBit)
				ours.arrives(true)
			})
		})
	}

	It("stays on what the host itself sends", func() {
		w, _, _ := marks("nft")
		w.nft("table inet mine { chain out { type route hook output priority mangle; meta mark set %[1]s; };"+
			"chain post { type filter hook postrouting priority 400;"+
			"oifname ext meta l4proto tcp meta mark & %[1]s == 0 drop; }; }", ourBit)
		Expect(reaches(w.Host, "192.0.2.2:80", true)).To(BeTrue())
	})

	It("stays on everybody's packets from the last DEL on, or the last GC", Label("fwmark"), func() {
		w, ours, foreign := marks("nft")
		w.forward("ACCEPT")
		second := w.container(1, 4)
		second.add()
		w.nft("table inet mine { chain pre { type filter hook prerouting priority mangle; meta mark set %[1]s; };"+
			"chain post { type filter hook postrouting priority 400;"+
			"oifname ext meta l4proto tcp meta mark & %[1]s == 0 drop; }; }", ourBit)
		foreign.arrives(false)
		second.del()
		foreign.arrives(false)
		ours.del()
		foreign.arrives(true)
		ours.add()
		foreign.arrives(false)
		w.gc(1)
		foreign.arrives(true)
	})

	It("is gone from FORWARD with the last container, and the chains with it", func() {
		w, ours, _ := marks("nft")
		ours.del()
		Expect(w.filter()).NotTo(ContainSubstring("--mark"))
		Expect(w.Cmd("nft", "list", "table", "inet", "hawser")).NotTo(ContainSubstring("chain"))
		before := w.state()
		ours.del()
		Expect(w.state()).To(Equal(before))
	})

	It("stays in FORWARD while containers live whose records are lost", func() {
		w, ours, _ := marks("nft")
		w.Cmd("sh", "-c", "rm "+recordDir+"/*.json")
		second := w.container(1, 4)
		second.add()
		second.del()
		ours.arrives(true)
	})

	for _, variant := range []string{"nft", "legacy"} {
		It("is the one that the first container has, as long as any lives, beside iptables-"+variant, func() {
			other := Object{"markAcceptBit": 31}
			w, first, _ := marks(variant, other)
			second := w.container(1, 4) // changes the bridge's MAC address, perhaps
			first.check(other)
			first.arrives(true)
			second.add()
			first.arrives(true)
			second.arrives(true)
			Expect(w.filter()).NotTo(ContainSubstring("0x1000"))
			Expect(w.Cmd("nft", "list", "table", "inet", "hawser")).NotTo(ContainSubstring("0x00001000"))
			first.check(other)
			second.check()
			first.del(other)
			second.del()
			second.add()
			second.arrives(true)
			Expect(w.filter()).NotTo(ContainSubstring("0x80000000"))
		})
	}

	It("is nobody's concern on backend iptables", func() {
		w, _, _ := marks("nft", Object{"markAcceptBit": 31})
		c := w.container(1, 4)
		Expect(w.Warns(c.as("ADD", Object{"backend": "iptables"}))).To(BeEmpty())
	})

	It("moves from the chains of an older version, whose rules in FORWARD stay", func() {
		w := newWorld(1)
		w.forward("DROP")
		old, next := w.container(1, 2), w.container(1, 3)
		old.add()
		w.Cmd("sh", "-ec", `rules=$(iptables-save) rules6=$(ip6tables-save)
			old=$(nft list table inet hawser |
				sed -E 's/(forward|accept|clear)12_v1/\1_v1/; s/forward priority 300/postrouting priority 300/')
			sed -i 's/,"markAcceptBit":12//' `+recordDir+`/*.json
			nft delete table inet hawser; echo "$old" | nft -f -
			echo "$rules" | iptables-restore; echo "$rules6" | ip6tables-restore # as the programs make the rules`)
		before := w.filter()
		next.add()
		Expect(w.Cmd("nft", "list", "table", "inet", "hawser")).
			NotTo(MatchRegexp("(forward|accept|clear)_v1|postrouting"))
		Expect(w.filter()).To(Equal(before))
		old.check()
		w.out.Serve("tcp", "[::]:80")
		old.arrives(true)
		old.del()
		next.del()
		Expect(w.filter()).NotTo(ContainSubstring("--mark"))
	})
})
