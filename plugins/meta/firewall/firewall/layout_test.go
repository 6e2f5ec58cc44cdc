package firewall

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// firstLayout is the first layout's part of table inet hawser that is not in the present layout.
const firstLayout = `
delete chain inet hawser firewall_forward12_v2
delete chain inet hawser firewall_clear12_v2
table inet hawser {
	chain firewall_policy_v1 {
		iifname . oifname @firewall_same_v1 return
		drop
	}
	chain firewall_accept12_v1 {
		meta mark set meta mark | 0x00001000
	}
	chain firewall_forward12_v1 {
		type filter hook forward priority -1; policy accept;
		meta mark & 0x00001000 == 0x00001000 meta mark set meta mark & 0xffffefff
		iifname @firewall_policed_v1 oifname @firewall_policed_v1 jump firewall_policy_v1
		ip saddr @firewall4_v1 goto firewall_accept12_v1
		ip daddr @firewall4_v1 ct state established,related goto firewall_accept12_v1
		ip daddr @firewall4_published_v1 ct status dnat goto firewall_accept12_v1
		ip6 saddr @firewall6_v1 goto firewall_accept12_v1
		ip6 daddr @firewall6_v1 ct state established,related goto firewall_accept12_v1
		ip6 daddr @firewall6_published_v1 ct status dnat goto firewall_accept12_v1
	}
	chain firewall_clear12_v1 {
		type filter hook forward priority 300; policy accept;
		meta mark & 0x00001000 == 0x00001000 meta mark set meta mark & 0xffffefff
	}
}
`

var _ = Describe("the first layout of table inet hawser", Label("kernel"), func() {
	for _, p := range []policy{policyOpen, policySameBridge} {
		It("is accepted by CHECK, and replaced by the next ADD, with policy "+string(p), func() {
			nstest.UseVariant("nft")
			w := newWorld(1, 2)
			w.forward("DROP")
			keys := Object{"ingressPolicy": string(p)}
			old, other, next := w.container(1, 2), w.container(2, 2), w.container(1, 3)
			old.add(keys)
			other.add(keys)
			chains := func() string { return w.Cmd("nft", "list", "chains", "inet") }
			Expect(chains()).To(ContainSubstring("firewall_forward12_v2"))
			w.nft("%s", firstLayout)
			if p != policyOpen {
				w.nft("delete chain inet hawser firewall_policy_v2")
			}
			old.check(keys)
			if p != policyOpen {
				w.nft("flush chain inet hawser firewall_policy_v1")
				Expect(old.drifts(keys)).To(ContainSubstring("firewall_policy_v2"))
				w.nft("add rule inet hawser firewall_policy_v1 iifname . oifname @firewall_same_v1 return; " +
					"add rule inet hawser firewall_policy_v1 drop")
			}
			w.out.Serve("tcp", "[::]:80")
			holds := func() {
				GinkgoHelper()
				old.arrives(true)
				Expect(pings(other.Host, old.addrs[0], p == policyOpen)).To(Equal(p == policyOpen))
			}
			holds()

			next.add() // without a policy
			Expect(chains()).NotTo(MatchRegexp(`firewall_\w*_v1`))
			old.check(keys)
			holds()
			for _, c := range []*container{old, next, other} {
				c.del(keys)
			}
			Expect(chains()).NotTo(ContainSubstring("firewall_"))
		})
	}
})
