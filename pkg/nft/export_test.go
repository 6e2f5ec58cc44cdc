package nft

import "golang.org/x/sys/unix"

// CommitInPieces is Update for a socket whose buffer holds no more than room bytes, without the lock.
func CommitInPieces(c *Conn, room int, plan func(*Tx)) error {
	tx := &Tx{Conn: c, Attempt: 1}
	plan(tx)
	if err := c.dial(); err != nil {
		return err
	}
	return c.commitPieces(tx.msgs, room)
}

// AskAndLeave sends a request whose answer nobody reads.
func AskAndLeave(c *Conn, t Table) error {
	if err := c.dial(); err != nil {
		return err
	}
	c.sock.Seq++
	req := message{typ: nfMsg(unix.NFT_MSG_GETTABLE), table: t}.request(unix.NLM_F_ACK)
	req.Seq = c.sock.Seq
	return c.sock.Socket.Send(req)
}

// AskNothing sends what the kernel does not answer.
func AskNothing(c *Conn) error {
	if err := c.dial(); err != nil {
		return err
	}
	return c.exchange([]message{{typ: unix.NLMSG_NOOP}}, nil)
}
