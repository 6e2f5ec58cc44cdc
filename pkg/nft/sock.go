package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	receiveSize  = 64 << 10 // the kernel's dump messages have at most 32 KiB
	nfgenmsgSize = 4
	sendSlack    = 32 // what the kernel takes off the send buffer
)

// socket is one nfnetlink socket. The kernel works on a request while it is being sent, so every
// answer is there when the send returns, and reading goes on until there is none: no answer can be
// waited for in vain, whichever of them the kernel chose not to give.
type socket struct {
	fd  int
	seq uint32
	buf []byte
}

// reply is one message from the kernel.
type reply struct {
	typ   uint16
	flags uint16
	seq   uint32
	data  []byte // behind the nfgenmsg header, or all of an error's
}

func dial() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Without these the errors are bigger and poorer, that is all.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return &socket{fd: fd, buf: make([]byte, receiveSize)}, nil
}

func (s *socket) close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// exchange sends messages that carry their sequence numbers already, from first to the last that was
// taken, and returns all answers to them.
func (s *socket) exchange(out []byte, first uint32) ([]reply, error) {
	if err := s.send(out); err != nil {
		return nil, err
	}
	var replies []reply
	for {
		n, from, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		sender, known := from.(*unix.SockaddrNetlink)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return replies, nil
		case err != nil:
			return replies, os.NewSyscallError("recv", err)
		case n > len(s.buf):
			return nil, fmt.Errorf("netlink message of %d bytes: %w", n, unix.EMSGSIZE)
		case !known || sender.Pid != 0:
			continue // not the kernel
		}
		got, err := parse(s.buf[:n])
		if err != nil {
			return nil, err
		}
		replies = append(replies, answersTo(got, first, s.seq)...)
	}
}

// answersTo drops late answers to requests that were given up.
func answersTo(replies []reply, first, last uint32) []reply {
	return slices.DeleteFunc(replies, func(r reply) bool { return r.seq-first > last-first })
}

// send raises the socket's buffer when the message needs it. EMSGSIZE says that it could not.
func (s *socket) send(out []byte) error {
	for {
		err := unix.Sendto(s.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EMSGSIZE) && s.sendBuffer() < len(out)+sendSlack:
			if s.growSendBuffer(len(out)+sendSlack) < len(out)+sendSlack {
				return os.NewSyscallError("send", err)
			}
		case err != nil:
			return os.NewSyscallError("send", err)
		default:
			return nil
		}
	}
}

func (s *socket) sendBuffer() int {
	n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return 0
	}
	return n
}

// growSendBuffer asks for a buffer of n bytes and returns what it got: without CAP_NET_ADMIN over
// the machine no more than net.core.wmem_max.
func (s *socket) growSendBuffer(n int) int {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n)
	}
	return s.sendBuffer()
}

func parse(raw []byte) ([]reply, error) {
	msgs, err := syscall.ParseNetlinkMessage(append([]byte(nil), raw...))
	if err != nil {
		return nil, os.NewSyscallError("netlink", err)
	}
	out := make([]reply, len(msgs))
	for i, m := range msgs {
		out[i] = reply{typ: m.Header.Type, flags: m.Header.Flags, seq: m.Header.Seq, data: m.Data}
		if m.Header.Type >= unix.NLMSG_MIN_TYPE && len(m.Data) >= nfgenmsgSize {
			out[i].data = m.Data[nfgenmsgSize:]
		}
	}
	return out, nil
}

// err is the error that the reply carries, with the kernel's own words where it says more; nil for
// any other reply and for an acknowledgement.
func (r reply) err() error {
	if r.typ != unix.NLMSG_ERROR && r.typ != unix.NLMSG_DONE || len(r.data) < 4 {
		return nil
	}
	errno := -int32(binary.NativeEndian.Uint32(r.data))
	if errno <= 0 {
		return nil
	}
	if text := r.extack(); text != "" {
		return fmt.Errorf("%w (%s)", unix.Errno(errno), text)
	}
	return unix.Errno(errno)
}

func (r reply) extack() string {
	if r.typ != unix.NLMSG_ERROR || r.flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	at := uint64(4 + unix.SizeofNlMsghdr)
	if r.flags&unix.NLM_F_CAPPED == 0 && uint64(len(r.data)) >= at {
		at = 4 + uint64(binary.NativeEndian.Uint32(r.data[4:]))
	}
	for typ, val := range attributes(r.data[min(at, uint64(len(r.data))):]) {
		if typ == unix.NLMSGERR_ATTR_MSG {
			return cstring(val)
		}
	}
	return ""
}
