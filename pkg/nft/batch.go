package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
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
	return c.commitPieces(msgs, c.sock.sendBuffer())
}

// commitPieces sends the messages in as many batches as it takes to stay within room bytes each.
func (c *Conn) commitPieces(msgs []message, room int) error {
	for len(msgs) > 0 {
		n, size := 0, 2*emptyMessage+sendSlack
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

const emptyMessage = unix.SizeofNlMsghdr + nfgenmsgSize

// batch sends one batch. Without the end message the kernel tries everything and keeps nothing.
func (c *Conn) batch(msgs []message, keep bool) error {
	begin := c.sock.seq + 1
	c.sock.seq += uint32(len(msgs)) + 2
	last := begin + uint32(len(msgs))
	out := message{typ: unix.NFNL_MSG_BATCH_BEGIN}.encode(nil, begin, 0)
	for i, m := range msgs {
		extra := uint16(0)
		if i == len(msgs)-1 {
			// One acknowledgement for all: errors are reported without.
			extra = unix.NLM_F_ACK
		}
		out = m.encode(out, begin+1+uint32(i), extra)
	}
	if keep {
		out = message{typ: unix.NFNL_MSG_BATCH_END}.encode(out, last+1, 0)
	}
	replies, err := c.sock.exchange(out, begin)
	acked := false
	for _, r := range replies {
		if e := r.err(); e != nil {
			return batchFailure(msgs, r.seq-begin, e)
		}
		acked = acked || r.seq == last && r.typ == unix.NLMSG_ERROR
	}
	switch {
	case err != nil:
		return fmt.Errorf("nftables table %q: %w", msgs[0].table, err)
	case !acked:
		return fmt.Errorf("nftables table %q: no answer from the kernel", msgs[0].table)
	}
	return nil
}

// batchFailure attributes the error to the operation by its place: 0 is the batch itself, which a
// kernel without nf_tables refuses.
func batchFailure(msgs []message, place uint32, cause error) error {
	m := message{table: msgs[0].table, what: "commit", feature: errors.Is(cause, unix.EOPNOTSUPP)}
	if place >= 1 && int(place) <= len(msgs) {
		m = msgs[place-1]
	}
	var err error = &batchError{m, cause}
	if m.feature {
		err = unsupported(err, cause)
	}
	return err
}

// query sends requests for single objects, many at a time, and returns the answers to each. What is
// not there has no answer.
func (c *Conn) query(msgs ...message) ([][]reply, error) {
	const atOnce = 64 // the answers have to fit into the receive buffer
	if err := c.dial(); err != nil {
		return nil, err
	}
	out := make([][]reply, len(msgs))
	for at := 0; at < len(msgs); at += atOnce {
		part := msgs[at:min(at+atOnce, len(msgs))]
		first := c.sock.seq + 1
		c.sock.seq += uint32(len(part))
		var raw []byte
		for i, m := range part {
			raw = m.encode(raw, first+uint32(i), 0)
		}
		replies, err := c.sock.exchange(raw, first)
		if err != nil {
			return nil, fmt.Errorf("nftables table %q: %w", part[0].table, err)
		}
		for _, r := range replies {
			i := int(r.seq - first)
			if err := r.err(); err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, c.readFailure(msgs[at+i], err)
			} else if err == nil {
				out[at+i] = append(out[at+i], r)
			}
		}
	}
	return out, nil
}

// dump returns all objects that the request selects, from one state of the ruleset.
func (c *Conn) dump(m message) ([]reply, error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		replies, err := c.dumpOnce(m)
		switch {
		case err == nil:
			return replies, nil
		case errors.Is(err, unix.ENOENT):
			return nil, nil
		case !errors.Is(err, unix.EINTR) || attempt == 4*attempts:
			return nil, c.readFailure(m, err)
		}
	}
}

// dumpOnce fails with EINTR when the ruleset changed under way: what came then is a mixture.
func (c *Conn) dumpOnce(m message) ([]reply, error) {
	c.sock.seq++
	replies, err := c.sock.exchange(m.encode(nil, c.sock.seq, unix.NLM_F_DUMP), c.sock.seq)
	if err != nil {
		return nil, err
	}
	var out []reply
	for _, r := range replies {
		if err := r.err(); err != nil {
			return nil, err
		}
		if r.flags&unix.NLM_F_DUMP_INTR != 0 {
			return nil, unix.EINTR
		}
		if r.typ == unix.NLMSG_DONE {
			return out, nil
		}
		out = append(out, r)
	}
	return nil, errors.New("no answer from the kernel")
}

// readFailure knows a kernel without nf_tables by the fact that it calls every request invalid.
func (c *Conn) readFailure(m message, cause error) error {
	err := fmt.Errorf("nftables table %q: %w", m.table, cause)
	if !errors.Is(cause, unix.EINVAL) {
		return err
	}
	c.sock.seq++
	replies, _ := c.sock.exchange(message{typ: nfMsg(unix.NFT_MSG_GETGEN)}.encode(nil, c.sock.seq, 0), c.sock.seq)
	for _, r := range replies {
		if errors.Is(r.err(), unix.EINVAL) {
			return fmt.Errorf("%w: %w", err, ErrUnsupported)
		}
	}
	return err
}
