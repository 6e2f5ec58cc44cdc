package masq_test

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// listed returns the result of List: "net1 c1 eth0 10.1.0.2", with the place where it is kept.
func listed(h *nstest.Host) (lines []string) {
	GinkgoHelper()
	var all []cni.Holding
	before := h.Snapshot() + h.Files("/run")
	with(h, func(ctx context.Context, nf *nft.Conn) { all = nstest.Must(masq.List(ctx, nf)) })
	Expect(h.Snapshot() + h.Files("/run")).To(Equal(before))
	for _, l := range all {
		Expect(l.Kind).To(Equal(cni.HeldMasquerade))
		line := fmt.Sprintf("%s %s %s %s: %s", l.Network, l.ContainerID, l.IfName, l.Value, l.Kept)
		if l.Reference {
			line += " (reference)"
		}
		lines = append(lines, line)
	}
	return lines
}

var _ = Describe("List", Label("kernel"), func() {
	one := config(ipt.IPTables, "c1", "eth0", "10.1.0.2/24", "fd01::2/64")
	two := config(ipt.NFTables, "c2", "eth0", "10.1.0.3/24", "fd01::3/64")

	eachVariant(func(host func() *nstest.Host, _ string) {
		It("has the addresses of both backends", func() {
			Expect(listed(host())).To(BeEmpty())
			Expect(add(host(), one)).To(Succeed())
			Expect(add(host(), two)).To(Succeed())
			file := "/run/hawser/masq/" + chainC1 + ".json"
			Expect(listed(host())).To(ConsistOf("net1 c1 eth0 10.1.0.2: "+file, "net1 c1 eth0 fd01::2: "+file,
				"net1 c2 eth0 10.1.0.3: nft map inet hawser masq4_v2",
				"net1 c2 eth0 fd01::3: nft map inet hawser masq6_v2"))
			Expect(del(host(), one)).To(Succeed())
			Expect(del(host(), two)).To(Succeed())
			Expect(listed(host())).To(BeEmpty())
		})

		It("has the reference plugin's rules in iptables", func() {
			ref, netns := nstest.Newest(), nstest.NewNetns().Path
			reference(ref, host(), "ADD", "true", one, netns)
			kept := ": iptables chain nat " + chainC1 + " (reference)"
			Expect(listed(host())).To(ConsistOf("net1 c1  10.1.0.2"+kept, "net1 c1  fd01::2"+kept))
			reference(ref, host(), "DEL", "true", one, netns)
			Expect(listed(host())).To(BeEmpty())
		})
	})

	It("has the reference plugin's rules in nftables, and no element without a mark of the plugins", func() {
		nstest.Need("nft", "nft-inet-nat")
		host := nstest.NewHost()
		Expect(add(host, two)).To(Succeed())
		Expect(listed(host)).To(HaveLen(2))
		forged := `0123456789abcdef net1 c9 eth0`
		host.Cmd("sh", "-c", fmt.Sprintf(`nft add table inet cni_plugins_masquerade
			nft add chain inet cni_plugins_masquerade masq_checks
			nft add rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.9 ip daddr != 10.1.0.0/24 masquerade \
				comment \"6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one\"
			nft delete element inet hawser masq6_v2 { vc2 . fd01::3 }
			nft add element inet hawser masq6_v2 { vc2 . fd01::3 comment \"%s\" : goto masq_v1_10.1.0.0/24 }`, forged))
		Expect(listed(host)).To(ConsistOf("net1 c2 eth0 10.1.0.3: nft map inet hawser masq4_v2",
			"unit-test one eth0 10.1.0.9: nft chain inet cni_plugins_masquerade masq_checks (reference)"))
	})
})
