package nlattr

import (
	"encoding/binary"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestNlattr(t *testing.T) { nstest.RunSpecs(t, "nlattr") }

var _ = Describe("attributes", func() {
	It("are read as they were encoded", func() {
		b := slices.Concat(Bytes(2, []byte{1, 2, 3, 4, 5}), String(3, "abc"), Nest(4, Bytes(1, []byte{7})),
			Net32(6, 0x01020304))
		Expect(len(b) % 4).To(BeZero())
		Expect(Get(b, 2)).To(Equal([]byte{1, 2, 3, 4, 5}))
		Expect(Get(b, 3)).To(Equal([]byte("abc\x00")))
		Expect(GetString(b, 3)).To(Equal("abc"))
		Expect(Get(b, 4, 1)).To(Equal([]byte{7}))
		Expect(Get(b, 4, 2)).To(BeNil())
		Expect(Get(b, 6)).To(Equal([]byte{1, 2, 3, 4}))
		Expect(Get(b, 7, 1)).To(BeNil())
		Expect(GetString(b, 7)).To(BeEmpty())
	})

	It("end at an impossible length", func() {
		for _, n := range []uint16{0, 3, 9} {
			b := binary.NativeEndian.AppendUint16(Net32(1, 1), n)
			count := 0
			for range All(append(b, 1, 0, 0, 0)) {
				count++
			}
			Expect(count).To(Equal(1))
		}
	})
})

var _ = DescribeTable("a list contains another one", func(have, wanted []byte, is bool) {
	Expect(Contains(have, wanted)).To(Equal(is))
},
	Entry("with the same values",
		slices.Concat(String(1, "a"), Net32(2, 5)), slices.Concat(Net32(2, 5), String(1, "a")), true),
	Entry("with fewer values", slices.Concat(String(1, "a"), Net32(2, 5)), String(1, "a"), true),
	Entry("not with more values", String(1, "a"), slices.Concat(String(1, "a"), Net32(2, 5)), false),
	Entry("without an attribute that is 0", String(1, "a"), slices.Concat(String(1, "a"), Net32(2, 0)), true),
	Entry("not with 0 instead of another value", Net32(2, 5), Net32(2, 0), false),
	Entry("not with another value", Net32(2, 4), Net32(2, 5), false),
	Entry("not with a longer value", Bytes(2, []byte{1, 2}), Bytes(2, []byte{1, 2, 0, 0}), false),
	Entry("in nested lists, regardless of flags",
		Bytes(3, Nest(1, Net32(2, 5))), Nest(3, Nest(1, Net32(2, 5))), true),
	Entry("not in nested lists that differ",
		Nest(3, Nest(1, Net32(2, 5))), Nest(3, Nest(1, Net32(2, 4))), false),
	Entry("with flags in the kind", Bytes(2|unix.NLA_F_NET_BYTEORDER, []byte{1}), Bytes(2, []byte{1}), true),
)
