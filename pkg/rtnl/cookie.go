package rtnl

import (
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// NetnsCookie is the number that the kernel gives to the namespace of the socket and to no other until
// the machine restarts. It is false where the kernel has no such number (before 5.14).
func (c *Conn) NetnsCookie() (uint64, bool) {
	var cookie uint64
	err := c.use(func(s *netlink.Socket) (err error) {
		cookie, err = unix.GetsockoptUint64(s.FD(), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie, err == nil
}
