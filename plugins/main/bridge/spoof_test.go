package main

import (
	"cmp"
	"context"
	"net"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const spoofTablePrinted = `table bridge hawser {
	comment "Hawser CNI plugins"
	set macspoof_ports_v1 {
		type ifname
		comment "ports whose frames are checked"
		elements = { "veth1" comment "MARK" }
	}

	set macspoof_pairs_v1 {
		type ifname . ether_addr
		comment "port . MAC address of its container"
		elements = { "veth1" . 02:00:00:00:00:01 comment "MARK" }
	}

	chain macspoof_v1 {
		comment "macspoofchk of containers"
		type filter hook prerouting priority dstnat; policy accept;
		iifname @macspoof_ports_v1 iifname . ether saddr != @macspoof_pairs_v1 drop
	}
}
`

// spoofed is the check of a port, called as the attachment's host end when port is empty.
func spoofed(id, ifName, port string, mac byte) spoofCheck {
	a := cni.Attachment{Network: "net1", ContainerID: id, IfName: ifName}
	return spoofCheck{Attachment: a, Port: cmp.Or(port, iface.HostNames(a)[0]), MAC: net.HardwareAddr{2, 0, 0, 0, 0,
		mac}}
}

// inHost runs fn in the host with a connection of its own.
func inHost(h *nstest.Host, fn func(context.Context, *nft.Conn) error) error {
	GinkgoHelper()
	var err error
	h.Do(func() {
		nf := nft.New()
		err = fn(context.Background(), nf)
		Expect(nf.Close()).To(Succeed())
	})
	return err
}

var _ = Describe("the MAC spoof check", Label("kernel"), func() {
	var host *nstest.Host
	one := spoofed("c1", "eth0", "veth1", 1)

	add := func(s spoofCheck) error { return inHost(host, s.add) }
	check := func(s spoofCheck) error {
		return inHost(host, func(_ context.Context, nf *nft.Conn) error { return s.verify(nf) })
	}
	del := func(s spoofCheck) error {
		return inHost(host, func(ctx context.Context, nf *nft.Conn) error {
			return deleteSpoofCheck(ctx, nf, s.Attachment)
		})
	}
	collect := func(valid ...cni.Attachment) error {
		return inHost(host, func(ctx context.Context, nf *nft.Conn) error {
			return collectSpoofChecks(ctx, nf, cni.NewSet("net1", valid))
		})
	}
	ruleset := func() string { return host.Cmd("nft", "list", "ruleset") }

	BeforeEach(func() {
		nstest.Need("nft", "nft-bridge")
		host = nstest.NewHost()
	})

	It("prints as an administrator would write it, with its owner, and reloads", func() {
		Expect(add(one)).To(Succeed())
		want := strings.ReplaceAll(spoofTablePrinted, "MARK", one.Attachment.Mark())
		Expect(ruleset()).To(Equal(want))
		file := GinkgoT().TempDir() + "/saved"
		host.Cmd("sh", "-c", "nft list ruleset >"+file+" && nft flush ruleset && nft -f "+file)
		Expect(ruleset()).To(Equal(want))
		Expect(check(one)).To(Succeed())
	})

	It("has one rule for all, and gives a port that has a new owner only the new address", func() {
		two := spoofed("c2", "eth0", "veth2", 2)
		Expect(add(one)).To(Succeed())
		Expect(add(two)).To(Succeed())
		Expect(strings.Count(host.Cmd("nft", "-j", "list", "ruleset"), `{"rule"`)).To(Equal(1))
		reused := spoofed("c3", "eth0", "veth1", 3)
		Expect(add(reused)).To(Succeed())
		Expect(ruleset()).NotTo(ContainSubstring("02:00:00:00:00:01"))
		Expect(check(one)).To(MatchError(ContainSubstring(`port "veth1"`)))
		Expect(del(one)).To(Succeed())
		Expect(check(reused)).To(Succeed())
		Expect(check(two)).To(Succeed())
		Expect(add(reused)).To(Succeed())
		Expect(check(reused)).To(Succeed())
	})

	DescribeTable("sees what was changed, and the next one repairs what all share", func(change string, repaired bool) {
		Expect(add(one)).To(Succeed())
		host.Cmd("sh", "-c", change)
		Expect(check(one)).NotTo(Succeed())
		Expect(add(spoofed("c2", "eth0", "veth2", 2))).To(Succeed())
		if repaired {
			Expect(check(one)).To(Succeed())
		}
	},
		Entry("the rule", "nft flush table bridge hawser", true),
		Entry("the port", `nft delete element bridge hawser macspoof_ports_v1 '{ "veth1" }'`, false),
		Entry("the address", `nft delete element bridge hawser macspoof_pairs_v1 '{ "veth1" . 02:00:00:00:00:01 }'`,
			false),
		Entry("everything", "nft flush ruleset", false),
	)

	It("deletes and collects its own only, also where there is nothing", func() {
		Expect(del(one)).To(Succeed())
		Expect(collect()).To(Succeed())
		Expect(ruleset()).To(BeEmpty())
		one := spoofed("c1", "eth0", "", 1)
		second := spoofed("c1", "net1", "veth2", 2)
		elsewhere := spoofed("c1", "eth0", "veth3", 3)
		elsewhere.Attachment.Network = "net2"
		for _, s := range []spoofCheck{one, second, elsewhere} {
			Expect(add(s)).To(Succeed())
		}
		Expect(del(one)).To(Succeed())
		Expect(ruleset()).NotTo(ContainSubstring(one.Attachment.Mark()))
		Expect(check(second)).To(Succeed())
		Expect(add(one)).To(Succeed())
		Expect(collect(cni.Attachment{ContainerID: "c1", IfName: "net1"})).To(Succeed())
		Expect(check(one)).NotTo(Succeed())
		Expect(check(second)).To(Succeed())
		Expect(collect()).To(Succeed())
		Expect(check(second)).NotTo(Succeed())
		Expect(check(elsewhere)).To(Succeed())
	})

	It("is nobody's business who has none: the lock is not taken", func() {
		Expect(add(spoofed("c1", "eth0", "", 1))).To(Succeed())
		host.Do(func() {
			held := nstest.Must(statefile.LockFile(context.Background(), nft.LockPath, 0o600))
			defer held.Unlock()
			nf := nft.New()
			c1, c2 := one.Attachment, spoofed("c2", "eth0", "", 2).Attachment
			Expect(deleteSpoofCheck(context.Background(), nf, c2)).To(Succeed())
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			Expect(deleteSpoofCheck(ctx, nf, c1)).To(MatchError(statefile.ErrBusy))
			Expect(nf.Close()).To(Succeed())
		})
	})

	It("has nothing to delete for a container whose ID no chain could be named after", func() {
		long := spoofed(strings.Repeat("c", 300), "eth0", "", 1)
		Expect(add(long)).To(Succeed())
		Expect(del(long)).To(Succeed())
		Expect(ruleset()).NotTo(ContainSubstring("ccc"))
	})

	// reference has the reference plugin check the ports of containers c1 and so on.
	reference := func(ref nstest.Reference, ids ...string) {
		GinkgoHelper()
		for _, id := range ids {
			out := host.Run(nstest.Program{Path: ref.Program("bridge"), Stdin: `{"cniVersion": "1.0.0", "name": "net1",
				"type": "bridge", "bridge": "br0",
					"macspoofchk": true}`, Env: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + id,
				"CNI_NETNS=" + nstest.NewNetns().Path, "CNI_IFNAME=eth0", "CNI_PATH=" + ref.Dir()}})
			Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
		}
	}

	for _, ref := range nstest.References() {
		It("accepts and deletes what the reference made, "+ref.Name, Label("reference-left"), func() {
			reference(ref, "c1", "c2")
			Expect(ruleset()).To(ContainSubstring("cni-br-iface-c1-eth0-mac"))
			Expect(check(one)).To(Succeed())
			host.Cmd("nft", "flush", "chain", "bridge", "nat", "cni-br-iface-c1-eth0-mac")
			Expect(check(one)).NotTo(Succeed())
			Expect(del(one)).To(Succeed())
			Expect(ruleset()).To(And(Not(ContainSubstring("c1-eth0")),
				ContainSubstring("jump cni-br-iface-c2-eth0"), ContainSubstring("jump cni-br-iface-c2-eth0-mac")))
		})
	}
})
