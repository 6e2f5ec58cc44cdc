package rtnl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hawser-cni/plugins/pkg/netlink"
	"github.com/hawser-cni/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// ErrDuplicate says that duplicate address detection found another user.
var ErrDuplicate = errors.New("in use by another host (duplicate address detection failed)")

// WaitUp waits until packets can pass through a link: its operational state
// is up, or unknown with a carrier (drivers that report none). At the deadline
// of ctx the error names the state and matches ctx's error.
func (c *Conn) WaitUp(ctx context.Context, index int) error {
	return c.wait(ctx, unix.RTNLGRP_LINK, index, func() (string, error) {
		l, err := c.LinkByIndex(index)
		if l.Oper == "up" || l.Oper == "unknown" && l.Carrier {
			return "", err
		}
		return "state up, is " + l.Oper, err
	})
}

// WaitDAD waits until no address of the link is tentative. An address that is
// in use elsewhere is ErrDuplicate at once. At the deadline of ctx the error
// names the address and matches ctx's error.
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

// wait calls look now and after each change of the link, until look says that
// nothing is pending.
func (c *Conn) wait(ctx context.Context, group uint, index int, look func() (pending string, err error)) error {
	// Mostly it is so already, and then no subscription is paid for.
	if pending, err := look(); pending == "" || err != nil {
		return err
	}
	ev, err := c.subscribe(group)
	if err != nil {
		return c.linkError(index, "subscribe to changes", err)
	}
	defer ev.Close()
	stop := context.AfterFunc(ctx, func() { _ = ev.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		// After subscribing: a change from here on is an event.
		pending, err := look()
		if pending == "" || err != nil {
			return err
		}
		err = nextEvent(ev, index)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return c.linkError(index, "wait for "+pending, context.Cause(ctx))
		}
		if err != nil {
			return c.linkError(index, "read changes", err)
		}
	}
}

// subscribe opens a socket that receives a group's events, in the namespace of
// the Conn. It is another one so that a flood of events cannot push out the
// answers on the first.
func (c *Conn) subscribe(group uint) (*os.File, error) {
	var n *ns.NS
	err := c.use(func(s *netlink.Socket) (err error) {
		n, err = ns.OfSocket(s.FD())
		return err
	})
	if err != nil {
		return nil, err
	}
	defer n.Close()
	fd := -1
	err = n.Do(func() (err error) {
		fd, err = openEvents(1 << (group - 1))
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "rtnetlink events"), nil
}

func openEvents(groups uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// nextEvent returns when something about the link changed, or when events were
// lost: then anything may have changed.
func nextEvent(ev *os.File, index int) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := ev.Read(buf)
		if errors.Is(err, unix.ENOBUFS) {
			return nil
		}
		if err != nil {
			return err
		}
		for m := range netlink.Messages(buf[:n]) {
			// The index is at the same place in the headers of links and
			// addresses; a route's has none.
			if m.Type == unix.RTM_NEWROUTE || len(m.Data) >= 8 && linkIndex(m.Data) == index {
				return nil
			}
		}
	}
}
