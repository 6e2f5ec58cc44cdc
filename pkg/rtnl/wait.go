package rtnl

import (
	"cmp"
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
// is up. For a link with a carrier, the state unknown is enough, because some drivers do not report a state. It is not
// enough for a pair, because a new pair may drop packets until a worker of the kernel has set its state. If ctx ends,
// the error of this and of all other waits names the missing condition and matches the cause of ctx.
func (c *Conn) WaitUp(ctx context.Context, index int) (l Link, err error) {
	err = c.wait(ctx, index, func() (string, error) {
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
	return c.wait(ctx, index, func() (string, error) {
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
	return c.wait(ctx, index, func() (string, error) {
		addrs, err := c.Addrs(index)
		pending := ""
		for _, a := range addrs {
			switch {
			case a.DADFailed:
				return "", c.duplicateError(index, a.Prefix)
			case a.Tentative:
				pending = fmt.Sprintf("duplicate address detection of %s", a.Prefix)
			}
		}
		return pending, err
	}, unix.RTNLGRP_IPV6_IFADDR)
}

// WaitLinkLocal waits for a usable IPv6 link-local address of a link. For a duplicate, the error matches ErrDuplicate.
func (c *Conn) WaitLinkLocal(ctx context.Context, index int) (addr netip.Addr, err error) {
	var duplicate error
	err = c.WaitAddrs(ctx, index, func(addrs []AddrCopy) string {
		for _, a := range addrs {
			switch {
			case !a.IsLinkLocal6():
			case a.Has(unix.IFA_F_DADFAILED):
				duplicate = c.duplicateError(index, a.Prefix())
				return ""
			case !a.Has(unix.IFA_F_TENTATIVE):
				addr = a.Prefix().Addr()
				return ""
			}
		}
		return "a link-local address"
	})
	return addr, cmp.Or(err, duplicate)
}

func (c *Conn) duplicateError(index int, addr netip.Prefix) error {
	return c.linkError(index, fmt.Sprintf("address %s", addr), ErrDuplicate)
}

// WaitLocal waits until the namespace receives packets for IPv6 addresses of a link. The kernel adds an address before
// it adds the local route and answers neighbors. Packets that arrive in between are lost.
func (c *Conn) WaitLocal(ctx context.Context, index int, addrs ...netip.Addr) error {
	// The link is given because it may be in a VRF, which has its own tables.
	link := nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index)))
	return c.wait(ctx, index, func() (string, error) {
		for _, a := range addrs {
			found, err := c.lookupRoute(a, 0, link)
			if err = ignoreUnreachable(err); err != nil || found.Type != unix.RTN_LOCAL {
				return fmt.Sprintf("address %s", a), err
			}
		}
		return "", nil
	}, unix.RTNLGRP_IPV6_ROUTE)
}

// WaitAddrs waits until missing, which receives the addresses of a link, returns an empty string.
func (c *Conn) WaitAddrs(ctx context.Context, index int, missing func([]AddrCopy) string) error {
	return c.wait(ctx, index, func() (string, error) {
		addrs, err := c.AddrCopies(index)
		if err != nil {
			return "", err
		}
		return missing(addrs), nil
	}, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// WaitQuiet waits until no address of a link, no route through it and no rule has changed for a time. It returns early
// if ctx ends or the changes cannot be read.
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
	for err == nil {
		timer.Reset(quiet)
		_, err = nextEvent(events, index)
	}
}

// wait calls check now and after each event of the link or of groups, until check returns an error or an empty string.
// The string names the missing condition. With groups, check need not notice that the link is deleted: wait reads the
// link itself, and returns an error that matches ErrNoLink.
func (c *Conn) wait(ctx context.Context, index int, check func() (missing string, err error), groups ...uint) error {
	// Usually nothing is missing, and this check saves the cost of a subscription.
	if missing, err := check(); missing == "" || err != nil {
		return err
	}
	events, err := c.subscribe(append(groups, unix.RTNLGRP_LINK)...)
	if err != nil {
		return c.linkError(index, "subscribe to changes", err)
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.Close() })()
	// The link is read and check is called again after the subscription, so that no change before it is missed.
	for mayBeDeleted := true; ; {
		if mayBeDeleted && len(groups) > 0 {
			if _, err := c.LinkByIndex(index); err != nil {
				return err
			}
		}
		missing, err := check()
		if missing == "" || err != nil {
			return err
		}
		mayBeDeleted, err = nextEvent(events, index)
		if ctx.Err() != nil {
			return c.linkError(index, "wait for "+missing, context.Cause(ctx))
		}
		if err != nil {
			return c.linkError(index, "read changes", err)
		}
	}
}

// nextEvent returns after an event of the link, of a route through it or of any rule. It also returns if events were
// lost. mayBeDeleted is false if the link was certainly not deleted.
func nextEvent(events *nl.NetlinkSocket, index int) (mayBeDeleted bool, err error) {
	for {
		messages, from, err := events.Receive()
		switch {
		case isDisturbed(err) || errors.Is(err, unix.EINVAL): // EINVAL: another process sent a malformed message
			return true, nil
		case err == nil && from.Pid != nl.PidKernel:
			continue
		}
		messages = slices.DeleteFunc(messages, func(m syscall.NetlinkMessage) bool { return !isAbout(m, index) })
		if err != nil || len(messages) > 0 {
			isDeletion := func(m syscall.NetlinkMessage) bool { return m.Header.Type == unix.RTM_DELLINK }
			return slices.ContainsFunc(messages, isDeletion), err
		}
	}
}

func isAbout(m syscall.NetlinkMessage, index int) bool {
	switch m.Header.Type {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return slices.Contains(readCopy(m.Data).Links(), index)
	}
	// The headers of links and addresses have the index at the same offset.
	return len(m.Data) >= 8 && binary.NativeEndian.Uint32(m.Data[4:]) == uint32(index)
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
