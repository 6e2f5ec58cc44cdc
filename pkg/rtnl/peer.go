package rtnl

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// PeerNSGone tells whether the namespace of a veth's other end has ended. The kernel deletes the
// veth a moment later. Before Linux 4.20 it is told only at the end of that moment.
func (c *Conn) PeerNSGone(l Link) bool {
	if l.PeerNS < 0 { // the namespace has no number any more
		return l.Peer != 0
	}
	number := nl.NewRtAttr(unix.NETNSA_NSID, nl.Uint32Attr(uint32(l.PeerNS)))
	_, err := c.send(unix.RTM_GETNSID, 0, nl.NewRtGenMsg(), number)
	return errors.Is(err, unix.ENOENT)
}

// WaitGone waits until a link is gone. At the deadline of ctx the error matches ctx's error.
func (c *Conn) WaitGone(ctx context.Context, index int) error {
	return c.wait(ctx, unix.RTNLGRP_LINK, index, func() (string, error) {
		_, err := c.LinkByIndex(index)
		if errors.Is(err, ErrNoLink) {
			return "", nil
		}
		return "its end", err
	})
}
