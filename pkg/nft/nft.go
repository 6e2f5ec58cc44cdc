// Package nft changes nftables over netlink, without the nft program.
//
// What all attachments share (tables, sets, chains, rules) is a Layout; what belongs to one attachment is
// an Element whose comment names the owner. An Update holds the host's lock, reads the kernel, stages
// changes, and commits them in one batch: everything or nothing. Usually a batch has elements only; Ensure
// adds what the kernel lacks of a layout. Shared chains are never flushed: the next batch would wait for
// the kernel (RCU), and traffic of others would break for a moment.
package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// LockPath is the lock that all plugins of a host share.
const LockPath = "/run/hawser/nft.lock"

const (
	answerTime = 10 // seconds for an answer of the kernel, which comes at once
	attempts   = 5  // of an Update, while others without our lock change the same objects
)

var (
	// ErrUnsupported says that the kernel has no nf_tables, or lacks a feature (nat in the family inet).
	ErrUnsupported error = &cni.Error{Code: cni.CodeUnsupportedField, Msg: "not supported by this kernel"}
	// ErrDrift says that the kernel has something other than the plugins made.
	ErrDrift = errors.New("ruleset differs")
)

// Conn is a connection to the nftables of one network namespace. It is for one goroutine.
type Conn struct{ sock *nl.SocketHandle }

// New returns a connection that is dialled when it is first used, in the network namespace of that thread.
func New() *Conn { return &Conn{} }

// Close closes the socket. After deletions that waits milliseconds for the kernel, as the deletion of a
// link does: DEL deletes the link first, and waits once.
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
		ns.TakeDescriptor()
		return unsupported(fmt.Errorf("netfilter socket: %w", err), err, "nfnetlink")
	}
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = s.SetExtAck(true)
	_ = s.SetReceiveTimeout(&unix.Timeval{Sec: answerTime})
	c.sock = &nl.SocketHandle{Socket: s}
	return nil
}

// Update runs change under the host's lock and commits what it staged, everything or nothing. It runs change again when
// others without the lock changed the same. A lock that stays held, for 30 seconds at most, is a statefile.ErrBusy.
func (c *Conn) Update(ctx context.Context, change func(*Tx) error) error {
	return Owned{}.Update(ctx, c, change)
}

// Update is Conn.Update for changes of owned elements. A chain that loses its last element is deleted in the same
// batch, and so on with the chains to which it led.
func (o Owned) Update(ctx context.Context, c *Conn, change func(*Tx) error) error {
	lock, err := statefile.LockFile(ctx, LockPath, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(o.update(c, change), lock.Unlock())
}

func (o Owned) update(c *Conn, change func(*Tx) error) error {
	for attempt := 1; ; attempt++ {
		tx := o.begin(c)
		if err := change(tx); err != nil {
			return err
		}
		if err := tx.dropEmpty(); err != nil {
			return err
		}
		if err := tx.dropUnused(append(tx.dropped, slices.Sorted(maps.Keys(tx.unused))...)...); err != nil {
			return err
		}
		if err := c.batch(tx.msgs, true); err == nil || attempt == attempts || !transient(err) {
			return err
		}
	}
}

// transient reports whether somebody else may have changed the same meanwhile, or the answer was lost.
func transient(err error) bool {
	return isOneOf(err, unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.EINTR, unix.EAGAIN, unix.ERESTART, unix.ENOBUFS,
		nl.ErrDumpInterrupted)
}

func isOneOf(err error, kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// IfSupported returns err, but nil for ErrUnsupported: without nftables there is nothing to remove.
func IfSupported(err error) error {
	if errors.Is(err, ErrUnsupported) {
		return nil
	}
	return err
}

// unsupported adds ErrUnsupported to err when cause is how a kernel answers that lacks one of the modules.
func unsupported(err, cause error, modules string) error {
	if isOneOf(cause, unix.EOPNOTSUPP, unix.ENOENT, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT) {
		return lacking(err, modules)
	}
	return err
}

func lacking(err error, modules string) error {
	return fmt.Errorf("%w: %w, which may lack %s", err, ErrUnsupported, modules)
}
