package netlink

import (
	"encoding/binary"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("attributes", func() {
	It("are read as they were written", func() {
		var in, b Body
		in.Uint8(1, 7)
		b.Bytes(2, []byte{1, 2, 3, 4, 5})
		b.Text(3, "abc")
		b.Nest(4, in)
		b.Net32(6, 0x01020304)
		Expect(len(b) % 4).To(BeZero())
		Expect(Attribute(b, 2)).To(Equal([]byte{1, 2, 3, 4, 5}))
		Expect(Attribute(b, 3)).To(Equal([]byte("abc\x00")))
		Expect(Text(Attribute(b, 3))).To(Equal("abc"))
		Expect(Attribute(Attribute(b, 4), 1)).To(Equal([]byte{7}))
		Expect(Attribute(b, 6)).To(Equal([]byte{1, 2, 3, 4}))
		Expect(Attribute(b, 7)).To(BeNil())
		Expect(Text(nil)).To(BeEmpty())
	})

	It("end where a length makes no sense", func() {
		for _, n := range []uint16{0, 3, 9} {
			var b Body
			b.Net32(1, 1)
			b = binary.NativeEndian.AppendUint16(b, n)
			count := 0
			for range Attributes(append(b, 1, 0, 0, 0)) {
				count++
			}
			Expect(count).To(Equal(1))
		}
	})
})
