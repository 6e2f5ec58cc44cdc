// Package nft changes nftables over netlink, in one batch for each Update and without the nft program.
//
// A plugin keeps one Conn for a call. What all attachments share (tables, sets, chains, rules) is a
// Layout, as data; what belongs to one attachment is an Element whose comment names the owner. An
// Update holds the host's lock, reads what is there, stages what has to change, and commits it in one
// batch: everything or nothing. In the usual case a batch holds elements only; a layout that is
// missing or has lost rules is made whole by Tx.Ensure. Shared chains are never flushed, since that
// makes the next batch wait for the kernel (RCU), and breaks the traffic of others for a moment.
package nft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

// LockPath is the lock that all plugins of a host share.
const LockPath = "/run/hawser/nft.lock"

// lockWait is how long the lock may be held by others. They hold it for milliseconds.
const lockWait = 30 * time.Second

// answerTime is after how many seconds an answer counts as missing. The kernel answers while it takes the
// request, so nothing is waited for.
const answerTime = 10

// attempts bounds how often an Update is repeated because others, who do not take our lock, changed the same objects
// meanwhile.
const attempts = 5

var (
	// ErrUnsupported says that the kernel cannot hold the layout: no nf_tables, or one that is older
	// than nat in the family inet, say.
	ErrUnsupported = errors.New("not supported by this kernel")
	// ErrDrift says that what is in the kernel is not what the plugins made.
	ErrDrift = errors.New("ruleset differs")
)

// Conn is a connection to the nftables of one network namespace. It is for one goroutine.
type Conn struct{ sock *nl.SocketHandle }

// New returns a connection that is dialled when it is first needed, in the network namespace of the
// thread that needs it.
func New() *Conn { return &Conn{} }

// Close closes the socket. After deletions it waits milliseconds for the kernel: DEL calls it when the
// link is gone, whose deletion waits for the same.
func (c *Conn) Close() error {
	if c.sock == nil {
		return nil
	}
	s := c.sock
	c.sock = nil
	return s.Close()
}

func (c *Conn) dial() error {
	if c.sock != nil {
		return nil
	}
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER) // to nothing: it is the library's way to open a socket
	if err != nil {
		return unsupported(fmt.Errorf("netfilter socket: %w", err), err)
	}
	// Without these the errors are bigger and poorer, that is all.
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = s.SetExtAck(true)
	_ = s.SetReceiveTimeout(&unix.Timeval{Sec: answerTime})
	c.sock = &nl.SocketHandle{Socket: s}
	return nil
}

// Update runs change under the host's lock and commits what it staged, everything or nothing. When somebody without
// the lock got in between, change runs again. One that stages nothing costs no batch. A lock that is still held at
// ctx's deadline, or after 30 seconds, is a *statefile.Busy naming the holder.
func (c *Conn) Update(ctx context.Context, change func(*Tx) error) error {
	dir, err := statefile.Open(filepath.Dir(LockPath), 0o755)
	if err != nil {
		return err
	}
	held, err := dir.Lock(ctx, filepath.Base(LockPath), 0o600, lockWait)
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	return errors.Join(c.update(change), held.Unlock())
}

func (c *Conn) update(change func(*Tx) error) error {
	for attempt := 1; ; attempt++ {
		tx := &Tx{Conn: c}
		if err := change(tx); err != nil {
			return err
		}
		if err := c.batch(tx.msgs, true); err == nil || attempt == attempts || !transient(err) {
			return err
		}
	}
}

// transient says whether the error may come from a change that somebody else made meanwhile, or the
// answer was lost: then the next change finds what the batch did.
func transient(err error) bool {
	return isOneOf(err, unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.EINTR, unix.EAGAIN, unix.ERESTART, unix.ENOBUFS,
		nl.ErrDumpInterrupted)
}

func isOneOf(err error, kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// IfSupported returns err, or nil when err says that the kernel has no nftables: there is nothing to remove.
func IfSupported(err error) error {
	if errors.Is(err, ErrUnsupported) {
		return nil
	}
	return err
}

// unsupported adds ErrUnsupported to err when cause is one of the answers of a kernel that does not
// know what it was asked for.
func unsupported(err, cause error) error {
	if isOneOf(cause, unix.EOPNOTSUPP, unix.ENOENT, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("%w: %w", err, ErrUnsupported)
	}
	return err
}
