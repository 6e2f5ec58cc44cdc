package hostile_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/test/node"
)

// withGC is a list with the attachments that GC must keep.
func withGC(entries []node.Entry, pods ...*node.Pod) []node.Entry {
	valid := []Object{}
	for _, p := range pods {
		valid = append(valid, Object{"containerID": p.ID, "ifname": "eth0"})
	}
	var out []node.Entry
	for _, e := range entries {
		out = append(out, node.Entry{Plugin: e.Plugin, Keys: Merge(e.Keys, Object{"cni.dev/valid-attachments": valid})})
	}
	return out
}

var _ = Describe("a host without iptables and nft, with an empty PATH", Label("kernel"), func() {
	It("is served in full", func() {
		nstest.Need("nft-inet-nat")
		n := node.New()
		n.Env = []string{"PATH="}
		first, second := n.Add(node.NewPod("first"), node.List("")), node.NewPod("second")
		n.Succeeds("STATUS", second, node.List(""))
		n.Add(second, node.Port(node.List(""), 8081))
		n.Succeeds("CHECK", first, node.List(""))
		n.Succeeds("DEL", first, node.List(""))
		n.Succeeds("CHECK", second, node.Port(node.List(""), 8081))
		n.Succeeds("GC", second, withGC(node.List("")))
		Expect(n.Cmd("nft", "list", "ruleset")).NotTo(MatchRegexp(`[0-9a-f]{16} net `))
		Expect(n.Own()).NotTo(MatchRegexp(`networks/net/[0-9a-f]|\.json `))
	})

	It("is told so by ADD and STATUS where iptables is asked for, and nothing is left", func() {
		nstest.Need("nft-inet-nat")
		n := node.New()
		// What an ADD that fails may leave is there.
		n.Succeeds("DEL", n.Add(node.NewPod("first"), node.List("")), node.List(""))
		before, p := n.Snapshot("links", "nftables", "iptables-legacy"), node.NewPod("one")
		n.Env = []string{"PATH="}
		for _, e := range node.List("iptables")[:2] {
			q := *p
			q.Result = []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + p.Netns +
				`"}],"ips":[{"address":"10.88.0.2/24","interface":0}]}`)
			Expect(n.Chain("ADD", &q, []node.Entry{e}).Stdout).To(ContainSubstring("iptables-restore"), e.Plugin)
			Expect(n.Chain("STATUS", &q, []node.Entry{e}).Failed(50)).To(ContainSubstring("iptables-restore"), e.Plugin)
			n.Succeeds("DEL", &q, []node.Entry{e})
		}
		Expect(n.Snapshot("links", "nftables", "iptables-legacy")).To(Equal(before))
		Expect(p.Snapshot("links")).NotTo(ContainSubstring("eth0"))
	})

	It("does without the programs that ADD had, on iptables over nf_tables", func() {
		nstest.Need("iptables-nft")
		n := node.New()
		useIPTables("nft")
		n.Succeeds("DEL", n.Add(node.NewPod("first"), node.List("iptables")), node.List("iptables"))
		before := n.Snapshot("links", "nftables")
		p := n.Add(node.NewPod("one"), node.List("iptables"))
		n.Env = []string{"PATH="}
		n.Succeeds("DEL", p, node.List("iptables"))
		Expect(n.Snapshot("links", "nftables")).To(Equal(before))
	})
})
