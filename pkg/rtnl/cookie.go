package rtnl

import "golang.org/x/sys/unix"

// NetnsCookie is the number that the kernel gives to the namespace of the socket and to no other until
// the machine restarts. It is false where the kernel has no such number (before 5.14).
func (c *Conn) NetnsCookie() (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cookie, err := unix.GetsockoptUint64(c.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie, err == nil
}
