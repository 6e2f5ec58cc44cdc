package main

import (
	"context"
	"fmt"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// holder is an attachment with one mapping on a dual-stack container.
func holder(id string, m mapping) *state {
	return sample(func(s *state) { s.ContainerID, s.Mappings = id, []mapping{m} })
}

func at(host string, port uint16, p proto) mapping {
	m := mapping{Proto: p, HostPort: port, Port: 80}
	if host != "" {
		m.HostIP = netip.MustParseAddr(host)
	}
	return m
}

var _ = Describe("the ledger", func() {
	DescribeTable("knows conflicts by the rules of bind", func(a, b mapping, conflict bool) {
		for _, pair := range [][2]mapping{{a, b}, {b, a}} {
			first, second := holder("one", pair[0]), holder("two", pair[1])
			l := ledger{}.with(first)
			if !conflict {
				Expect(l.conflicts(second.forwards(), ownerOf(second))).To(BeEmpty())
				continue
			}
			found := l.conflicts(second.forwards(), ownerOf(second))
			Expect(found).NotTo(BeEmpty())
			Expect(found[0].owner).To(Equal(ownerOf(first)))
			Expect(l.conflicts(first.forwards(), ownerOf(first))).To(BeEmpty(), "its own")
		}
	},
		Entry("the same port of all addresses", at("", 80, 6), at("", 80, 6), true),
		Entry("another port", at("", 80, 6), at("", 81, 6), false),
		Entry("another protocol", at("", 80, 6), at("", 80, 17), false),
		Entry("one address beside all", at("", 80, 6), at("192.0.2.1", 80, 6), true),
		Entry("one address beside all of its family", at("0.0.0.0", 80, 6), at("192.0.2.1", 80, 6), true),
		Entry("one IPv6 address beside all of its family", at("::", 80, 6), at("2001:db8::1", 80, 6), true),
		Entry("loopback beside all", at("127.0.0.1", 80, 6), at("", 80, 6), true),
		Entry("the same address", at("192.0.2.1", 80, 6), at("192.0.2.1", 80, 6), true),
		Entry("different addresses", at("192.0.2.1", 80, 6), at("192.0.2.2", 80, 6), false),
		Entry("different families", at("0.0.0.0", 80, 6), at("::", 80, 6), false),
		Entry("an address of the other family", at("::", 80, 6), at("192.0.2.1", 80, 6), false),
		Entry("an IPv4 address and what it looks like in IPv6", at("192.0.2.1", 80, 6), at("2001:db8::c000:201", 80, 6), false),
	)

	It("is read as it was written", func() {
		l := ledger{complete: true}.with(sample(nil)).with(holder("two", at("2001:db8::1", 80, 132)))
		back, err := decodeLedger(l.encode())
		Expect(err).NotTo(HaveOccurred())
		Expect(back).To(Equal(l))
		Expect(decodeLedger(ledger{}.encode())).To(Equal(ledger{claims: []claim{}}))
	})

	It("notices each kind of damage", func() {
		whole := ledger{complete: true}.with(sample(nil)).encode()
		for _, broken := range [][]byte{nil, whole[:10], whole[:len(whole)-1], append([]byte("x"), whole[1:]...),
			append(append([]byte{}, whole[:len(whole)-1]...), whole[len(whole)-1]^1)} {
			_, err := decodeLedger(broken)
			Expect(err).To(MatchError(errLedger))
		}
	})

	It("replaces and removes what an owner had", func() {
		l := ledger{}.with(holder("one", at("", 80, 6))).with(holder("two", at("", 81, 6))).with(holder("one", at("", 82, 6)))
		Expect(l.conflicts(holder("x", at("", 80, 6)).forwards(), [8]byte{})).To(BeEmpty())
		Expect(l.conflicts(holder("x", at("", 82, 6)).forwards(), [8]byte{})).NotTo(BeEmpty())
		l = l.without(ownerOf(holder("one", at("", 1, 6))))
		Expect(l.conflicts(holder("x", at("", 82, 6)).forwards(), [8]byte{})).To(BeEmpty())
		Expect(l.conflicts(holder("x", at("", 81, 6)).forwards(), [8]byte{})).NotTo(BeEmpty())
	})

	It("knows who else needs a link, and the container's other interfaces", func() {
		one, two := holder("one", at("", 80, 6)), holder("two", at("", 81, 6))
		other := holder("one", at("", 82, 6))
		other.IfName = "net1"
		l := ledger{}.with(one).with(two)
		Expect(l.uses("br0", ownerOf(one))).To(BeTrue())
		Expect(l.without(ownerOf(two)).uses("br0", ownerOf(one))).To(BeFalse())
		Expect(l.uses("br1", ownerOf(one))).To(BeFalse())
		Expect(l.siblings(one)).To(BeEmpty())
		l = l.with(other)
		Expect(l.siblings(one)).To(Equal([][8]byte{ownerOf(other)}))
		Expect(l.hasGroup(groupKey(groupOf("pnet", "two")))).To(BeTrue())
		Expect(l.hasGroup(groupKey(groupOf("pnet", "three")))).To(BeFalse())
	})

	It("stays quick with many claims", func() {
		l := ledger{}
		many := &state{Network: "pnet", ContainerID: "many", IfName: "eth0", Targets: sample(nil).Targets[:1]}
		for i := range 10000 {
			many.Mappings = append(many.Mappings, mapping{6, netip.IPv4Unspecified(), uint16(10000 + i), 80})
		}
		l = l.with(many)
		Expect(len(l.encode())).To(BeNumerically("<", 500_000))
		asking := holder("x", at("", 15000, 6))
		Expect(l.conflicts(asking.forwards(), ownerOf(asking))).To(HaveLen(1))
		Expect(fmt.Sprint(l.conflicts(asking.forwards(), ownerOf(asking))[0].host)).To(Equal("0.0.0.0"))
	})
})

var _ = Describe("a ledger that was lost", Label("kernel"), func() {
	It("is complete again as soon as all that is there has a record", func() {
		w := newWorld()
		w.bridge(1)
		complete := func() (is bool) {
			GinkgoHelper()
			w.Do(func() {
				s, err := openStore(context.Background())
				Expect(err).NotTo(HaveOccurred())
				is = s.ledger.complete
				Expect(s.close()).To(Succeed())
			})
			return is
		}
		a, b, c, d := w.container(1, 2), w.container(1, 3), w.container(1, 4), w.container(1, 5)
		a.add(ports("8080:80"))
		b.add(ports("8081:80"))
		Expect(complete()).To(BeTrue())
		w.Cmd("rm", "/run/hawser/portmap/ledger")
		b.del()
		Expect(complete()).To(BeFalse())
		c.add(ports("8082:80"))
		Expect(complete()).To(BeTrue())
		w.Cmd("rm", "/run/hawser/portmap/ledger", "/run/hawser/portmap/"+owner(a)+".json")
		b.add(ports("8081:80"))
		Expect(complete()).To(BeFalse(), "there is something without a record")
		a.del()
		d.add(ports("8083:80"))
		Expect(complete()).To(BeTrue())
	})
})
