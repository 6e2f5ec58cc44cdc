package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrDuplicate says that duplicate address detection found another user.
var ErrDuplicate = errors.New("in use by another host (duplicate address detection failed)")

// The waits end with ctx: the error names what was waited for, and matches ctx's.

// WaitUp waits until packets can pass through a link, and returns it: its operational state is up, or unknown with a
// carrier (drivers that report none).
func (c *Conn) WaitUp(ctx context.Context, index int) (l Link, err error) {
	err = c.wait(ctx, unix.RTNLGRP_LINK, index, func() (string, error) {
		l, err = c.LinkByIndex(index)
		if l.Oper == "up" || (l.Oper == "unknown" && l.Carrier) {
			return "", err
		}
		return "state up, is " + l.Oper, err
	})
	return l, err
}

// WaitGone waits until a link is gone.
func (c *Conn) WaitGone(ctx context.Context, index int) error {
	return c.wait(ctx, unix.RTNLGRP_LINK, index, func() (string, error) {
		_, err := c.LinkByIndex(index)
		if errors.Is(err, ErrNoLink) {
			return "", nil
		}
		return "its end", err
	})
}

// WaitDAD waits until no address of the link is tentative. One that is in use elsewhere is ErrDuplicate at once.
func (c *Conn) WaitDAD(ctx context.Context, index int) error {
	return c.wait(ctx, unix.RTNLGRP_IPV6_IFADDR, index, func() (string, error) {
		addrs, err := c.Addrs(index)
		pending := ""
		for _, a := range addrs {
			switch {
			case a.DADFailed:
				return "", c.linkError(index, fmt.Sprintf("address %s", a.Prefix), ErrDuplicate)
			case a.Tentative:
				pending = fmt.Sprintf("duplicate address detection of %s", a.Prefix)
			}
		}
		return pending, err
	})
}

// WaitLinkLocal waits until a link has a link-local address of IPv6 that can be used, and returns it.
func (c *Conn) WaitLinkLocal(ctx context.Context, index int) (own netip.Addr, err error) {
	err = c.wait(ctx, unix.RTNLGRP_IPV6_IFADDR, index, func() (string, error) {
		addrs, err := c.Addrs(index)
		for _, a := range addrs {
			switch {
			case !a.Prefix.Addr().Is6() || !a.Prefix.Addr().IsLinkLocalUnicast():
			case a.DADFailed:
				return "", c.linkError(index, fmt.Sprintf("address %s", a.Prefix), ErrDuplicate)
			case !a.Tentative:
				own = a.Prefix.Addr()
				return "", err
			}
		}
		return "a link-local address", err
	})
	return own, err
}

// WaitLocal waits until the namespace takes packets for IPv6 addresses of a link. The kernel adds an address before it
// answers neighbours for it and has the local route; packets that come earlier are lost.
func (c *Conn) WaitLocal(ctx context.Context, index int, addrs ...netip.Addr) error {
	// By the link: it may be in a VRF, with tables of its own.
	link := nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index)))
	return c.wait(ctx, unix.RTNLGRP_IPV6_ROUTE, index, func() (string, error) {
		for _, a := range addrs {
			found, err := c.lookUp(a, 0, link)
			if err = ifReachable(err); err != nil || found.Type != unix.RTN_LOCAL {
				return fmt.Sprintf("address %s", a), err
			}
		}
		return "", nil
	})
}

// WaitAddrs waits until missing, which receives the addresses of a link, names nothing.
func (c *Conn) WaitAddrs(ctx context.Context, index int, missing func([]AddrCopy) string) error {
	return c.wait(ctx, 0, index, func() (string, error) {
		addrs, err := c.AddrCopies(index)
		return missing(addrs), err
	})
}

// wait calls look now and after each event of the group, until look says that
// nothing is pending. Group 0 is the addresses of both families.
func (c *Conn) wait(ctx context.Context, group uint, index int, look func() (pending string, err error)) error {
	// Mostly nothing is pending, and then no subscription is paid for.
	if pending, err := look(); pending == "" || err != nil {
		return err
	}
	groups := []uint{group}
	if group == 0 {
		groups = []uint{unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}
	}
	events, err := c.subscribe(groups...)
	if err != nil {
		return c.linkError(index, "subscribe to changes", err)
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.Close() })()
	for {
		// After subscribing: a change from here on is an event.
		pending, err := look()
		if pending == "" || err != nil {
			return err
		}
		err = nextEvent(events, index)
		if ctx.Err() != nil {
			return c.linkError(index, "wait for "+pending, context.Cause(ctx))
		}
		if err != nil {
			return c.linkError(index, "read changes", err)
		}
	}
}

// nextEvent returns when something about the link changed, or when events were
// lost: then anything may have changed.
func nextEvent(events *nl.NetlinkSocket, index int) error {
	for {
		messages, _, err := events.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			return nil
		}
		if err != nil || slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool {
			// The index is at the same place in the headers of links and
			// addresses; a route's has none.
			return m.Header.Type == unix.RTM_NEWROUTE ||
				len(m.Data) >= 8 && binary.NativeEndian.Uint32(m.Data[4:]) == uint32(index)
		}) {
			return err
		}
	}
}

// subscribe opens a socket that receives the events of groups. The library's LinkSubscribe and its like end when some
// were lost, and leave a goroutine behind when nobody takes them.
func (c *Conn) subscribe(groups ...uint) (events *nl.NetlinkSocket, err error) {
	n, err := c.netns()
	if err != nil {
		return nil, err
	}
	defer n.Close()
	err = n.Do(func() (err error) {
		events, err = nl.Subscribe(unix.NETLINK_ROUTE, groups...)
		return err
	})
	return events, err
}
