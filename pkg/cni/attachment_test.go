package cni_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

var long = strings.Repeat("n", 300)

// networkOwns tells whether a mark was written in a network, none of whose attachments is valid.
func networkOwns(network, mark string) bool { return cni.NewSet(network, nil).Garbage(mark) }

var _ = Describe("Attachment", func() {
	a := cni.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}

	It("has a hash that never changes: it is on disk and in the kernel", func() {
		Expect(a.Hash()).To(Equal("5f3c29da973ec808"))
		Expect(a.Mark()).To(Equal("5f3c29da973ec808 net1 c1 eth0"))
		Expect(a.String()).To(Equal(`network "net1", container "c1", interface "eth0"`))
	})

	It("has a hash of its own", func() {
		seen := map[string]cni.Attachment{}
		for _, b := range []cni.Attachment{
			a, {"net1", "c1", "eth1"}, {"net1", "c2", "eth0"}, {"net2", "c1", "eth0"}, {"c1", "net1", "eth0"},
			{"ab", "c", "d"}, {"a", "bc", "d"}, {"a", "b", "cd"}, {"abc", "", "d"}, {"", "abcd", ""}, {"1:a", "b",
				"c"}, {"1", ":ab", "c"},
			{long, "c", "d"}, {long + "n", "c", "d"}, {"a", long, "d"}, {"a", long + "n", "d"},
		} {
			Expect(b.Hash()).To(MatchRegexp("^[0-9a-f]{16}$"))
			Expect(seen).NotTo(HaveKey(b.Hash()))
			seen[b.Hash()] = b
			for _, other := range seen {
				Expect(b.Owns(other.Mark())).To(Equal(b == other))
			}
		}
	})

	DescribeTable("its mark fits into a comment, and owner and network are read from it", func(b cni.Attachment) {
		mark := b.Mark()
		Expect(len(mark)).To(BeNumerically("<=", 128))
		Expect(mark).To(MatchRegexp(`^[!-~]+( [!-~]*)*$`))
		Expect(strings.ContainsAny(mark, `"\`)).To(BeFalse(), mark)
		Expect(b.Owns(mark)).To(BeTrue())
		Expect(a.Owns(mark)).To(BeFalse())
		Expect(networkOwns(b.Network, mark)).To(BeTrue())
		for _, other := range []string{b.Network + "x", b.Network[1:], a.Network} {
			Expect(networkOwns(other, mark)).To(BeFalse(), other)
		}
	},
		Entry("short", cni.Attachment{Network: "pod-net", ContainerID: "c1", IfName: "eth1"}),
		Entry("a container ID of 64", cni.Attachment{Network: "pod-net", ContainerID: strings.Repeat("c", 64),
			IfName: "eth1"}),
		Entry("a network of 64", cni.Attachment{Network: long[:64], ContainerID: strings.Repeat("c", 64),
			IfName: "eth1"}),
		Entry("a network of 65", cni.Attachment{Network: long[:65], ContainerID: "c1", IfName: "eth1"}),
		Entry("all too long", cni.Attachment{Network: long, ContainerID: long, IfName: "eth1234567890ab"}),
		Entry("an interface that a comment cannot hold",
			cni.Attachment{Network: "pod-net", ContainerID: "c1", IfName: "a\"\\\x01é\xff"}),
	)

	It("tells long networks with the same beginning apart", func() {
		one := cni.Attachment{Network: long + "1", ContainerID: "c", IfName: "e"}
		Expect(networkOwns(long+"2", one.Mark())).To(BeFalse())
	})

	DescribeTable("other people's comments belong to nobody", func(mark string) {
		Expect(a.Owns(mark)).To(BeFalse())
		Expect(networkOwns("net1", mark)).To(BeFalse())
	},
		Entry("nothing", ""), Entry("a text", "my comment"), Entry("the network alone", "net1"),
		Entry("no hash", "0123 net1 c1 eth0"), Entry("a hash in upper case", "5EC66F3B7C1F354C net1 c1 eth0"),
		Entry("a longer hash", "5f3c29da973ec8080 net1 c1 eth0"), Entry("not hexadecimal",
			"gf3c29da973ec808 net1 c1 eth0"),
		Entry("another network", "0123456789abcdef net10 c1 eth0"), Entry("no network", "0123456789abcdef"),
		Entry("the reference's", `name: "net1" id: "c1"`),
		Entry("the reference's in nftables", "6fd94d501e58f0aa-287fc69eff0574a2, net: net1, if: eth0, id: c1"),
	)

	It("numbers networks, never with 0", func() {
		Expect(cni.NetworkHash("net1")).To(Equal(cni.NetworkHash("net1")))
		Expect(cni.NetworkHash("net1")).NotTo(Equal(cni.NetworkHash("net2")))
		for _, n := range []string{"", "a", "b", "c", long} {
			Expect(cni.NetworkHash(n)).NotTo(BeZero())
		}
	})
})

var _ = Describe("Set", func() {
	ref := func(id, ifname string) cni.Attachment { return cni.Attachment{ContainerID: id, IfName: ifname} }
	at := func(network, id, ifname string) cni.Attachment {
		return cni.Attachment{Network: network, ContainerID: id, IfName: ifname}
	}

	It("has what is valid, and garbage is only what its network owns", func() {
		s := cni.NewSet("net1", []cni.Attachment{ref("c1", "eth0"), ref("c2", "eth1"), ref("c2", "eth1")})
		Expect(s.Network()).To(Equal("net1"))
		Expect(s.Has(at("net1", "c1", "eth0"))).To(BeTrue())
		Expect(s.Garbage(at("net1", "c1", "eth0").Mark())).To(BeFalse())
		for _, gone := range []cni.Attachment{at("net1", "c1", "eth1"), at("net1", "c2", "eth0"),
			at("net1", "c3", "eth0"), at("net1", long, "eth0")} {
			Expect(s.Has(gone)).To(BeFalse())
			Expect(s.Garbage(gone.Mark())).To(BeTrue())
		}
		foreign := at("net2", "c3", "eth0")
		Expect(s.Has(foreign)).To(BeFalse())
		Expect(s.Garbage(foreign.Mark())).To(BeFalse())
		Expect(s.HasContainer("c2")).To(BeTrue())
		Expect(s.HasContainer("c3")).To(BeFalse())
	})

	It("lists what is valid", func() {
		s := cni.NewSet("net1", []cni.Attachment{ref("c1", "eth0"), ref("c2", "eth1")})
		Expect(s.All()).To(HaveExactElements(at("net1", "c1", "eth0"), at("net1", "c2", "eth1")))
	})

	It("works for a network with a very long name", func() {
		s := cni.NewSet(long, []cni.Attachment{ref("c1", "eth0")})
		Expect(s.Garbage(at(long, "c1", "eth0").Mark())).To(BeFalse())
		Expect(s.Garbage(at(long, "c2", "eth0").Mark())).To(BeTrue())
		Expect(s.Garbage(at(long+"x", "c2", "eth0").Mark())).To(BeFalse())
	})

	It("that nobody filled owns nothing", func() {
		var s cni.Set
		Expect(s.Garbage(at("net1", "c1", "eth0").Mark())).To(BeFalse())
		Expect(s.Has(at("net1", "c1", "eth0"))).To(BeFalse())
	})
})

var _ = Describe("names", func() {
	check := func(valid func(string) bool, good, bad []string) {
		GinkgoHelper()
		for _, s := range good {
			Expect(valid(s)).To(BeTrue(), "%q", s)
		}
		for _, s := range bad {
			Expect(valid(s)).To(BeFalse(), "%q", s)
		}
	}

	It("of networks and containers", func() {
		check(cni.ValidName, []string{"a", "0", "k8s.io-x", "a_b.c-d", "A9", "a..", long},
			[]string{"", ".", "..", "-a", "_a", ".a", "a/b", "a b", "a\n", "a;b", "ä", "aä", "a\x00", "a\\b", "../x",
				"a$b", `a"b`})
	})

	It("of interfaces", func() {
		check(cni.ValidIfName,
			[]string{"e", "eth0", "lo", "eth0.100", "a-very-long-nam", "-", "é", "a\"b", "...", "allx"},
			[]string{"", ".", "..", "a-very-long-name", "a/b", "a:b", "a b", "a\tb", "a\n", "a\u2028b", "a\u0085b",
				"a\x00", "éééééééé", "à", "eth%d", "100%", "a\xffb", "all", "default"})
	})

	It("of plugins", func() {
		check(cni.ValidType, []string{"bridge", "host-local", "a b", "x.y", "...", "-"},
			[]string{"", ".", "..", "/bin/sh", "../bridge", "a/b", "a/", `a\b`, "a\x00b"})
	})
})
