package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("the index", func() {
	// model is what the index stands for, in the plainest form.
	type model map[netip.Addr]string

	// agree compares every answer that the index can give.
	agree := func(x *index, m model, owners int, spans []span) {
		GinkgoHelper()
		for o := range owners {
			owner := fmt.Sprint("owner", o)
			var want []netip.Addr
			for a, who := range m {
				if who == owner {
					want = append(want, a)
				}
			}
			got, err := x.lookup(owner)
			Expect(err).NotTo(HaveOccurred())
			Expect(got).To(ConsistOf(want))
		}
		for _, s := range spans {
			var want netip.Addr
			for a := s.from; ; a = a.Next() {
				if _, taken := m[a]; !taken {
					want = a
					break
				}
				if a == s.to {
					break
				}
			}
			got, ok, err := x.firstFree(s)
			Expect(err).NotTo(HaveOccurred())
			Expect(ok).To(Equal(want.IsValid()))
			if ok {
				Expect(got).To(Equal(want))
			}
		}
		Expect(x.live).To(BeEquivalentTo(len(m)))
		want := map[netip.Addr]bool{}
		for a := range m {
			want[a] = true
		}
		for _, s := range spans {
			for a := s.from; ; a = a.Next() {
				b, err := x.block(a)
				Expect(err).NotTo(HaveOccurred())
				if b.firstZero(offset(a), 1) >= 0 == want[a] {
					Fail(fmt.Sprint("bit of ", a))
				}
				if a == s.to || offset(a) > 4000 {
					break
				}
			}
		}
	}

	It("agrees with a map through thousands of changes, growing as it must", func() {
		seed := uint64(GinkgoRandomSeed())
		random := rand.New(rand.NewPCG(seed, seed))
		spans := []span{
			{netip.MustParseAddr("10.0.15.250"), netip.MustParseAddr("10.0.16.5")}, // over a block's edge
			{netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("10.0.47.255")},
			{netip.MustParseAddr("2001:db8::ffff:fff0"), netip.MustParseAddr("2001:db8::1:0:10")},
			{netip.MustParseAddr("255.255.255.240"), netip.MustParseAddr("255.255.255.255")},
		}
		x, m := newIndex(0), model{}
		const owners = 300
		for step := range 9000 {
			s := spans[random.IntN(len(spans))]
			addr := plus(s.from, uint64(random.IntN(24)))
			if random.IntN(3) == 0 {
				addr = plus(s.from, uint64(random.IntN(4000)))
			}
			if addr.Less(s.from) || s.to.Less(addr) {
				continue
			}
			owner, taken := m[addr]
			if taken && random.IntN(5) > 0 {
				Expect(x.remove(owner, addr)).To(Succeed(), "seed %d step %d", seed, step)
				delete(m, addr)
			} else if !taken {
				owner = fmt.Sprint("owner", random.IntN(owners))
				Expect(x.insert(owner, addr)).To(Succeed())
				m[addr] = owner
			}
			if step%1000 == 999 {
				agree(x, m, owners, spans)
			}
		}
		Expect(x.slots).To(BeNumerically(">", minSlots), "the spec should make it grow")
	})

	It("holds addresses scattered over IPv6", func() {
		x := newIndex(0)
		for i := range uint64(2000) {
			a := netip.MustParseAddr("2001:db8::").As16()
			a[8], a[9], a[10] = byte(i>>8), byte(i), byte(i*7)
			Expect(x.insert(fmt.Sprint("o", i), netip.AddrFrom16(a))).To(Succeed())
		}
		for i := range 2000 {
			Expect(x.lookup(fmt.Sprint("o", i))).To(HaveLen(1))
		}
		Expect(x.blocks).To(BeNumerically(">", 2000))
	})

	It("keeps the row of a word that stands in thousands of files short", func() {
		x := newIndex(0)
		from := netip.MustParseAddr("10.0.0.0")
		for i := range uint64(5000) {
			Expect(x.insert("reserved", plus(from, i))).To(Succeed())
		}
		Expect(x.live).To(BeEquivalentTo(manySlots + 1))
		Expect(second(x.lookup("reserved"))).To(MatchError(errMany))
		got, ok, err := x.firstFree(span{from, plus(from, 9000)})
		Expect(err).NotTo(HaveOccurred())
		Expect(ok).To(BeTrue())
		Expect(got).To(Equal(plus(from, 5000)))
		for i := range 1000 { // makes it grow
			Expect(x.insert(fmt.Sprint("c", i), plus(from, uint64(5000+i)))).To(Succeed())
		}
		got, _, err = x.firstFree(span{from, plus(from, 9000)})
		Expect(err).NotTo(HaveOccurred())
		Expect(got).To(Equal(plus(from, 6000)))
	})

	It("skips a full million of addresses in a moment, and finds the hole", func() {
		x := newIndex(0)
		x.blocks = 512
		x.file = make(memory, x.size())
		from := netip.MustParseAddr("10.0.0.0")
		var b block
		for i := range b.bits {
			b.bits[i] = 0xff
		}
		for i := range 256 {
			Expect(x.mark(plus(from, uint64(i)*blockAddrs), true)).To(Succeed())
		}
		for i := range 256 {
			found, err := x.block(plus(from, uint64(i)*blockAddrs))
			Expect(err).NotTo(HaveOccurred())
			Expect(x.write(b.bits[:], found.off+16)).To(Succeed())
		}
		reads := &countReads{storage: x.file}
		x.file = reads
		got, ok, err := x.firstFree(span{from, netip.MustParseAddr("10.255.255.255")})
		Expect(err).NotTo(HaveOccurred())
		Expect(ok).To(BeTrue())
		Expect(got.String()).To(Equal("10.16.0.0"))
		Expect(reads.n).To(BeNumerically("<", 1000))
	})

	It("needs a handful of reads at any size", func() {
		most := map[int]int{}
		for _, n := range []int{10, 60_000} {
			x := newIndex(n)
			for i := range n {
				Expect(x.insert(fmt.Sprint("c", i, "\r\neth0"), plus(netip.MustParseAddr("10.0.0.2"), uint64(i)))).To(Succeed())
			}
			reads := &countReads{storage: x.file}
			x.file = reads
			for i := range 200 {
				reads.n = 0
				Expect(second(x.lookup(fmt.Sprint("c", i*n/200, "\r\neth0")))).To(Succeed())
				Expect(second(x.lookup(fmt.Sprint("absent", i)))).To(Succeed())
				_, _, err := x.firstFree(span{plus(netip.MustParseAddr("10.0.0.2"), uint64(n-1)), netip.MustParseAddr("10.0.255.254")})
				Expect(err).NotTo(HaveOccurred())
				most[n] = max(most[n], reads.n)
			}
		}
		Expect(most[60_000]).To(BeNumerically("<=", most[10]+6))
	})

	DescribeTable("refuses a file that is not whole", func(spoil func(b []byte) []byte) {
		x := newIndex(10)
		Expect(x.insert("o", netip.MustParseAddr("10.0.0.2"))).To(Succeed())
		x.stamp = 7
		image := []byte(x.file.(memory))
		copy(image, x.encode())
		Expect(second(openIndex(memory(image), int64(len(image))))).To(Succeed())
		image = spoil(slices.Clone(image))
		_, err := openIndex(memory(image), int64(len(image)))
		Expect(err).To(HaveOccurred())
	},
		Entry("empty", func([]byte) []byte { return nil }),
		Entry("cut", func(b []byte) []byte { return b[:len(b)-1] }),
		Entry("cut in the header", func(b []byte) []byte { return b[:60] }),
		Entry("longer", func(b []byte) []byte { return append(b, 0) }),
		Entry("another version", func(b []byte) []byte { b[7]++; return b }),
		Entry("another stamp", func(b []byte) []byte { b[44]++; return b }),
		Entry("zeros", func(b []byte) []byte { return make([]byte, len(b)) }))
})

type countReads struct {
	storage
	n int
}

func (c *countReads) ReadAt(p []byte, off int64) (int, error) {
	c.n++
	return c.storage.ReadAt(p, off)
}

func second[T any](_ T, err error) error { return err }
