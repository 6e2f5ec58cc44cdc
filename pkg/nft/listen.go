package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// Event is a message that the kernel sends to the listeners of a multicast group.
type Event struct {
	Type   uint16 // unix.NFT_MSG_TRACE, for example
	Family Family
	Attrs  []byte // see package nlattr
}

// EventsLost is the Type of an event that reports dropped messages, because the socket's buffer was full.
const EventsLost = 0xff

// Listen subscribes to a multicast group of nftables (unix.NFNLGRP_NFTRACE, for example), calls ready, and passes
// events to handle until handle returns false or ctx ends.
func Listen(ctx context.Context, group uint, ready func() error, handle func(Event) (more bool)) error {
	events, err := nl.Subscribe(unix.NETLINK_NETFILTER, group)
	if err != nil {
		return addUnsupportedIf(fmt.Errorf("netfilter socket: %w", err), err, "nfnetlink")
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.Close() })()
	if err := ready(); err != nil {
		return err
	}
	for {
		messages, _, err := events.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			if !handle(Event{Type: EventsLost}) {
				return nil
			}
		case err != nil:
			return err
		}
		for _, m := range messages {
			if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfgenmsgSize {
				continue
			}
			if !handle(Event{m.Header.Type & 0xff, Family(m.Data[0]), m.Data[nfgenmsgSize:]}) {
				return nil
			}
		}
	}
}

// AddTemporary commits a layout without sets, whose table belongs to the socket of c. Other programs cannot change the
// table, and the kernel deletes it when the socket is closed, even if the process is killed. The error matches
// ErrUnsupported if the kernel has no such tables (before Linux 5.12), and EPERM if another socket owns the table.
func (c *Conn) AddTemporary(l Layout) error {
	const tableOwner = 2 // NFT_TABLE_F_OWNER
	table := newTable(l.Table)
	table.body = append(table.body, nlattr.Net32(unix.NFTA_TABLE_FLAGS, tableOwner)...)
	msgs := []message{table}
	for _, chain := range l.Chains {
		msgs = append(msgs, newChain(l.Table, chain))
		for _, r := range chain.Rules {
			msgs = append(msgs, newRule(l.Table, chain.Name, r))
		}
	}
	err := c.batch(msgs, true)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", err, ErrUnsupported)
	}
	return err
}
