// Package nft reads and changes nftables over netlink, without the nft program.
//
// A Layout is the part of a table that all attachments share: sets, chains and rules. An Element of a set or map
// belongs to one attachment; its comment is the owner's mark. Owned describes a layout together with its elements.
//
// Update makes all changes of shared tables. It takes a lock that all plugins of the host share, and calls a function
// that reads the kernel's state and stages changes in a transaction, Tx. It then commits them as one batch, which the
// kernel applies completely or not at all. Usually a batch has only elements, because the layout exists. Ensure adds
// the parts of a layout that are missing, also after another program flushed them. It never flushes a shared chain,
// because that would interrupt other containers' traffic and delay the next batch (RCU).
//
// Rules and elements are encoded as nft(8) encodes them, so that a ruleset that nft saved and loaded again still
// compares equal. The encoding is implemented here because google/nftables drops expressions that it does not know, so
// that a changed rule would compare equal, and because running nft would cost each call a process.
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

// LockPath is the file whose lock all plugins of a host share.
const LockPath = "/run/hawser/nft.lock"

const (
	answerTimeout = 10 // seconds; the kernel normally answers immediately
	attemptsMax   = 5  // attempts of an Update, which fail if programs without the lock change the same objects
)

var (
	// ErrUnsupported reports that the kernel has no nf_tables, or lacks a feature, for example NAT in the family inet.
	ErrUnsupported error = &cni.Error{Code: cni.CodeUnsupportedField, Msg: "not supported by this kernel"}
	// ErrDrift reports that the kernel's ruleset differs from what the plugins committed.
	ErrDrift = errors.New("ruleset differs")
)

// Conn is a connection to the nftables of one network namespace. Only one goroutine may use it.
type Conn struct{ sock *nl.SocketHandle }

// New returns a connection. Its socket is opened at first use, in the network namespace of the thread at that time.
func New() *Conn { return &Conn{} }

// Close closes the socket. After deletions, it waits some milliseconds for an RCU grace period, as the deletion of a
// link does. If the link is deleted before Close, one wait covers both.
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
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER) // no groups: it only opens a socket
	if err != nil {
		ns.TakeDescriptor() // occupies the descriptor number that the library closed and may close again
		return addUnsupportedIf(fmt.Errorf("netfilter socket: %w", err), err, "nfnetlink")
	}
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = s.SetExtAck(true)
	_ = s.SetReceiveTimeout(&unix.Timeval{Sec: answerTimeout})
	c.sock = &nl.SocketHandle{Socket: s}
	return nil
}

// Update calls change under the host's lock and commits the staged changes as one batch. It calls change again, with a
// new Tx, if a program without the lock changed the same objects. The error matches statefile.ErrBusy if another
// process holds the lock for 30 seconds.
func (c *Conn) Update(ctx context.Context, change func(*Tx) error) error {
	return Owned{}.Update(ctx, c, change)
}

// Update is Conn.Update for changes of owned elements. In the same batch, it deletes each chain of o.Chain that loses
// its last reference: an element, or a rule of another chain that Update deletes for the same reason.
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
		if err := tx.dropUnused(append(tx.unusedChains, slices.Sorted(maps.Keys(tx.droppedRefs))...)...); err != nil {
			return err
		}
		if err := c.batch(tx.msgs, true); err == nil || attempt == attemptsMax || !isTransient(err) {
			return err
		}
	}
}

// isTransient reports whether a batch may have failed because another program changed the same objects concurrently, or
// because an answer was lost.
func isTransient(err error) bool {
	return isOneOf(err, unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.EINTR, unix.EAGAIN, unix.ERESTART, unix.ENOBUFS)
}

func isOneOf(err error, kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// IfSupported returns err, or nil if it matches ErrUnsupported. Callers that remove or list use it, because a kernel
// without nftables has nothing to remove.
func IfSupported(err error) error {
	if errors.Is(err, ErrUnsupported) {
		return nil
	}
	return err
}

// addUnsupportedIf adds ErrUnsupported to err if cause is the answer of a kernel that lacks one of the modules.
func addUnsupportedIf(err, cause error, modules string) error {
	if isOneOf(cause, unix.EOPNOTSUPP, unix.ENOENT, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT) {
		return addUnsupported(err, modules)
	}
	return err
}

func addUnsupported(err error, modules string) error {
	return fmt.Errorf("%w: %w, which may lack %s", err, ErrUnsupported, modules)
}
