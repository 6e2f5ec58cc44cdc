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

// batch sends the messages as one batch. If commit is false, the batch has no end message, so that the kernel checks
// all messages and applies none.
func (c *Conn) batch(msgs []message, commit bool) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := c.dial(); err != nil {
		return err
	}
	all := append([]message{{typ: unix.NFNL_MSG_BATCH_BEGIN}}, msgs...)
	all[len(msgs)].flags |= unix.NLM_F_ACK // only for the last one, because errors are reported without it
	if commit {
		all = append(all, message{typ: unix.NFNL_MSG_BATCH_END})
	}
	var refusal error
	err := c.exchange(all, func(index int, answer syscall.NetlinkMessage) (last bool) {
		if cause := answerError(answer); cause != nil && refusal == nil {
			refusal = batchError(msgs, index, cause)
		}
		return index == 0 || index == len(msgs) // the batch itself, or its last operation
	})
	if refusal == nil && err != nil {
		return fmt.Errorf("nftables table %q: %w", msgs[0].table, err)
	}
	return refusal
}

// batchError returns the error of msgs[index-1]. Index 0 is the begin message, which a kernel without nf_tables
// refuses.
func batchError(msgs []message, index int, cause error) error {
	m := message{table: msgs[0].table, what: "commit"}
	if errors.Is(cause, unix.EOPNOTSUPP) {
		m.modules = core
	}
	if index >= 1 && index <= len(msgs) {
		m = msgs[index-1]
	}
	err := fmt.Errorf("nftables table %q: %s: %w", m.table, m.what, cause)
	if m.modules == "" {
		return err
	}
	return addUnsupportedIf(err, cause, m.modules)
}

// exchange sends messages in one datagram, which the library does not support. It passes each answer with the index of
// its message to handle until handle returns true. The kernel answers before the send call returns, so a missing answer
// is an error.
func (c *Conn) exchange(msgs []message, handle func(index int, answer syscall.NetlinkMessage) (last bool)) error {
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
	buf := make([]byte, 8<<10) // enough for one object, or for an error without its request
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
			index := int(a.Header.Seq - first) // outside of msgs: a late answer to an earlier request
			if index >= 0 && index < len(msgs) && handle(index, a) {
				return nil
			}
		}
	}
}

// send sends a datagram, and enlarges the socket's buffer if necessary. Without CAP_NET_ADMIN in the initial user
// namespace, the limit is net.core.wmem_max, beyond which the error is EMSGSIZE.
func (c *Conn) send(out []byte) error {
	fd, kernel := c.sock.Socket.GetFd(), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	err := unix.Sendto(fd, out, 0, kernel)
	if !errors.Is(err, unix.EMSGSIZE) {
		return err
	}
	size := len(out) + 32 // the kernel subtracts 32
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size)
	return unix.Sendto(fd, out, 0, kernel)
}

// answerError returns the error in a message, with the kernel's explanation, or nil if the message is not an error. The
// library's function for this is private.
func answerError(m syscall.NetlinkMessage) error {
	if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4+unix.SizeofNlMsghdr {
		return nil
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	if errno == 0 {
		return nil
	}
	// With NETLINK_CAP_ACK, only the header of the request precedes the attributes.
	if text := nlattr.Get(m.Data[4+unix.SizeofNlMsghdr:], unix.NLMSGERR_ATTR_MSG); text != nil {
		return fmt.Errorf("%w: %s", errno, unix.ByteSliceToString(text))
	}
	return errno
}

// query requests single objects, many per datagram. It returns the attributes of each, or nil for a missing object.
func (c *Conn) query(msgs ...message) ([][]byte, error) {
	const chunk = 64 // the answers must fit into the receive buffer
	if err := c.dial(); err != nil {
		return nil, err
	}
	var out [][]byte
	for part := range slices.Chunk(msgs, chunk) {
		found := make([][]byte, len(part))
		var refusal error
		err := c.exchange(part, func(index int, answer syscall.NetlinkMessage) (last bool) {
			err := answerError(answer)
			if err == nil {
				found[index] = slices.Clone(answer.Data[min(nfgenmsgSize, len(answer.Data)):])
			} else if !isAbsent(err) {
				refusal = cmp.Or(refusal, err)
			}
			return index == len(part)-1
		})
		if err = cmp.Or(refusal, err); err != nil {
			return nil, c.readError(part[0], err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// list returns all objects that the request selects. The first byte of each is the family, and the attributes begin at
// nfgenmsgSize. It returns none if the table or set does not exist.
func (c *Conn) list(m message) ([][]byte, error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	answers, err := c.execute(m, unix.NLM_F_DUMP)
	switch {
	case isAbsent(err):
		return nil, nil
	case err != nil:
		return nil, c.readError(m, err)
	}
	return slices.DeleteFunc(answers, func(a []byte) bool { return len(a) < nfgenmsgSize }), nil
}

// isAbsent reports whether an error means that the object does not exist. With ERANGE, its name is too long to exist.
func isAbsent(err error) bool { return isOneOf(err, unix.ENOENT, unix.ERANGE) }

// execute sends one request through the library, which repeats a list up to ten times if it changed concurrently.
func (c *Conn) execute(m message, flags uint16) ([][]byte, error) {
	req := m.request(flags)
	req.Sockets, req.RetryInterrupted = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: c.sock}, true
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOBUFS) {
		_ = c.Close() // otherwise the kernel refuses other lists until the rest of this one is read
	}
	return answers, err
}

// readError returns an error that names the table. It adds ErrUnsupported if the kernel has no nf_tables, which it
// detects by a request that is always valid.
func (c *Conn) readError(m message, cause error) error {
	err := fmt.Errorf("nftables table %q: %w", m.table, cause)
	if !errors.Is(cause, unix.EINVAL) {
		return err
	}
	if _, probeErr := c.execute(m.table.message(unix.NFT_MSG_GETGEN, ""), 0); errors.Is(probeErr, unix.EINVAL) {
		return addUnsupported(err, core)
	}
	return err
}
