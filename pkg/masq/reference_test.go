package masq_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// reference runs a release's bridge in the host.
func reference(ref nstest.Reference, h *nstest.Host, command, ipMasq string, c masq.Config, netns string) {
	GinkgoHelper()
	var addrs []string
	for _, p := range c.Addrs {
		addrs = append(addrs, fmt.Sprintf(`{"address": %q}`, p))
	}
	out := h.Run(nstest.Program{Path: ref.Program("bridge"), Stdin: fmt.Sprintf(`{
		"cniVersion": "1.0.0", "name": %q, "type": "bridge", "bridge": "br0", "ipMasq": %s, "isGateway": true,
		"ipam": {"type": "static", "addresses": [%s]}}`, c.Attachment.Network, ipMasq, strings.Join(addrs, ",")),
		Env: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + c.Attachment.ContainerID, "CNI_NETNS=" + netns,
			"CNI_IFNAME=" + c.Attachment.IfName, "CNI_PATH=" + ref.Dir()}})
	Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
}

var _ = Describe("beside the reference", Label("kernel"), func() {
	for _, ref := range nstest.References() {
		Context("of "+ref.Name, func() { besideReference(ref) })
	}
})

func besideReference(ref nstest.Reference) {
	one := config(ipt.IPTables, "c1", "eth0", "10.1.0.2/24", "fd01::2/64")
	two := config(ipt.IPTables, "c1", "net1", "10.1.0.8/24", "fd01::8/64")

	eachVariant(func(host func() *nstest.Host, _ string) {
		It("writes the same rules", Label("iptables-format"), func() {
			reference(ref, host(), "ADD", "true", one, nstest.NewNetns().Path)
			theirs := natRules(host())
			Expect(check(host(), one)).To(Succeed())
			upgraded := one
			upgraded.Backend = ipt.Auto
			Expect(check(host(), upgraded)).To(Succeed())
			twin := nstest.NewHost()
			Expect(add(twin, one)).To(Succeed())
			Expect(natRules(twin)).To(Equal(theirs))
		})

		DescribeTable("deletes its rules", Label("reference-left"), func(remove func(*nstest.Host, masq.Config) error) {
			before := natRules(host())
			reference(ref, host(), "ADD", "true", one, nstest.NewNetns().Path)
			bystander := config(ipt.IPTables, "c2", "eth0", "10.1.0.3/24")
			reference(ref, host(), "ADD", "true", bystander, nstest.NewNetns().Path)
			Expect(remove(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring(chainC1))
			Expect(check(host(), bystander)).To(Succeed())
			Expect(gc(host(), "net1", cni.Attachment{ContainerID: "c2", IfName: "eth0"})).To(Succeed())
			Expect(check(host(), bystander)).To(Succeed())
			Expect(gc(host(), "net2")).To(Succeed())
			Expect(check(host(), bystander)).To(Succeed())
			Expect(gc(host(), "net1")).To(Succeed())
			Expect(natRules(host())).To(Equal(before))
			Expect(host().Cmd("sh", "-c", "ls -I lock /run/hawser/masq || true")).To(BeEmpty())
		},
			Entry("by their addresses", del),
			Entry("without knowing them", delBlind),
			Entry("by GC", func(h *nstest.Host, _ masq.Config) error {
				return gc(h, "net1", cni.Attachment{ContainerID: "c2", IfName: "eth0"})
			}),
		)

		It("deletes one interface of a container that the reference made, and leaves the other", func() {
			netns := nstest.NewNetns().Path
			reference(ref, host(), "ADD", "true", one, netns)
			reference(ref, host(), "ADD", "true", two, netns)
			Expect(del(host(), two)).To(Succeed())
			Expect(check(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("10.1.0.8"))
			Expect(del(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})

		It("adds an interface to a container that the reference made", func() {
			three := config(ipt.IPTables, "c1", "net2", "10.4.0.8/24", "fd04::8/64")
			reference(ref, host(), "ADD", "true", one, nstest.NewNetns().Path)
			Expect(add(host(), three)).To(Succeed())
			Expect(check(host(), one)).To(Succeed())
			Expect(check(host(), three)).To(Succeed())
			Expect(delBlind(host(), three)).To(Succeed())
			Expect(check(host(), one)).To(Succeed())
			Expect(delBlind(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})

		It("lets the reference delete its own rules", Label("reference-del"), func() {
			netns := nstest.NewNetns().Path
			before := natRules(host())
			reference(ref, host(), "ADD", "false", one, netns)
			Expect(add(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(Equal(before))
			reference(ref, host(), "DEL", "true", one, netns)
			Expect(natRules(host())).To(Equal(before))
			Expect(del(host(), one)).To(Succeed())
			Expect(records(host())).To(BeEmpty())
		})

		It("deletes the jumps of its older versions", func() {
			reference(ref, host(), "ADD", "true", one, nstest.NewNetns().Path)
			host().Cmd("sh", "-c", "iptables -t nat -A POSTROUTING -s 10.1.0.2/24 "+commentC1+" -j "+chainC1)
			Expect(del(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})
	})
}

var _ = Describe("beside the reference's nftables", Label("kernel"), func() {
	DescribeTable("deletes its nftables rules", Label("reference-left"), func(
		remove func(*nstest.Host, masq.Config) error,
	) {
		nstest.Need("nft", "nft-inet-nat")
		host := nstest.NewHost()
		rule := func(addr, comment string) string {
			return fmt.Sprintf(
				"add rule inet cni_plugins_masquerade masq_checks ip saddr == %s ip daddr != 10.1.0.0/24 "+
					"masquerade comment \"%s\"\n", addr, comment)
		}
		// Vectors from the reference: network unit-test, interface eth0, container one.
		const mine = "6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one"
		script := "add table inet cni_plugins_masquerade\n" +
			"add chain inet cni_plugins_masquerade masq_checks\n" +
			"add chain inet cni_plugins_masquerade postrouting { type nat hook postrouting priority srcnat; }\n" +
			"add rule inet cni_plugins_masquerade postrouting goto masq_checks\n"
		keep := rule("10.1.0.3", "6fd94d501e58f0aa-0000000000000000, net: unit-test, if: eth1, id: two") +
			rule("10.1.0.4", "c84a55673dc39168-f4d01f2ef4b92245, net: pnet7, if: eth0, id: c1")
		host.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"}, Stdin: script + keep})
		before := host.Cmd("nft", "list", "ruleset")
		host.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"},
			Stdin: rule("10.1.0.2", mine) + rule("10.1.0.7", mine)})
		Expect(host.Cmd("nft", "list", "ruleset")).NotTo(Equal(before))
		c := masq.Config{Attachment: cni.Attachment{Network: "unit-test", ContainerID: "one", IfName: "eth0"}}
		withoutPrograms(func() { Expect(remove(host, c)).To(Succeed()) })
		if want := host.Cmd("nft", "list", "ruleset"); strings.Contains(want, "id: two") {
			Expect(want).To(Equal(before))
		} else {
			Expect(want).To(ContainSubstring("pnet7"))
			Expect(want).NotTo(ContainSubstring("unit-test"))
		}
	},
		Entry("by Del", del),
		Entry("by GC", func(h *nstest.Host, _ masq.Config) error { return gc(h, "unit-test") }),
	)

	It("keeps its nftables rules that are valid", func() {
		nstest.Need("nft", "nft-inet-nat")
		host := nstest.NewHost()
		host.Cmd("sh", "-c", `nft add table inet cni_plugins_masquerade
			nft add chain inet cni_plugins_masquerade masq_checks
			nft add rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.2 masquerade \
				comment \"6fd94d501e58f0aa-287fc69eff0574a2, net: unit-\"`)
		Expect(gc(host, "unit-test", cni.Attachment{ContainerID: "one", IfName: "eth0"})).To(Succeed())
		Expect(host.Cmd("nft", "list", "ruleset")).To(ContainSubstring("10.1.0.2"))
	})
})
