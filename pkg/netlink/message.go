package netlink

import (
	"encoding/binary"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// Request is a message to the kernel.
type Request struct {
	Type  uint16
	Flags uint16 // NLM_F_REQUEST is added
	Body  Body
	// Quiet says that the kernel has nothing to say to it but an error.
	Quiet bool
}

// size is the length of the message in bytes.
func (r Request) size() int { return unix.SizeofNlMsghdr + len(r.Body) }

func (r Request) encode(out []byte, seq uint32) []byte {
	out = binary.NativeEndian.AppendUint32(out, uint32(r.size()))
	out = binary.NativeEndian.AppendUint16(out, r.Type)
	out = binary.NativeEndian.AppendUint16(out, r.Flags|unix.NLM_F_REQUEST)
	out = binary.NativeEndian.AppendUint32(out, seq)
	out = binary.NativeEndian.AppendUint32(out, 0)
	out = append(out, r.Body...)
	return append(out, make([]byte, -len(r.Body)&3)...)
}

// Message is a message from the kernel.
type Message struct {
	Type  uint16
	Flags uint16
	Data  []byte // behind the header

	seq uint32
}

// Messages walks a datagram and stops at the first message that makes no sense.
func Messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.SizeofNlMsghdr || n > len(b) {
				return
			}
			m := Message{
				Type:  binary.NativeEndian.Uint16(b[4:]),
				Flags: binary.NativeEndian.Uint16(b[6:]),
				Data:  b[unix.SizeofNlMsghdr:n],
				seq:   binary.NativeEndian.Uint32(b[8:]),
			}
			if !yield(m) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// End says whether it is the last answer to its request.
func (m Message) End() bool {
	return m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE || m.Flags&unix.NLM_F_MULTI == 0
}

// IsAck says whether it is an acknowledgement.
func (m Message) IsAck() bool { return m.Type == unix.NLMSG_ERROR && m.Err() == nil }

// Err is the error that the message carries, with the kernel's explanation
// where it gives one; nil for an acknowledgement and for any other message.
func (m Message) Err() error {
	if m.Type != unix.NLMSG_ERROR && m.Type != unix.NLMSG_DONE || len(m.Data) < 4 {
		return nil
	}
	errno := -int32(binary.NativeEndian.Uint32(m.Data))
	if errno <= 0 {
		return nil
	}
	if text := m.explanation(); text != "" {
		return fmt.Errorf("%w (%s)", unix.Errno(errno), text)
	}
	return unix.Errno(errno)
}

func (m Message) explanation() string {
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	rest := m.Data[4:]
	// An error message repeats the request before the attributes (only its
	// header when capped), the end of a list does not.
	if m.Type == unix.NLMSG_ERROR {
		skip := unix.SizeofNlMsghdr
		if m.Flags&unix.NLM_F_CAPPED == 0 && len(rest) >= 4 {
			skip = align(int(binary.NativeEndian.Uint32(rest)))
		}
		rest = rest[min(max(skip, 0), len(rest)):]
	}
	return Text(Attribute(rest, unix.NLMSGERR_ATTR_MSG))
}
