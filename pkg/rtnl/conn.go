// Package rtnl is the part of rtnetlink that CNI plugins need, on
// vishvananda/netlink and on a handle that is bound to one network namespace.
//
// Nothing here dumps what the kernel can look up or filter. The cost of Links,
// Ports, VLANs and RouteCopies grows with what others have. A dump that other
// changes interrupted is repeated.
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

// ErrNoLink says that the namespace has no such link, in the words of the library.
var ErrNoLink = errors.New("Link not found")

const (
	// answerTimeout is how long an answer may take; the library's is a minute.
	answerTimeout = 30 * time.Second
	// retryTime is how long a call is repeated whose list changed meanwhile, or whose answer was disturbed.
	retryTime = 20 * time.Second
	// freeCalls is how many times a call is made without a pause. Each later pause is a millisecond longer, up to
	// maxPause, so that a container that changes its links all the time does not keep a processor busy.
	freeCalls = 3
	maxPause  = 100 * time.Millisecond
	// maxOverruns is how many sockets one call may find without room. A new socket has room
	// for the answer, so after some of them the kernel has no memory for the request.
	maxOverruns = 50
)

// enableExtAck has the library ask the kernel for explanations of errors, on each socket that it opens.
var enableExtAck = sync.OnceFunc(func() { nl.EnableErrorMessageReporting = true })

// Conn is a handle in one namespace, for several goroutines. Errors wrap the
// kernel's errno and its explanation; a link that is gone is ErrNoLink.
type Conn struct {
	mu    sync.Mutex
	h     *netlink.Handle  // nil once closed, and where Host failed
	err   error            // of Host
	own   *nl.SocketHandle // for messages of our own: the handle's socket is private
	names sync.Map         // int -> string, for error texts: what links that were read are called

	retryTime time.Duration // as the constant; specs have less
}

// Dial opens a handle in n, or with nil in the calling thread's namespace. The
// Conn does not need n afterwards.
func Dial(n *ns.NS) (*Conn, error) {
	enableExtAck()
	c := &Conn{retryTime: retryTime}
	dial := c.open
	if n != nil { // not by the library's NewHandleAt, which may leave the thread in that namespace
		dial = func() error { return n.Do(c.open) }
	}
	if err := dial(); err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	return c, nil
}

// Host is Dial in the calling thread's namespace. Where that fails each call of the Conn returns the error.
func Host() *Conn {
	c, err := Dial(nil)
	if err != nil {
		return &Conn{err: err}
	}
	return c
}

// open opens the sockets in the calling thread's namespace.
func (c *Conn) open() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		ns.TakeDescriptor()
		return err
	}
	own, err := nl.Subscribe(unix.NETLINK_ROUTE) // to nothing: it is the library's way to open a socket
	if err != nil {
		ns.TakeDescriptor()
		return errors.Join(err, h.Close())
	}
	_ = own.SetExtAck(true) // without it errors are poorer, that is all
	limit := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	_ = own.SetReceiveTimeout(&limit) // these two store a number
	_ = h.SetSocketTimeout(answerTimeout)
	// Older kernels lack it; then filters apply here.
	_ = h.SetStrictCheck(true)
	_ = unix.SetsockoptInt(own.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	c.h, c.own = h.DisableVFInfoCollection(), &nl.SocketHandle{Socket: own}
	return nil
}

// reopen opens other sockets in the same namespace.
func (c *Conn) reopen() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil {
		return unix.EBADF
	}
	n, err := ns.OfSocket(c.own.Socket.GetFd())
	if err != nil {
		return err
	}
	defer n.Close()
	_ = errors.Join(c.h.Close(), c.own.Close())
	c.h = nil
	return n.Do(c.open)
}

// Close closes the handle. Closing again, or closing nil, does nothing.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil {
		return nil
	}
	err := errors.Join(c.h.Close(), c.own.Close())
	c.h = nil
	return err
}

// use calls the library and repeats what was interrupted: a list that changed while it was read, or any call while
// somebody else, as a process of the container may, sent to the socket.
func (c *Conn) use(call func(h *netlink.Handle) error) error {
	overruns := 0
	for calls, deadline := 1, time.Now().Add(c.retryTime); ; calls++ {
		err := c.once(call)
		if errors.Is(err, unix.ENOBUFS) {
			overruns++
		}
		switch {
		case !disturbed(err) && !errors.Is(err, netlink.ErrDumpInterrupted):
			return err
		case time.Now().After(deadline) || overruns > maxOverruns:
			// What is there could not be found out: DEL must not take it for gone.
			return fmt.Errorf("disturbed again and again: %w: %w", unix.ETIMEDOUT, err)
		case disturbed(err):
			if err := c.reopen(); err != nil {
				return err
			}
		}
		if calls >= freeCalls {
			<-time.After(min(time.Duration(calls-freeCalls)*time.Millisecond, maxPause))
		}
	}
}

// create is use for what something has once, such as an address of a link: EEXIST of a repeated call is the call's own
// success, whose answer was lost.
func (c *Conn) create(call func(h *netlink.Handle) error) error {
	calls := 0
	return c.use(func(h *netlink.Handle) error {
		calls++
		err := call(h)
		if calls > 1 {
			return unless(err, unix.EEXIST)
		}
		return err
	})
}

// once calls the library and repeats nothing. It is for the creation of a link: when that
// is repeated after a lost answer, EEXIST does not tell whose link is there.
func (c *Conn) once(call func(h *netlink.Handle) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil {
		return cmp.Or(c.err, error(unix.EBADF))
	}
	return call(c.h)
}

// disturbed says whether somebody else's messages stood in an answer's place.
func disturbed(err error) bool {
	if err == nil {
		return false
	}
	return strings.HasPrefix(err.Error(), "Wrong sender portid") || errors.Is(err, unix.ENOBUFS)
}

// send sends a message of our own and returns the answers: one that the library
// does not have, or for which it sends several.
func (c *Conn) send(kind, flags int, header nl.NetlinkRequestData, attrs ...*nl.RtAttr) (answers [][]byte, err error) {
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddData(header)
	for _, a := range attrs {
		req.AddData(a)
	}
	do := c.use
	if flags&unix.NLM_F_CREATE != 0 {
		do = c.create
	}
	err = do(func(*netlink.Handle) error {
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.own}
		answers, err = req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	return answers, err
}

// header is the header of a message about a link.
func header(family, index int) *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(family)
	msg.Index = int32(index)
	return msg
}

// linkError names the link that an operation was about.
func (c *Conn) linkError(index int, what string, err error) error {
	return wrap(fmt.Sprintf("link %s: %s", c.name(index), what), err)
}

// wrap says what an error is about; nil stays nil. It is ErrNoLink where the library or the kernel says that there is
// no such link.
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
	err = c.use(func(*netlink.Handle) (err error) {
		n, err = ns.OfSocket(c.own.Socket.GetFd())
		return err
	})
	return n, err
}

// unless is err, or nil where that is one of the harmless.
func unless(err error, harmless ...error) error {
	if slices.ContainsFunc(harmless, func(h error) bool { return errors.Is(err, h) }) {
		return nil
	}
	return err
}

// complete is a list, or the error: nobody may take a part of a list for the whole.
func complete[T any](list []T, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (c *Conn) name(index int) string {
	if name, ok := c.names.Load(index); ok {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("#%d", index)
}
