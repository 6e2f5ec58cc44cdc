package nft

import (
	"encoding/binary"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

var _ = Describe("attributes", func() {
	It("are read as they were written", func() {
		b := list(attrBytes(2, []byte{1, 2, 3, 4, 5}), attrText(3, "abc"), attrNest(4, attrBytes(1, []byte{7})),
			attrNet32(6, 0x01020304))
		Expect(len(b) % 4).To(BeZero())
		Expect(attribute(b, 2)).To(Equal([]byte{1, 2, 3, 4, 5}))
		Expect(attribute(b, 3)).To(Equal([]byte("abc\x00")))
		Expect(textOf(attribute(b, 3))).To(Equal("abc"))
		Expect(attribute(b, 4, 1)).To(Equal([]byte{7}))
		Expect(attribute(b, 4, 2)).To(BeNil())
		Expect(attribute(b, 6)).To(Equal([]byte{1, 2, 3, 4}))
		Expect(attribute(b, 7, 1)).To(BeNil())
		Expect(textOf(nil)).To(BeEmpty())
	})

	It("end where a length makes no sense", func() {
		for _, n := range []uint16{0, 3, 9} {
			b := binary.NativeEndian.AppendUint16(attrNet32(1, 1), n)
			count := 0
			for range attributes(append(b, 1, 0, 0, 0)) {
				count++
			}
			Expect(count).To(Equal(1))
		}
	})
})

var _ = DescribeTable("a list contains another one", func(have, wanted []byte, is bool) {
	Expect(containsAttrs(have, wanted)).To(Equal(is))
},
	Entry("with the same values",
		list(attrText(1, "a"), attrNet32(2, 5)), list(attrNet32(2, 5), attrText(1, "a")), true),
	Entry("with fewer values", list(attrText(1, "a"), attrNet32(2, 5)), attrText(1, "a"), true),
	Entry("not with more values", attrText(1, "a"), list(attrText(1, "a"), attrNet32(2, 5)), false),
	Entry("with zeros that are left out", attrText(1, "a"), list(attrText(1, "a"), attrNet32(2, 0)), true),
	Entry("not with zeros that are something else", attrNet32(2, 5), attrNet32(2, 0), false),
	Entry("not with another value", attrNet32(2, 4), attrNet32(2, 5), false),
	Entry("not with a longer value", attrBytes(2, []byte{1, 2}), attrBytes(2, []byte{1, 2, 0, 0}), false),
	Entry("in others, whatever their flags",
		attrBytes(3, attrNest(1, attrNet32(2, 5))), attrNest(3, attrNest(1, attrNet32(2, 5))), true),
	Entry("in others, unless they differ",
		attrNest(3, attrNest(1, attrNet32(2, 5))), attrNest(3, attrNest(1, attrNet32(2, 4))), false),
	Entry("of kinds with flags", attrBytes(2|unix.NLA_F_NET_BYTEORDER, []byte{1}), attrBytes(2, []byte{1}), true),
)

func list(attrs ...[]byte) (all []byte) {
	for _, a := range attrs {
		all = append(all, a...)
	}
	return all
}
