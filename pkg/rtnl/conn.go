// Package rtnl is the part of rtnetlink that CNI plugins need: links, addresses, routes, rules, bridge ports and
// qdiscs. It also has three groups of ethtool settings.
//
// A Conn has two sockets in one network namespace: the handle of vishvananda/netlink, and a socket for messages that
// the library lacks, or for which it sends or dumps more than necessary. The namespace may be a container's, where an
// unprivileged process can disturb both: it can change links and routes so often that dumps are interrupted, and it can
// send messages to the sockets. Therefore, calls are repeated for a limited time (see retry), and a function never
// returns an incomplete list. Values from a container, such as the peer index of a link, are used only if the kernel
// confirms them from the host's namespace.
//
// An error names the object, wraps the kernel's errno, and has the kernel's explanation if there is one. It matches
// ErrNoLink if a link does not exist. Functions that create an object return an error that matches EEXIST if the object
// exists, unless their comments say otherwise. Deletion of an object that does not exist is not an error.
//
// If the kernel can look up one object or filter a list, the package does not dump. The cost of Links, LinkSummaries,
// VLANs, TBFs, EachAddr, Rules, RuleCopies and RouteCopies grows with the number of all such objects of the namespace.
// Waits (WaitUp and others) subscribe to events instead of polling.
package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
)

// ErrNoLink means that the namespace has no such link. The text is the library's, because programs search for it.
var ErrNoLink = errors.New("Link not found")

const (
	answerTimeout = 30 * time.Second // for one answer; the library's default is a minute
	retryTime     = 20 * time.Second // for all repetitions of a call
	// The first freeCalls attempts of a call follow each other without a pause. Each later pause is a millisecond
	// longer, up to maxPause, so that a container that changes its links all the time does not keep a processor busy.
	freeCalls = 3
	maxPause  = 100 * time.Millisecond
	// maxOverruns limits the number of sockets on which one call fails with ENOBUFS. An overrun socket is replaced, and
	// the new one has room for the answer, so that more failures mean that the kernel has no memory for the request.
	maxOverruns = 50
)

// enableExtAck makes the library request explanations of errors from the kernel on each socket that it opens.
var enableExtAck = sync.OnceFunc(func() { nl.EnableErrorMessageReporting = true })

// Conn is a pair of rtnetlink sockets in one network namespace. Goroutines may share it.
type Conn struct {
	mu    sync.Mutex
	h     *netlink.Handle  // nil after Close, and if Host failed
	err   error            // error of Host
	raw   *nl.SocketHandle // for send, because the socket of h is private
	names sync.Map         // names of the links that were read, by index, for error texts
}

// Dial opens sockets in n or, if n is nil, in the calling thread's namespace. The Conn does not need n afterwards.
func Dial(n *ns.NS) (*Conn, error) {
	enableExtAck()
	c := &Conn{}
	dial := c.openSockets
	if n != nil { // the library's NewHandleAt may leave the thread in that namespace
		dial = func() error { return n.Do(c.openSockets) }
	}
	if err := dial(); err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	return c, nil
}

// Host opens sockets in the calling thread's namespace. If that fails, each method of the Conn returns the error.
func Host() *Conn {
	c, err := Dial(nil)
	if err != nil {
		return &Conn{err: err}
	}
	return c
}

// openSockets opens the sockets in the calling thread's namespace.
func (c *Conn) openSockets() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		ns.TakeDescriptor()
		return err
	}
	raw, err := nl.Subscribe(unix.NETLINK_ROUTE) // without groups, it only opens a socket
	if err != nil {
		ns.TakeDescriptor()
		return errors.Join(err, h.Close())
	}
	_ = raw.SetExtAck(true) // old kernels do not explain errors
	limit := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	_ = raw.SetReceiveTimeout(&limit) // this and the next call cannot fail
	_ = h.SetSocketTimeout(answerTimeout)
	// Kernels before 4.20 do not filter dumps; callers filter the answers again.
	_ = h.SetStrictCheck(true)
	_ = unix.SetsockoptInt(raw.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	c.h, c.raw = h.DisableVFInfoCollection(), &nl.SocketHandle{Socket: raw}
	return nil
}

// reopen replaces the sockets by new ones in the same namespace.
func (c *Conn) reopen() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil {
		return cmp.Or(c.err, error(unix.EBADF))
	}
	n, err := ns.FromSocket(c.raw.Socket.GetFd())
	if err != nil {
		return err
	}
	defer n.Close()
	_ = errors.Join(c.h.Close(), c.raw.Close())
	c.h = nil
	c.err = n.Do(c.openSockets)
	return c.err
}

// Close closes the sockets. Closing again, or closing nil, has no effect.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil {
		return nil
	}
	err := errors.Join(c.h.Close(), c.raw.Close())
	c.h = nil
	return err
}

// retry calls the library. It repeats the call if the list changed while it was read, or if another process, which may
// be the container's, sent messages to the socket.
func (c *Conn) retry(call func(h *netlink.Handle) error) error { return c.retryFor(retryTime, call) }

func (c *Conn) retryFor(limit time.Duration, call func(h *netlink.Handle) error) error {
	overruns := 0
	for calls, deadline := 1, time.Now().Add(limit); ; calls++ {
		err := c.callOnce(call)
		if errors.Is(err, unix.ENOBUFS) {
			overruns++
		}
		switch {
		case !isDisturbed(err) && !errors.Is(err, netlink.ErrDumpInterrupted):
			return err
		case time.Now().After(deadline) || overruns > maxOverruns:
			// ETIMEDOUT is transient, so that DEL does not conclude that the object does not exist.
			return fmt.Errorf("netlink call interrupted repeatedly, giving up: %w: %w", unix.ETIMEDOUT, err)
		case isDisturbed(err):
			if err := c.reopen(); err != nil {
				return err
			}
		}
		if calls >= freeCalls {
			<-time.After(min(time.Duration(calls-freeCalls)*time.Millisecond, maxPause))
		}
	}
}

// retryCreate calls the library as retry does, for objects that can exist only once, such as an address of a link. It
// ignores EEXIST in a repetition, because the first call created the object and its answer was lost.
func (c *Conn) retryCreate(call func(h *netlink.Handle) error) error {
	calls := 0
	return c.retry(func(h *netlink.Handle) error {
		calls++
		err := call(h)
		if calls > 1 {
			return ignore(err, unix.EEXIST)
		}
		return err
	})
}

// callOnce calls the library without repetition. It is needed to create a link because, after a lost answer, EEXIST
// would not show whether this call or another process created the link.
func (c *Conn) callOnce(call func(h *netlink.Handle) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil {
		return cmp.Or(c.err, error(unix.EBADF))
	}
	return call(c.h)
}

// isDisturbed reports whether a message of another process was received instead of the kernel's answer, or whether such
// messages filled the socket's buffer, so that the answer was lost.
func isDisturbed(err error) bool {
	if err == nil {
		return false
	}
	return strings.HasPrefix(err.Error(), "Wrong sender portid") || errors.Is(err, unix.ENOBUFS) ||
		err.Error() == "Got short response from netlink"
}

// send sends a message on the raw socket and returns the answers.
func (c *Conn) send(kind, flags int, header nl.NetlinkRequestData, attrs ...*nl.RtAttr) (answers [][]byte, err error) {
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddData(header)
	for _, a := range attrs {
		req.AddData(a)
	}
	do := c.retry
	if flags&unix.NLM_F_CREATE != 0 {
		do = c.retryCreate
	}
	call := func(*netlink.Handle) error {
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.raw}
		answers, err = req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	}
	err = do(call)
	if flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP && errors.Is(err, unix.EBUSY) {
		// The rest of an earlier list, whose reception failed, waits in the socket.
		if err = c.reopen(); err == nil {
			err = do(call)
		}
	}
	return answers, err
}

func header(family, index int) *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(family)
	msg.Index = int32(index)
	return msg
}

// linkError adds the link and the operation to err.
func (c *Conn) linkError(index int, what string, err error) error {
	return wrap(fmt.Sprintf("link %s: %s", c.name(index), what), err)
}

// wrap adds what to err. The library's and the kernel's errors for a missing link become ErrNoLink.
func wrap(what string, err error) error {
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		err = ErrNoLink
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// netns opens the namespace of the sockets.
func (c *Conn) netns() (n *ns.NS, err error) {
	err = c.retry(func(*netlink.Handle) (err error) {
		n, err = ns.FromSocket(c.raw.Socket.GetFd())
		return err
	})
	return n, err
}

// ignore returns nil if err matches one of the harmless errors, and err otherwise.
func ignore(err error, harmless ...error) error {
	if slices.ContainsFunc(harmless, func(h error) bool { return errors.Is(err, h) }) {
		return nil
	}
	return err
}

// wholeList returns the list only if err is nil, so that no caller uses an incomplete list.
func wholeList[T any](list []T, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return list, nil
}

// name returns the name of a link for error texts, or its index if the link was not read yet.
func (c *Conn) name(index int) string {
	if name, ok := c.names.Load(index); ok {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("#%d", index)
}
