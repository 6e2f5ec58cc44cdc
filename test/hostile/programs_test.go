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
