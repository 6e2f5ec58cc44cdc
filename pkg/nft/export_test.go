package nft

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// UpdateUnlocked is Update for somebody who does not take the lock.
func UpdateUnlocked(c *Conn, change func(*Tx) error) error { return Owned{}.update(c, change) }

// AskAndLeave sends a request whose answer nobody reads.
func AskAndLeave(c *Conn, t Table) error {
	if err := c.dial(); err != nil {
		return err
	}
	c.sock.Seq++
	req := t.message(unix.NFT_MSG_GETTABLE, "").request(unix.NLM_F_ACK)
	req.Seq = c.sock.Seq
	return c.sock.Socket.Send(req)
}

// AskNothing sends what the kernel does not answer.
func AskNothing(c *Conn) error {
	if err := c.dial(); err != nil {
		return err
	}
	return c.exchange([]message{{typ: unix.NLMSG_NOOP}}, func(int, syscall.NetlinkMessage) bool { return false })
}
