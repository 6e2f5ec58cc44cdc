// Package rtnl is the part of rtnetlink that CNI plugins need, on a socket
// that is bound to one network namespace for its whole life.
//
// Nothing here dumps what the kernel can look up or filter: a link is asked
// for by name or index, addresses and routes by interface. Links is the
// exception. A dump that other changes interrupted is repeated and never
// returned in part.
package rtnl

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hawser-cni/plugins/pkg/netlink"
	"github.com/hawser-cni/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// ErrNoLink says that the namespace has no such link.
var ErrNoLink = errors.New("no such link")

// Conn is a socket in one namespace. Its methods may be called from several
// goroutines. Their errors wrap the kernel's errno and carry its explanation
// where it gives one; a link that is gone is ErrNoLink.
type Conn struct {
	mu    sync.Mutex
	sock  *netlink.Socket // nil once closed
	sent  int64           // messages of sockets that are closed
	above *Conn           // whose count has these messages, too; nil: none
	names map[int]string  // for error texts: what Link and Links have seen
}

// Dial opens a socket in n, or with nil in the calling thread's namespace. The
// Conn does not need n afterwards.
func Dial(n *ns.NS) (*Conn, error) {
	var sock *netlink.Socket
	open := func() (err error) {
		sock, err = netlink.Open(unix.NETLINK_ROUTE)
		return err
	}
	dial := open
	if n != nil {
		dial = func() error { return n.Do(open) }
	}
	if err := dial(); err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	// Older kernels lack it; then filters apply here.
	_ = unix.SetsockoptInt(sock.FD(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return &Conn{sock: sock, names: map[int]string{}}, nil
}

// Dial opens another socket, in n, whose messages count as c's once it is closed.
func (c *Conn) Dial(n *ns.NS) (*Conn, error) {
	other, err := Dial(n)
	if err == nil {
		other.above = c
	}
	return other, err
}

// DialBoth opens a socket in the calling thread's namespace and, from that one,
// one in the container's.
func DialBoth(container *ns.NS) (host, cont *Conn, err error) {
	if host, err = Dial(nil); err != nil {
		return nil, nil, err
	}
	if cont, err = host.Dial(container); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("container: %w", err), host.Close())
	}
	return host, cont, nil
}

// Close closes the socket. Closing again does nothing, and neither does closing
// nil.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return nil
	}
	err := c.sock.Close()
	if c.above != nil {
		c.above.add(c.sent + c.sock.Sent())
	}
	c.sent += c.sock.Sent()
	c.sock = nil
	return err
}

// Sent is how many messages were sent, those of sockets that it opened in other
// namespaces included.
func (c *Conn) Sent() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return c.sent
	}
	return c.sent + c.sock.Sent()
}

func (c *Conn) add(sent int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent += sent
}

// change sends one request and waits for its acknowledgement.
func (c *Conn) change(kind, flags uint16, body netlink.Body) error {
	return c.use(func(s *netlink.Socket) error {
		return s.Do(netlink.Request{Type: kind, Flags: flags, Body: body})
	})
}

// get sends one request that has one answer, or none with an error.
func (c *Conn) get(req netlink.Request, each func(data []byte)) error {
	return c.ask([]netlink.Request{req}, func(_ int, data []byte) { each(data) })[0]
}

// ask sends several such requests at once and returns the error of each. Those
// behind one that fails are worked on nevertheless.
func (c *Conn) ask(reqs []netlink.Request, each func(i int, data []byte)) []error {
	errs := make([]error, len(reqs))
	lost := c.use(func(s *netlink.Socket) error {
		return s.Exchange(reqs, func(i int, m netlink.Message) {
			if errs[i] = m.Err(); errs[i] == nil && !m.IsAck() {
				each(i, m.Data)
			}
		})
	})
	for i := range errs {
		errs[i] = errors.Join(errs[i], lost)
	}
	return errs
}

// dump collects a list. start is called before each attempt to drop what an
// interrupted one has collected.
func (c *Conn) dump(req netlink.Request, start func(), each func(data []byte)) error {
	return c.use(func(s *netlink.Socket) error {
		return s.Dump(req, start, func(m netlink.Message) { each(m.Data) })
	})
}

func (c *Conn) use(call func(*netlink.Socket) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return unix.EBADF
	}
	return call(c.sock)
}

// linkError names the link that an operation was about.
func (c *Conn) linkError(index int, what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.ENODEV) {
		err = ErrNoLink
	}
	return fmt.Errorf("link %s: %s: %w", c.name(index), what, err)
}

func (c *Conn) name(index int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, ok := c.names[index]; ok {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("#%d", index)
}
