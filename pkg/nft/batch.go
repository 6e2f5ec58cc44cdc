package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// batchError is the kernel's answer to one operation of a batch.
type batchError struct {
	msg message
	err error
}

func (e *batchError) Error() string {
	return fmt.Sprintf("nftables table %q: %s: %v", e.msg.table, e.msg.what, e.err)
}

func (e *batchError) Unwrap() error { return e.err }

// lasting adds ErrUnsupported, where that is the cause, to an error that planning again did not cure. "No such
// file" for a rule whose chain and sets are in the same batch means that the kernel lacks an expression.
func lasting(err error) error {
	var e *batchError
	if errors.As(err, &e) && e.msg.rule {
		return unsupported(err, e.err)
	}
	return err
}

// commit sends the messages as one batch. Only when the kernel refuses its size, and no larger buffer
// is to be had, they go in several.
func (c *Conn) commit(msgs []message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := c.dial(); err != nil {
		return err
	}
	err := c.batch(msgs, true)
	if !errors.Is(err, unix.EMSGSIZE) {
		return err
	}
	room, _ := unix.GetsockoptInt(c.sock.Socket.GetFd(), unix.SOL_SOCKET, unix.SO_SNDBUF)
	return c.commitPieces(msgs, room)
}

// commitPieces sends the messages in as many batches as it takes to stay within room bytes each.
func (c *Conn) commitPieces(msgs []message, room int) error {
	for len(msgs) > 0 {
		n, size := 0, 2*emptyMessage+bufferSlack
		for n < len(msgs) && (n == 0 || size+emptyMessage+len(msgs[n].body) <= room) {
			size += emptyMessage + len(msgs[n].body)
			n++
		}
		if err := c.batch(msgs[:n], true); err != nil {
			return fmt.Errorf("in one of several batches, of which the earlier ones stand: %w", err)
		}
		msgs = msgs[n:]
	}
	return nil
}

const (
	emptyMessage = unix.SizeofNlMsghdr + nfgenmsgSize
	bufferSlack  = 32 // what the kernel takes off the send buffer
)

// batch sends one batch. Without the end message the kernel tries everything and keeps nothing.
func (c *Conn) batch(msgs []message, keep bool) error {
	all := append([]message{{typ: unix.NFNL_MSG_BATCH_BEGIN}}, msgs...)
	// One acknowledgement for all: errors are reported without.
	all[len(msgs)].flags |= unix.NLM_F_ACK
	if keep {
		all = append(all, message{typ: unix.NFNL_MSG_BATCH_END})
	}
	var failed error
	err := c.exchange(all, func(place int, answer syscall.NetlinkMessage) (last bool) {
		if err := answerError(answer); err != nil && failed == nil {
			failed = batchFailure(msgs, place, err)
		}
		return place == 0 || place == len(msgs) // about the batch itself, or its last operation
	})
	if failed == nil && err != nil {
		return fmt.Errorf("nftables table %q: %w", msgs[0].table, err)
	}
	return failed
}

// exchange sends messages in one datagram, for which the library has nothing, and hands on each answer
// with the place of its message, until one is the last. The kernel has answered when the datagram is
// sent: what is missing then is an error, and nothing is waited for.
func (c *Conn) exchange(msgs []message, each func(place int, answer syscall.NetlinkMessage) (last bool)) error {
	var out []byte
	first := c.sock.Seq + 1
	for _, m := range msgs {
		c.sock.Seq++
		req := m.request(0)
		req.Seq = c.sock.Seq
		out = append(out, req.Serialize()...)
	}
	if err := c.send(out); err != nil {
		return err
	}
	buf := make([]byte, 8<<10) // for one object, or an error without its request
	for {
		n, _, err := unix.Recvfrom(c.sock.Socket.GetFd(), buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			err = fmt.Errorf("no answer from the kernel: %w", err)
		}
		if err != nil {
			return err
		}
		answers, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, a := range answers {
			place := int(a.Header.Seq - first) // others are late, of a request that was given up
			if place >= 0 && place < len(msgs) && each(place, a) {
				return nil
			}
		}
	}
}

// send sends a datagram, after raising the socket's buffer when it needs that. EMSGSIZE says that it
// could not: without CAP_NET_ADMIN over the machine there is no more than net.core.wmem_max.
func (c *Conn) send(out []byte) error {
	fd, kernel := c.sock.Socket.GetFd(), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	err := unix.Sendto(fd, out, 0, kernel)
	if !errors.Is(err, unix.EMSGSIZE) {
		return err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(out)+bufferSlack) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, len(out)+bufferSlack)
	}
	return unix.Sendto(fd, out, 0, kernel)
}

// answerError is the error in a message, with the kernel's explanation where it gives one. The
// library keeps its own for itself.
func answerError(m syscall.NetlinkMessage) error {
	if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4+unix.SizeofNlMsghdr {
		return nil
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	if errno == 0 {
		return nil
	}
	// The request's header stands before the attributes, but not the request: the socket says so.
	if text := netlink.Attribute(m.Data[4+unix.SizeofNlMsghdr:], unix.NLMSGERR_ATTR_MSG); text != nil {
		return fmt.Errorf("%w: %s", errno, netlink.Text(text))
	}
	return errno
}

// batchFailure attributes the error to the operation by its place: 0 is the batch itself, which a
// kernel without nf_tables refuses.
func batchFailure(msgs []message, place int, cause error) error {
	m := message{table: msgs[0].table, what: "commit", feature: errors.Is(cause, unix.EOPNOTSUPP)}
	if place >= 1 && place <= len(msgs) {
		m = msgs[place-1]
	}
	var err error = &batchError{m, cause}
	if m.feature {
		err = unsupported(err, cause)
	}
	return err
}

// query asks for single objects, many at a time, and returns the attributes of each. What is not there
// is nil.
func (c *Conn) query(msgs ...message) ([][]byte, error) {
	const atOnce = 64 // the answers have to fit into the receive buffer
	if err := c.dial(); err != nil {
		return nil, err
	}
	out := make([][]byte, len(msgs))
	for at := 0; at < len(msgs); at += atOnce {
		part := msgs[at:min(at+atOnce, len(msgs))]
		var failed error
		err := c.exchange(part, func(place int, answer syscall.NetlinkMessage) (last bool) {
			err := answerError(answer)
			if err == nil {
				out[at+place] = append([]byte{}, answer.Data[min(nfgenmsgSize, len(answer.Data)):]...)
			} else if !errors.Is(err, unix.ENOENT) {
				failed = cmp.Or(failed, err)
			}
			return place == len(part)-1
		})
		if err = cmp.Or(failed, err); err != nil {
			return nil, c.readFailure(part[0], err)
		}
	}
	return out, nil
}

// dump returns the attributes of all objects that the request selects, from one state of the ruleset.
func (c *Conn) dump(m message) ([][]byte, error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	answers, err := c.execute(m.request(unix.NLM_F_DUMP))
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, c.readFailure(m, err)
	}
	for i, a := range answers {
		answers[i] = a[min(nfgenmsgSize, len(a)):]
	}
	return answers, nil
}

// execute sends one request through the library, which repeats a list that changed while it was read, ten
// times at most.
func (c *Conn) execute(req *nl.NetlinkRequest) ([][]byte, error) {
	req.Sockets, req.RetryInterrupted = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: c.sock}, true
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOBUFS) {
		_ = c.Close() // the kernel refuses another list until the rest of a lost one is taken
	}
	return answers, err
}

// readFailure adds ErrUnsupported to the error of a kernel without nf_tables, which calls every request invalid.
func (c *Conn) readFailure(m message, cause error) error {
	err := fmt.Errorf("nftables table %q: %w", m.table, cause)
	if !errors.Is(cause, unix.EINVAL) {
		return err
	}
	if _, none := c.execute(message{typ: nfMsg(unix.NFT_MSG_GETGEN)}.request(0)); errors.Is(none, unix.EINVAL) {
		return fmt.Errorf("%w: %w", err, ErrUnsupported)
	}
	return err
}
