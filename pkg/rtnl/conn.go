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
	"time"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var (
	// ErrNoLink says that the namespace has no such link.
	ErrNoLink = errors.New("no such link")
	// ErrInterrupted says that the kernel's tables changed during every
	// attempt to read them.
	ErrInterrupted = errors.New("changed all the time while it was read")
)

const (
	// The kernel builds dumps in parts of at most 32 KiB.
	bufferSize = 32 << 10
	// The kernel answers within the call that asks; the limit is there so
	// that a lost answer is an error and no hang.
	answerSeconds = 30
	// How long an interrupted dump is repeated.
	dumpPatience = 5 * time.Second
)

// Conn is a socket in one namespace. Its methods may be called from several
// goroutines. Their errors wrap the kernel's errno and carry its explanation
// where it gives one; a link that is gone is ErrNoLink.
type Conn struct {
	fd int

	mu    sync.Mutex
	seq   uint32
	buf   []byte
	names map[int]string // for error texts: what Link and Links have seen
}

// Dial opens a socket in n, or with nil in the calling thread's namespace. The
// Conn does not need n afterwards.
func Dial(n *ns.NS) (*Conn, error) {
	fd := -1
	open := func() (err error) {
		fd, err = openSocket(0)
		return err
	}
	dial := open
	if n != nil {
		dial = func() error { return n.Do(open) }
	}
	if err := dial(); err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	timeout := unix.Timeval{Sec: answerSeconds}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("rtnetlink: receive timeout: %w", err)
	}
	// Older kernels have neither; then errors are bare, and filters apply here.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return &Conn{fd: fd, buf: make([]byte, bufferSize), names: map[int]string{}}, nil
}

// DialBoth opens a socket in the calling thread's namespace and one in the
// container's.
func DialBoth(container *ns.NS) (host, cont *Conn, err error) {
	if host, err = Dial(nil); err != nil {
		return nil, nil, err
	}
	if cont, err = Dial(container); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("container: %w", err), host.Close())
	}
	return host, cont, nil
}

func openSocket(groups uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Close closes the socket. Closing again does nothing, and neither does closing
// nil.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil
	}
	err := unix.Close(c.fd)
	c.fd = -1
	return err
}

// change sends one request and waits for its acknowledgement.
func (c *Conn) change(kind, flags int, body ...nl.NetlinkRequestData) error {
	return c.exec(request(kind, flags|unix.NLM_F_ACK, body), nil)
}

// get sends one request that has one answer, or none with an error.
func (c *Conn) get(kind int, body []nl.NetlinkRequestData, each func(message)) error {
	return c.exec(request(kind, 0, body), each)
}

// dump collects a list. start is called before each attempt to drop what an
// interrupted one has collected.
func (c *Conn) dump(kind int, body []nl.NetlinkRequestData, start func(), each func(message)) error {
	deadline := time.Now().Add(dumpPatience)
	for {
		start()
		err := c.exec(request(kind, unix.NLM_F_DUMP, body), each)
		if !errors.Is(err, ErrInterrupted) || time.Now().After(deadline) {
			return err
		}
	}
}

func request(kind, flags int, body []nl.NetlinkRequestData) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	for _, b := range body {
		req.AddData(b)
	}
	return req
}

func (c *Conn) exec(req *nl.NetlinkRequest, each func(message)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return unix.EBADF
	}
	c.seq++
	req.Seq = c.seq
	data := req.Serialize()
	err := retry(func() error {
		return unix.Sendto(c.fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	if err != nil {
		return err
	}
	answer := answer{seq: c.seq, each: each}
	for !answer.done {
		data, err := c.receive()
		if err != nil {
			return err
		}
		if err := answer.read(data); err != nil {
			return err
		}
	}
	if answer.interrupted {
		return ErrInterrupted
	}
	return nil
}

// receive returns the next datagram of the kernel, valid until the next call.
func (c *Conn) receive() ([]byte, error) {
	for {
		var n int
		var from unix.Sockaddr
		err := retry(func() (err error) {
			n, from, err = unix.Recvfrom(c.fd, c.buf, unix.MSG_TRUNC)
			return err
		})
		if errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("no answer within %d s: %w", answerSeconds, unix.ETIMEDOUT)
		}
		if err != nil {
			return nil, err
		}
		if n > len(c.buf) {
			return nil, fmt.Errorf("answer of %d bytes: %w", n, unix.EMSGSIZE)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 {
			return c.buf[:n], nil
		}
	}
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
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
