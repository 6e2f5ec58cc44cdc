package nft

// CommitInPieces is Update for a socket whose buffer holds no more than room bytes, without the lock.
func CommitInPieces(c *Conn, room int, plan func(*Tx)) error {
	tx := &Tx{Conn: c, Attempt: 1}
	plan(tx)
	if err := c.dial(); err != nil {
		return err
	}
	return c.commitPieces(tx.msgs, room)
}
