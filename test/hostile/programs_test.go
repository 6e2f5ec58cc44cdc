package hostile_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("a host without iptables and nft, with an empty PATH", Label("kernel", "no-programs"), func() {
	It("is served in full", func() {
		nstest.Need("nft-inet-nat")
		n := NewNode()
		n.Env = []string{"PATH="}
		first, second := n.Up(NewPod("first"), Usual("")), NewPod("second")
		n.Must("STATUS", second, Usual(""))
		n.Up(second, Usual("").Port(8081))
		n.Must("CHECK", first, Usual(""))
		n.Must("DEL", first, Usual(""))
		n.Must("CHECK", second, Usual("").Port(8081))
		n.Must("GC", second, Usual("").Valid())
	})

	It("is told so by ADD and STATUS where iptables is asked for, and nothing is left", func() {
		nstest.Need("nft-inet-nat")
		n := NewNode()
		// What an ADD that fails may leave is there.
		n.Must("DEL", n.Up(NewPod("first"), Usual("")), Usual(""))
		before, p := n.Snapshot("links", "nftables", "iptables-legacy"), NewPod("one")
		n.Env = []string{"PATH="}
		for _, e := range Usual("iptables").Only("bridge", "portmap") {
			q := *p
			q.Result = []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + p.Netns +
				`"}],"ips":[{"address":"10.88.0.2/24","interface":0}]}`)
			Expect(n.Chain("ADD", &q, List{e}).Stdout).To(ContainSubstring("iptables-restore"), e.Plugin)
			Expect(n.Chain("STATUS", &q, List{e}).Failed(50)).To(ContainSubstring("iptables-restore"), e.Plugin)
			n.Must("DEL", &q, List{e})
		}
		Expect(n.Snapshot("links", "nftables", "iptables-legacy")).To(Equal(before))
		Expect(p.Snapshot("links")).NotTo(ContainSubstring("eth0"))
	})

	It("does without the programs that ADD had, on iptables over nf_tables, but for firewall's rules", func() {
		nstest.Need("iptables-nft")
		n, list := NewNode(), Usual("iptables")
		nstest.UseVariant("nft")
		n.Must("DEL", n.Up(NewPod("first"), list), list)
		before := n.Snapshot("links", "nftables")
		without := func(l List) string {
			p := n.Up(NewPod("one"), l)
			n.Env = []string{"PATH="}
			n.Must("DEL", p, l)
			n.Env = nil
			return n.Snapshot("links", "nftables")
		}
		Expect(without(list.Only("bridge", "portmap", "tuning"))).To(Equal(before))
		Expect(without(list)).To(ContainSubstring("10.88.0."))
		n.Must("GC", NewPod("one"), list.Valid())
		Expect(n.Snapshot("links", "nftables")).To(Equal(before))
	})
})

// reached asks the pod's server from outside through its host port, and lets the pod ask outside.
func reached(n *World, p *Pod, outside *nstest.Host, port string) {
	GinkgoHelper()
	p.Serve("tcp", p.Addr()+":80")
	seen := nstest.Must(outside.Ask("tcp", "192.0.2.1:"+port))
	Expect(seen).To(HavePrefix("192.0.2.2:"))
	seen = nstest.Must(p.Ask("tcp", outside.Serve("tcp", "192.0.2.2:0")))
	Expect(seen).To(HavePrefix("192.0.2.1:"), "masqueraded")
}

// kinds are the backends, and the iptables that there is.
var kinds = map[string]struct{ backend, variant string }{
	"nftables": {"", "nft"}, "iptables over nf_tables": {"iptables", "nft"}, "legacy iptables": {"iptables", "legacy"},
}

var _ = DescribeTable("somebody flushes the rules of all between ADD and the rest", Label("kernel", "reload"), func(
	kind, flush string, works bool,
) {
	k := kinds[kind]
	nstest.UseVariant(k.variant)
	n := NewNode()
	outside := nstest.NewOutside(n.Host)
	entries := Usual(k.backend)
	p := n.Up(NewPod("one"), entries)
	n.Cmd("bash", "-ec", flush)
	a := n.Chain("CHECK", p, entries)
	Expect(a.Code).To(Equal(1), a.Stdout)
	Expect(a.Stdout).To(ContainSubstring(`"code": 101`))
	if works { // as long as FORWARD does not drop
		Expect(a.Stdout).NotTo(ContainSubstring("inet hawser"))
		reached(n, p, outside, "8080")
	}
	if flush == flushIPTables {
		Expect(n.Cmd("nft", "list", "chain", "inet", "hawser", "portmap_guard_v1")).To(ContainSubstring("drop"),
			"containers are kept from the host's loopback")
	}
	// The next one puts back what all share.
	next := n.Up(NewPod("next"), entries.Port(8081))
	n.Must("CHECK", next, entries.Port(8081))
	reached(n, next, outside, "8081")
	n.Cmd("bash", "-ec", flush)
	for _, q := range []*Pod{p, next} {
		n.Must("DEL", q, entries)
		n.Must("DEL", q, entries)
	}
	Expect(Left(n.Host)).To(BeEmpty())
	Expect(n.Sysctl("net/ipv4/conf/cni0/route_localnet")).To(Equal("0"), "and nothing would guard it")
},
	Entry("with nftables: nft flush ruleset", "nftables", "nft flush ruleset", false),
	Entry("with nftables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)", "nftables", flushIPTables,
		true),
	Entry("with nftables: the rules of one table", "nftables", "nft flush table inet hawser", false),
	Entry("with iptables over nf_tables: nft flush ruleset", "iptables over nf_tables", "nft flush ruleset", false),
	Entry("with iptables over nf_tables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)",
		"iptables over nf_tables", flushIPTables, false),
	Entry("with iptables over nf_tables: iptables -t nat -F", "iptables over nf_tables", "iptables -t nat -F", false),
	Entry("with legacy iptables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)", "legacy iptables",
		flushIPTables, false),
	Entry("with legacy iptables: nft flush ruleset", "legacy iptables", "nft flush ruleset", false),
)

// flushIPTables empties and removes every chain of the tables that firewalls use.
const flushIPTables = `for p in iptables ip6tables; do
	for t in raw mangle nat filter; do $p -t $t -F; $p -t $t -X; done
done`
