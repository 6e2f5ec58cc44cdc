package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrDuplicate means that duplicate address detection found another host with the address.
var ErrDuplicate = errors.New("in use by another host (duplicate address detection failed)")

// WaitUp waits until packets can pass through a link, and returns the link. Packets can pass if its operational state
// is up, or unknown with a carrier, because some drivers do not report a state. The state of a new pair is unknown
// until a worker of the kernel has handled its first change of the carrier. Until then the pair may drop packets. If
// ctx ends, the error of this and of all other waits names the missing condition and matches the cause of ctx.
func (c *Conn) WaitUp(ctx context.Context, index int) (l Link, err error) {
	err = c.wait(ctx, unix.RTNLGRP_LINK, index, func() (string, error) {
		l, err = c.LinkByIndex(index)
		if l.Oper == "up" || (l.Oper == "unknown" && l.Carrier && !l.IsPairEnd()) {
			return "", err
		}
		return "state up, is " + l.Oper, err
	})
	return l, err
}

// WaitGone waits until a link no longer exists.
func (c *Conn) WaitGone(ctx context.Context, index int) error {
	return c.wait(ctx, unix.RTNLGRP_LINK, index, func() (string, error) {
		_, err := c.LinkByIndex(index)
		if errors.Is(err, ErrNoLink) {
			return "", nil
		}
		return "deletion", err
	})
}

// WaitDAD waits until no address of the link is tentative. It returns immediately with an error that matches
// ErrDuplicate if another host has an address.
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

// WaitLinkLocal waits until a link has a usable IPv6 link-local address, and returns it.
func (c *Conn) WaitLinkLocal(ctx context.Context, index int) (addr netip.Addr, err error) {
	err = c.wait(ctx, 0, index, func() (string, error) {
		addrs, err := c.Addrs(index)
		for _, a := range addrs {
			switch {
			case !a.Prefix.Addr().Is6() || !a.Prefix.Addr().IsLinkLocalUnicast():
			case a.DADFailed:
				return "", c.linkError(index, fmt.Sprintf("address %s", a.Prefix), ErrDuplicate)
			case !a.Tentative:
				addr = a.Prefix.Addr()
				return "", err
			}
		}
		if err != nil {
			return "", err
		}
		return "a link-local address", c.checkExists(index)
	})
	return addr, err
}

// WaitLocal waits until the namespace receives packets for IPv6 addresses of a link. The kernel adds an address before
// it adds the local route and answers neighbors. Packets that arrive in between are lost.
func (c *Conn) WaitLocal(ctx context.Context, index int, addrs ...netip.Addr) error {
	// The link is given because it may be in a VRF, which has its own tables.
	link := nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index)))
	return c.wait(ctx, unix.RTNLGRP_IPV6_ROUTE, index, func() (string, error) {
		for _, a := range addrs {
			found, err := c.lookupRoute(a, 0, link)
			if err = ignoreUnreachable(err); err != nil || found.Type != unix.RTN_LOCAL {
				return fmt.Sprintf("address %s", a), err
			}
		}
		return "", nil
	})
}

// WaitAddrs waits until missing, which receives the addresses of a link, returns an empty string.
func (c *Conn) WaitAddrs(ctx context.Context, index int, missing func([]AddrCopy) string) error {
	return c.wait(ctx, 0, index, func() (string, error) {
		addrs, err := c.AddrCopies(index)
		if err != nil {
			return "", err
		}
		text := missing(addrs)
		if text == "" {
			return "", nil
		}
		return text, c.checkExists(index)
	})
}

// checkExists returns an error that matches ErrNoLink if the link does not exist. The kernel then lists no addresses.
func (c *Conn) checkExists(index int) error {
	_, err := c.LinkByIndex(index)
	return err
}

// WaitQuiet waits until no address of a link, no route and no rule has changed for a time. It returns early if ctx ends
// or the changes cannot be read.
func (c *Conn) WaitQuiet(ctx context.Context, index int, quiet time.Duration) {
	events, err := c.subscribe(unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return
	}
	defer events.Close()
	end := func() { _ = events.Close() }
	timer := time.AfterFunc(quiet, end)
	defer timer.Stop()
	defer context.AfterFunc(ctx, end)()
	for nextEvent(events, index) == nil {
		timer.Reset(quiet)
	}
}

// wait calls check now and after each event of the group, until check returns an error or an empty string. The string
// names the missing condition. Group 0 selects links and the addresses of both families.
func (c *Conn) wait(ctx context.Context, group uint, index int, check func() (missing string, err error)) error {
	// Usually nothing is missing, and this check saves the cost of a subscription.
	if missing, err := check(); missing == "" || err != nil {
		return err
	}
	groups := []uint{group}
	if group == 0 {
		groups = []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}
	}
	events, err := c.subscribe(groups...)
	if err != nil {
		return c.linkError(index, "subscribe to changes", err)
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.Close() })()
	for {
		// The check follows the subscription, so that no change between the two is missed.
		missing, err := check()
		if missing == "" || err != nil {
			return err
		}
		err = nextEvent(events, index)
		if ctx.Err() != nil {
			return c.linkError(index, "wait for "+missing, context.Cause(ctx))
		}
		if err != nil {
			return c.linkError(index, "read changes", err)
		}
	}
}

// nextEvent returns after an event of the link or of any route or rule. It also returns if events were lost.
func nextEvent(events *nl.NetlinkSocket, index int) error {
	for {
		messages, _, err := events.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			return nil
		}
		if err != nil || slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool {
			// The headers of links and addresses have the index at the same offset. A route's header has none.
			return m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_NEWRULE ||
				len(m.Data) >= 8 && binary.NativeEndian.Uint32(m.Data[4:]) == uint32(index)
		}) {
			return err
		}
	}
}

// subscribe opens a socket that receives the events of groups. The library's LinkSubscribe and similar functions end
// when events were lost, and leak a goroutine if the caller stops receiving.
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
