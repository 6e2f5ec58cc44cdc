package rtnl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// WaitLocal waits until the namespace takes packets for IPv6 addresses of a
// link. The kernel says that an address is added before it has joined the group
// in which neighbours ask for it, and before it has the route to itself: that
// is left to a worker, and what comes earlier is lost. An address that is
// tentative gets there when detection ends. At the deadline of ctx the error
// names the address and matches ctx's error.
func (c *Conn) WaitLocal(ctx context.Context, index int, addrs ...netip.Addr) error {
	return c.wait(ctx, unix.RTNLGRP_IPV6_ROUTE, index, func() (string, error) {
		for _, a := range addrs {
			if local, err := c.isLocal(index, a); err != nil || !local {
				return fmt.Sprintf("address %s", a), err
			}
		}
		return "", nil
	})
}

func (c *Conn) isLocal(index int, addr netip.Addr) (local bool, err error) {
	req := routeQuery(addr)
	req.Body.Uint32(unix.RTA_OIF, uint32(index)) // the link may be in a VRF, with tables of its own
	err = c.get(req, func(data []byte) {
		for _, r := range parseRoute(data) {
			local = r.Type == unix.RTN_LOCAL
		}
	})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		err = nil
	}
	return local, err
}
