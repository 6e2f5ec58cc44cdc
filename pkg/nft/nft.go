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
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

// DefaultLock is the lock that all plugins of a host share.
const DefaultLock = "/run/hawser/nft.lock"

// lockWait is how long the lock may be held by others. They hold it for milliseconds.
const lockWait = 30 * time.Second

// answerTime is after how many seconds an answer counts as missing. The kernel answers while it takes the
// request, so nothing is waited for.
const answerTime = 10

// NameMax is the longest name of a table, chain or set, in bytes. The kernel refuses even to look for
// a longer one.
const NameMax = 255

// attempts bounds how often an Update plans again because others, who do not take our lock, changed
// the same objects meanwhile.
const attempts = 5

var (
	// ErrUnsupported says that the kernel cannot hold the layout: no nf_tables, or one that is older
	// than nat in the family inet, say.
	ErrUnsupported = errors.New("not supported by this kernel")
	// ErrDrift says that what is in the kernel is not what the plugins made.
	ErrDrift = errors.New("ruleset differs")
)

// Conn is a connection to the nftables of one network namespace. It is for one goroutine.
type Conn struct {
	// Lock is the path of the host's lock file; empty means DefaultLock.
	Lock string

	sock *nl.SocketHandle
}

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
		return unsupported(fmt.Errorf("nftables: %w", err), err)
	}
	// Without these the errors are bigger and poorer, that is all.
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = s.SetExtAck(true)
	_ = s.SetReceiveTimeout(&unix.Timeval{Sec: answerTime})
	c.sock = &nl.SocketHandle{Socket: s}
	return nil
}

// Update runs plan under the host's lock and commits what it staged, everything or nothing. Only a batch that
// no socket buffer holds, without CAP_NET_ADMIN over the machine, goes in pieces; those before one that fails
// stand, as its error says. When somebody without the lock got in between, plan runs again. A plan that stages
// nothing costs no batch. A lock that is still held at ctx's deadline, or after 30 seconds, is a
// *statefile.Busy naming the holder.
func (c *Conn) Update(ctx context.Context, plan func(*Tx) error) error {
	held, err := c.lock(ctx)
	if err != nil {
		return err
	}
	err = c.update(plan)
	return errors.Join(err, held.Unlock())
}

func (c *Conn) update(plan func(*Tx) error) error {
	for attempt := 1; ; attempt++ {
		tx := &Tx{Conn: c, Attempt: attempt}
		if err := plan(tx); err != nil {
			return err
		}
		err := c.commit(tx.msgs)
		if err == nil || errors.Is(err, ErrUnsupported) {
			return err
		}
		if attempt == attempts || !transient(err) {
			return lasting(err)
		}
	}
}

func (c *Conn) lock(ctx context.Context) (*statefile.Held, error) {
	path := cmp.Or(c.Lock, DefaultLock)
	dir, err := statefile.Open(filepath.Dir(path), 0o755)
	if err != nil {
		return nil, err
	}
	held, err := dir.Lock(ctx, filepath.Base(path), 0o600, lockWait)
	return held, errors.Join(err, dir.Close())
}

// transient says whether the error may come from a change that somebody else made meanwhile, or the
// answer was lost: then the next plan finds what the batch did.
func transient(err error) bool {
	for _, errno := range []error{unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.EINTR, unix.EAGAIN, unix.ERESTART,
		unix.ENOBUFS, nl.ErrDumpInterrupted} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
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
	for _, errno := range []error{unix.EOPNOTSUPP, unix.ENOENT, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT} {
		if errors.Is(cause, errno) {
			return fmt.Errorf("%w: %w", err, ErrUnsupported)
		}
	}
	return err
}
