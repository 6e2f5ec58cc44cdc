package hostile_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// reached asks the pod's server from outside through its host port, and lets the
// pod ask outside.
func reached(n *World, p *Pod, outside *nstest.Host, port string) {
	GinkgoHelper()
	p.Serve("tcp", p.Addr()+":80")
	seen, err := outside.Ask("tcp", "192.0.2.1:"+port)
	Expect(err).NotTo(HaveOccurred())
	Expect(seen).To(HavePrefix("192.0.2.2:"))
	seen, err = p.Ask("tcp", outside.Serve("tcp", "192.0.2.2:0"))
	Expect(err).NotTo(HaveOccurred())
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
