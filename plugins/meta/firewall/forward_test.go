package main

import (
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
	w = newWorld()
	w.SetBridgeNF(true)
	w.bridge(1)
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
			BeforeEach(func() { useVariant(variant) })

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
		w := newWorld()
		w.bridge(1)
		c := w.container(1, 2)
		c.prev["ips"] = c.prev["ips"].([]Object)[:1]
		withoutPrograms(func() { Expect(w.Call(c.as("ADD")).Stderr).To(BeEmpty()) })
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
		w := newWorld()
		w.bridge(1)
		w.Cmd("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "25", "-j", "DROP")
		w.container(1, 2).add()
		w.forward("DROP")
		Expect(w.Cmd("iptables", "-S")).To(And(ContainSubstring("-A INPUT -p tcp"),
			ContainSubstring("-A HAWSER-ACCEPTED -m mark --mark 0x1000/0x1000 -j ACCEPT")))
	})

	It("it is made beside an administrator's own chains of nft, as the programs do", func() {
		w := newWorld()
		w.bridge(1)
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
