package netlink

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// packet is a message as the kernel sends it.
func packet(kind, flags uint16, parts ...[]byte) []byte {
	return Request{Type: kind, Flags: flags, Body: slices.Concat(parts...)}.encode(nil, 1)
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

var failed = native(^uint32(unix.ENOENT) + 1)

func because() []byte {
	var b Body
	b.Text(unix.NLMSGERR_ATTR_MSG, "because")
	return b
}

// FuzzMessages reads anything as a datagram: no panic, and no error but an
// errno.
func FuzzMessages(f *testing.F) {
	f.Add(packet(unix.NLMSG_ERROR, 0, native(0)))
	f.Add(packet(unix.NLMSG_DONE, unix.NLM_F_ACK_TLVS, failed, because()))
	f.Add(packet(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, failed, packet(unix.RTM_NEWLINK, 0), because()))
	f.Add(slices.Concat(packet(16, unix.NLM_F_MULTI, []byte("abc")), packet(unix.NLMSG_DONE, 0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		for m := range Messages(data) {
			if err := m.Err(); err != nil && !errors.As(err, new(unix.Errno)) {
				t.Fatalf("error without an errno: %v", err)
			}
			for _, value := range Attributes(m.Data) {
				Text(value)
			}
		}
	})
}

var _ = DescribeTable("a message is read", func(data []byte, wantErr string, ack bool) {
	got := slices.Collect(Messages(data))
	Expect(got).To(HaveLen(1))
	if wantErr == "" {
		Expect(got[0].Err()).NotTo(HaveOccurred())
	} else {
		Expect(got[0].Err()).To(MatchError(wantErr))
		Expect(got[0].Err()).To(MatchError(unix.ENOENT))
	}
	Expect(got[0].IsAck()).To(Equal(ack))
	Expect(got[0].End()).To(BeTrue())
},
	Entry("acknowledged", packet(unix.NLMSG_ERROR, 0, native(0)), "", true),
	Entry("the end of a list", packet(unix.NLMSG_DONE, unix.NLM_F_MULTI), "", false),
	Entry("an answer", packet(unix.RTM_NEWLINK, 0, failed), "", false),
	Entry("an error", packet(unix.NLMSG_ERROR, 0, failed, make([]byte, 16)), "no such file or directory", false),
	Entry("an error with an explanation after the request", packet(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS,
		failed, packet(unix.RTM_NEWLINK, 0, make([]byte, 20)), because()), "no such file or directory (because)", false),
	Entry("an error with an explanation after the request's header", packet(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS|unix.NLM_F_CAPPED,
		failed, packet(unix.RTM_NEWLINK, 0), because()), "no such file or directory (because)", false),
	Entry("a list that ends with an error and an explanation", packet(unix.NLMSG_DONE, unix.NLM_F_ACK_TLVS, failed, because()),
		"no such file or directory (because)", false),
)

var _ = Describe("attributes", func() {
	It("are read as they were written", func() {
		var in, b Body
		in.Uint8(1, 7)
		b.Bytes(2, []byte{1, 2, 3, 4, 5})
		b.Text(3, "abc")
		b.Nest(4, in)
		b.Uint32(5, 0x01020304)
		b.Net32(6, 0x01020304)
		Expect(len(b) % 4).To(BeZero())
		Expect(Attribute(b, 2)).To(Equal([]byte{1, 2, 3, 4, 5}))
		Expect(Attribute(b, 3)).To(Equal([]byte("abc\x00")))
		Expect(Text(Attribute(b, 3))).To(Equal("abc"))
		Expect(Attribute(Attribute(b, 4), 1)).To(Equal([]byte{7}))
		Expect(binary.NativeEndian.Uint32(Attribute(b, 5))).To(BeEquivalentTo(0x01020304))
		Expect(Attribute(b, 6)).To(Equal([]byte{1, 2, 3, 4}))
		Expect(Attribute(b, 7)).To(BeNil())
		Expect(Text(nil)).To(BeEmpty())
	})

	It("end where a length makes no sense", func() {
		for _, n := range []uint16{0, 3, 9} {
			var b Body
			b.Uint32(1, 1)
			b = binary.NativeEndian.AppendUint16(b, n)
			count := 0
			for range Attributes(append(b, 1, 0, 0, 0)) {
				count++
			}
			Expect(count).To(Equal(1))
		}
	})
})
