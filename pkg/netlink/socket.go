// Package netlink is the wire of netlink: messages, attributes, and a socket
// that asks the kernel. What the messages mean is for the packages above it.
package netlink

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrInterrupted says that what was listed changed during every attempt to
	// list it.
	ErrInterrupted = errors.New("changed all the time while it was read")
	// ErrNoAnswer says that the kernel did not answer a request.
	ErrNoAnswer = errors.New("no answer from the kernel")
)

const (
	// The kernel builds lists in parts of at most 32 KiB.
	receiveSize = 32 << 10
	sendSlack   = 32 // what the kernel takes off the send buffer
	// How many parts of one answer may be lost before the rest is, too.
	lossesMax = 1000
	// How long an interrupted list is read again.
	dumpPatience = 5 * time.Second
)

// Socket is a netlink socket of the namespace in which it was opened. It is for
// one goroutine at a time.
//
// The kernel works on a request while it is being sent, so every answer is
// there when the send returns, and nothing is ever waited for: an answer that
// is missing is an error and no hang.
type Socket struct {
	fd  int
	seq uint32
	buf []byte
}

// Open opens a socket of a protocol (NETLINK_ROUTE, say) in the namespace of the
// calling thread.
func Open(protocol int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Without these the errors are bigger and poorer, that is all.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return &Socket{fd: fd}, nil
}

// FD is the descriptor. It belongs to the socket.
func (s *Socket) FD() int { return s.fd }

// Sent is how many messages were sent, also when the socket is closed.
func (s *Socket) Sent() int64 { return int64(s.seq) }

// Close closes the socket.
func (s *Socket) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// Exchange sends requests in one datagram and hands on every answer with the
// number of its request, until the last request that is not quiet is answered.
// An answer that is an error is handed on like any other; ErrNoAnswer says that
// some are missing. The message's data is valid until each returns.
func (s *Socket) Exchange(reqs []Request, each func(i int, m Message)) error {
	first := s.seq + 1
	s.seq += uint32(len(reqs))
	var out []byte
	last := -1
	for i, r := range reqs {
		out = r.encode(out, first+uint32(i))
		if !r.Quiet {
			last = i
		}
	}
	if err := s.send(out); err != nil {
		return err
	}
	var lost error
	losses := 0
	for done := last < 0; !done; {
		data, err := s.receive()
		switch {
		case losses < lossesMax && (errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS)):
			// The kernel refuses another list until the rest of this one is taken.
			lost = cmp.Or(lost, err)
			losses++
			continue
		case err != nil:
			return cmp.Or(lost, err)
		}
		for m := range Messages(data) {
			i := int(m.seq - first)
			if i < 0 || i >= len(reqs) {
				continue // a late answer to a request that was given up
			}
			each(i, m)
			done = done || i == last && m.End()
		}
	}
	return lost
}

// Do sends a request that changes something and returns what the kernel says.
func (s *Socket) Do(r Request) error {
	r.Flags |= unix.NLM_F_ACK
	var failed error
	err := s.Exchange([]Request{r}, func(_ int, m Message) { failed = m.Err() })
	return errors.Join(failed, err)
}

// Dump sends a request for a list and hands on its entries. When the list
// changed under way, start is called, which drops what was handed on, and it is
// read again, at most for five seconds.
func (s *Socket) Dump(r Request, start func(), each func(m Message)) error {
	r.Flags |= unix.NLM_F_DUMP
	for deadline := time.Now().Add(dumpPatience); ; {
		start()
		interrupted := false
		var failed error
		err := s.Exchange([]Request{r}, func(_ int, m Message) {
			interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
			if m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE {
				failed = m.Err()
				return
			}
			each(m)
		})
		switch {
		case err != nil:
			return err
		case errors.Is(failed, unix.EINTR):
		case failed != nil || !interrupted:
			return failed
		}
		if time.Now().After(deadline) {
			return ErrInterrupted
		}
	}
}

// receive returns the next datagram of the kernel, valid until the next call.
func (s *Socket) receive() ([]byte, error) {
	if s.buf == nil {
		s.buf = make([]byte, receiveSize)
	}
	for {
		n, from, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch sender, ok := from.(*unix.SockaddrNetlink); {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return nil, ErrNoAnswer
		case err != nil:
			return nil, os.NewSyscallError("recv", err)
		case !ok || sender.Pid != 0: // not from the kernel
		case n > len(s.buf):
			return nil, fmt.Errorf("answer of %d bytes: %w", n, unix.EMSGSIZE)
		default:
			return s.buf[:n], nil
		}
	}
}

// send raises the socket's buffer when the datagram needs it. EMSGSIZE says that
// it could not.
func (s *Socket) send(out []byte) error {
	need := len(out) + sendSlack
	for {
		err := unix.Sendto(s.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EMSGSIZE) && s.SendBuffer() < need:
			if s.growSendBuffer(need) < need {
				return os.NewSyscallError("send", err)
			}
		default:
			return os.NewSyscallError("send", err)
		}
	}
}

// SendBuffer is how many bytes one datagram may have.
func (s *Socket) SendBuffer() int {
	n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return 0
	}
	return n
}

// growSendBuffer asks for a buffer of n bytes and returns what it got: without
// CAP_NET_ADMIN over the machine no more than net.core.wmem_max.
func (s *Socket) growSendBuffer(n int) int {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n)
	}
	return s.SendBuffer()
}
