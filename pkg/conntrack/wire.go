package conntrack

import (
	"encoding/binary"
	"errors"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// Messages and attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
)

const (
	nfgenmsgSize  = 4
	bufferSize    = 64 << 10
	answerSeconds = 30
)

// conn is a netfilter socket.
type conn struct {
	fd  int
	seq uint32
	buf []byte
}

func dial() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &conn{fd: fd, buf: make([]byte, bufferSize)}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerSeconds}); err != nil {
		c.close()
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return c, nil
}

func (c *conn) close() { _ = unix.Close(c.fd) }

// request is what is asked of the kernel.
type request struct {
	typ, flags uint16
	family     uint8
	body       attrs
}

// send sends a request and hands the bodies of the answers to each. EINTR says that what was listed
// changed under way.
func (c *conn) send(r request, each func([]byte)) error {
	c.seq++
	err := unix.Sendto(c.fd, r.encode(c.seq), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err != nil {
		return os.NewSyscallError("send", err)
	}
	a := answer{seq: c.seq, each: each}
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recv", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not the kernel
		}
		if a.read(c.buf[:n]); a.done {
			return a.err
		}
	}
}

// answer reads what comes for one request.
type answer struct {
	seq         uint32
	each        func([]byte)
	interrupted bool
	done        bool
	err         error
}

func (a *answer) read(b []byte) {
	for m := range messages(b) {
		switch {
		case a.done || m.seq != a.seq: // a late answer to a request that was given up
			continue
		case m.typ == unix.NLMSG_DONE || m.typ == unix.NLMSG_ERROR:
			a.done, a.err = true, m.err()
		case a.each != nil && len(m.data) >= nfgenmsgSize:
			a.each(m.data[nfgenmsgSize:])
		}
		a.interrupted = a.interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		if a.done && m.typ == unix.NLMSG_DONE && a.interrupted {
			a.err = unix.EINTR
		}
	}
}

func (r request) encode(seq uint32) []byte {
	out := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+nfgenmsgSize+len(r.body)))
	out = binary.NativeEndian.AppendUint16(out, r.typ)
	out = binary.NativeEndian.AppendUint16(out, unix.NLM_F_REQUEST|r.flags)
	out = binary.NativeEndian.AppendUint32(out, seq)
	out = binary.NativeEndian.AppendUint32(out, 0)
	out = append(out, r.family, unix.NFNETLINK_V0, 0, 0)
	return append(out, r.body...)
}

type message struct {
	typ, flags uint16
	seq        uint32
	data       []byte
}

func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.SizeofNlMsghdr || n > len(b) {
				return
			}
			m := message{typ: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
				seq: binary.NativeEndian.Uint32(b[8:]), data: b[unix.SizeofNlMsghdr:n]}
			if !yield(m) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

func (m message) err() error {
	if len(m.data) < 4 {
		return nil
	}
	if errno := -int32(binary.NativeEndian.Uint32(m.data)); errno > 0 {
		return unix.Errno(errno)
	}
	return nil
}

// attrs is a list of netlink attributes.
type attrs []byte

func (a *attrs) put(typ uint16, data []byte) {
	*a = binary.NativeEndian.AppendUint16(*a, uint16(len(data)+4))
	*a = binary.NativeEndian.AppendUint16(*a, typ)
	*a = append(*a, data...)
	*a = append(*a, make([]byte, -len(data)&3)...)
}

func (a *attrs) u32(typ uint16, v uint32) { a.put(typ, binary.NativeEndian.AppendUint32(nil, v)) }

func (a *attrs) nest(typ uint16, in []byte) { a.put(typ|unix.NLA_F_NESTED, in) }

func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			n := int(binary.NativeEndian.Uint16(b))
			if n < 4 || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[4:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}
