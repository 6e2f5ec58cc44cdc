package rtnl

import (
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// message is one message of an answer.
type message struct {
	kind  uint16
	flags uint16
	seq   uint32
	data  []byte // without the netlink header
}

// answer reads the messages of one request's answer; a change is answered by
// an error message (0 = acknowledged), a dump by many messages and a done one.
type answer struct {
	seq         uint32
	each        func(message)
	done        bool
	interrupted bool
}

func (a *answer) read(data []byte) error {
	for m := range messages(data) {
		// A late answer to a request that was given up.
		if m.seq != a.seq {
			continue
		}
		if m.flags&unix.NLM_F_DUMP_INTR != 0 {
			a.interrupted = true
		}
		switch {
		case m.kind == unix.NLMSG_ERROR || m.kind == unix.NLMSG_DONE:
			a.done = true
			return m.err()
		case a.each != nil:
			a.each(m)
			a.done = m.flags&unix.NLM_F_MULTI == 0
		}
	}
	return nil
}

func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return
			}
			m := message{
				kind:  binary.NativeEndian.Uint16(b[4:]),
				flags: binary.NativeEndian.Uint16(b[6:]),
				seq:   binary.NativeEndian.Uint32(b[8:]),
				data:  b[unix.SizeofNlMsghdr:size],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// err is the error of an error or done message, with the kernel's explanation.
func (m message) err() error {
	if len(m.data) < 4 {
		return nil
	}
	errno := -int32(binary.NativeEndian.Uint32(m.data))
	if errno == 0 {
		return nil
	}
	if text := m.explanation(); text != "" {
		return fmt.Errorf("%w (%s)", unix.Errno(errno), text)
	}
	return unix.Errno(errno)
}

func (m message) explanation() string {
	if m.flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	rest := m.data[4:]
	// An error message repeats the request before the attributes (only its
	// header when capped), a done message does not.
	if m.kind == unix.NLMSG_ERROR {
		skip := unix.SizeofNlMsghdr
		if m.flags&unix.NLM_F_CAPPED == 0 && len(rest) >= 4 {
			skip = align(int(binary.NativeEndian.Uint32(rest)))
		}
		rest = rest[min(max(skip, 0), len(rest)):]
	}
	for kind, value := range attributes(rest) {
		if kind == nl.NLMSGERR_ATTR_MSG {
			return text(value)
		}
	}
	return ""
}

func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofRtAttr || size > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK, b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

func text(b []byte) string { return unix.ByteSliceToString(b) }

func number(b []byte) uint32 {
	switch len(b) {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.NativeEndian.Uint16(b))
	case 4:
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

func attrString(kind int, s string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }
func attrUint32(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }
func attrNested(kind int) *nl.RtAttr           { return nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil) }
