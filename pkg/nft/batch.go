package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// batch sends the messages as one batch. Without its end the kernel checks everything and keeps nothing.
func (c *Conn) batch(msgs []message, keep bool) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := c.dial(); err != nil {
		return err
	}
	all := append([]message{{typ: unix.NFNL_MSG_BATCH_BEGIN}}, msgs...)
	all[len(msgs)].flags |= unix.NLM_F_ACK // the last one alone: errors are reported without
	if keep {
		all = append(all, message{typ: unix.NFNL_MSG_BATCH_END})
	}
	var failed error
	err := c.exchange(all, func(place int, answer syscall.NetlinkMessage) (last bool) {
		if cause := answerError(answer); cause != nil && failed == nil {
			failed = refusal(msgs, place, cause)
		}
		return place == 0 || place == len(msgs) // about the batch itself, or its last operation
	})
	if failed == nil && err != nil {
		return fmt.Errorf("nftables table %q: %w", msgs[0].table, err)
	}
	return failed
}

// refusal names the operation at that place in an error. 0 is the batch, which a kernel without nf_tables refuses.
func refusal(msgs []message, place int, cause error) error {
	m := message{table: msgs[0].table, what: "commit"}
	if errors.Is(cause, unix.EOPNOTSUPP) {
		m.modules = core
	}
	if place >= 1 && place <= len(msgs) {
		m = msgs[place-1]
	}
	err := fmt.Errorf("nftables table %q: %s: %w", m.table, m.what, cause)
	if m.modules == "" {
		return err
	}
	return unsupported(err, cause, m.modules)
}

// exchange sends messages in one datagram, which the library cannot, and hands on each answer with the place of its
// message, until one is the last. The kernel has answered when the datagram is sent: a missing answer is an error.
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
			place := int(a.Header.Seq - first) // outside of msgs: late, of an earlier request
			if place >= 0 && place < len(msgs) && each(place, a) {
				return nil
			}
		}
	}
}

// send sends a datagram, and raises the socket's buffer if it must. Without CAP_NET_ADMIN over the machine
// it cannot beyond net.core.wmem_max: the error is EMSGSIZE.
func (c *Conn) send(out []byte) error {
	fd, kernel := c.sock.Socket.GetFd(), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	err := unix.Sendto(fd, out, 0, kernel)
	if !errors.Is(err, unix.EMSGSIZE) {
		return err
	}
	size := len(out) + 32 // which the kernel takes off
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size)
	return unix.Sendto(fd, out, 0, kernel)
}

// answerError is the error in a message, with the kernel's explanation if any. The library's own is private.
func answerError(m syscall.NetlinkMessage) error {
	if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4+unix.SizeofNlMsghdr {
		return nil
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	if errno == 0 {
		return nil
	}
	// By NETLINK_CAP_ACK the request's header, but not the request, stands before the attributes.
	if text := nlattr.Get(m.Data[4+unix.SizeofNlMsghdr:], unix.NLMSGERR_ATTR_MSG); text != nil {
		return fmt.Errorf("%w: %s", errno, nlattr.Text(text))
	}
	return errno
}

// query reads single objects, many at a time, and returns the attributes of each, nil for a missing one.
func (c *Conn) query(msgs ...message) ([][]byte, error) {
	const atOnce = 64 // the answers have to fit into the receive buffer
	if err := c.dial(); err != nil {
		return nil, err
	}
	var out [][]byte
	for part := range slices.Chunk(msgs, atOnce) {
		found := make([][]byte, len(part))
		var failed error
		err := c.exchange(part, func(place int, answer syscall.NetlinkMessage) (last bool) {
			err := answerError(answer)
			if err == nil {
				found[place] = slices.Clone(answer.Data[min(nfgenmsgSize, len(answer.Data)):])
			} else if !isAbsent(err) {
				failed = cmp.Or(failed, err)
			}
			return place == len(part)-1
		})
		if err = cmp.Or(failed, err); err != nil {
			return nil, c.readFailure(part[0], err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// list returns all objects that the request selects: the family in the first byte, attributes behind nfgenmsgSize.
func (c *Conn) list(m message) ([][]byte, error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	answers, err := c.execute(m, unix.NLM_F_DUMP)
	switch {
	case isAbsent(err):
		return nil, nil
	case err != nil:
		return nil, c.readFailure(m, err)
	}
	return slices.DeleteFunc(answers, func(a []byte) bool { return len(a) < nfgenmsgSize }), nil
}

// isAbsent says that there is no such object. ERANGE is the kernel's answer for a name that is too long for one.
func isAbsent(err error) bool { return isOneOf(err, unix.ENOENT, unix.ERANGE) }

// execute sends one request through the library, which repeats a list that changed meanwhile up to ten times.
func (c *Conn) execute(m message, flags uint16) ([][]byte, error) {
	req := m.request(flags)
	req.Sockets, req.RetryInterrupted = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: c.sock}, true
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOBUFS) {
		_ = c.Close() // the kernel refuses another list until the rest of a lost one is taken
	}
	return answers, err
}

// readFailure names the table. A kernel without nf_tables calls every request invalid: it adds ErrUnsupported.
func (c *Conn) readFailure(m message, cause error) error {
	err := fmt.Errorf("nftables table %q: %w", m.table, cause)
	if !errors.Is(cause, unix.EINVAL) {
		return err
	}
	if _, none := c.execute(m.table.message(unix.NFT_MSG_GETGEN, ""), 0); errors.Is(none, unix.EINVAL) {
		return lacking(err, core)
	}
	return err
}
