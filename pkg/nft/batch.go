package nft

import (
	"errors"
	"fmt"

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

// lasting is what an error means that planning again did not cure. "No such file" for a rule whose
// chain and sets are in the same batch is an expression that the kernel does not have.
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
	return c.commitPieces(msgs, c.sock.SendBuffer())
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
	reqs := []netlink.Request{message{typ: unix.NFNL_MSG_BATCH_BEGIN}.request(0)}
	for _, m := range msgs {
		reqs = append(reqs, m.request(0))
	}
	if keep {
		reqs = append(reqs, message{typ: unix.NFNL_MSG_BATCH_END}.request(0))
	}
	for i := range reqs {
		reqs[i].Quiet = true
	}
	// One acknowledgement for all: errors are reported without.
	reqs[len(msgs)].Flags |= unix.NLM_F_ACK
	reqs[len(msgs)].Quiet = false
	var failed error
	err := c.sock.Exchange(reqs, func(i int, m netlink.Message) {
		if e := m.Err(); e != nil && failed == nil {
			failed = batchFailure(msgs, i, e)
		}
	})
	if failed == nil && err != nil {
		return fmt.Errorf("nftables table %q: %w", msgs[0].table, err)
	}
	return failed
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

// query sends requests for single objects, many at a time, and returns the attributes of each. What is
// not there is nil.
func (c *Conn) query(msgs ...message) ([][]byte, error) {
	const atOnce = 64 // the answers have to fit into the receive buffer
	if err := c.dial(); err != nil {
		return nil, err
	}
	out := make([][]byte, len(msgs))
	for at := 0; at < len(msgs); at += atOnce {
		part := msgs[at:min(at+atOnce, len(msgs))]
		var reqs []netlink.Request
		for _, m := range part {
			reqs = append(reqs, m.request(0))
		}
		failed := make([]error, len(part))
		err := c.sock.Exchange(reqs, func(i int, m netlink.Message) {
			if err := m.Err(); err != nil && !errors.Is(err, unix.ENOENT) {
				failed[i] = err
			} else if err == nil {
				out[at+i] = content(m)
			}
		})
		for i, err := range failed {
			if err != nil {
				return nil, c.readFailure(part[i], err)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("nftables table %q: %w", part[0].table, err)
		}
	}
	return out, nil
}

// content is a copy of the message's attributes, never nil.
func content(m netlink.Message) []byte {
	return append([]byte{}, m.Data[min(nfgenmsgSize, len(m.Data)):]...)
}

// dump returns the attributes of all objects that the request selects, from one state of the ruleset.
func (c *Conn) dump(m message) ([][]byte, error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	var out [][]byte
	err := c.sock.Dump(m.request(0), func() { out = nil }, func(m netlink.Message) { out = append(out, content(m)) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, c.readFailure(m, err)
	}
	return out, nil
}

// readFailure knows a kernel without nf_tables by the fact that it calls every request invalid.
func (c *Conn) readFailure(m message, cause error) error {
	err := fmt.Errorf("nftables table %q: %w", m.table, cause)
	if !errors.Is(cause, unix.EINVAL) {
		return err
	}
	none := false
	_ = c.sock.Exchange([]netlink.Request{message{typ: nfMsg(unix.NFT_MSG_GETGEN)}.request(0)}, func(_ int, m netlink.Message) {
		none = errors.Is(m.Err(), unix.EINVAL)
	})
	if none {
		return fmt.Errorf("%w: %w", err, ErrUnsupported)
	}
	return err
}
