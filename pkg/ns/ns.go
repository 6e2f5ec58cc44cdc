// Package ns is a handle on a Linux network namespace: open it by path, tell
// whether it is our own, know it again later, run a function inside.
package ns

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotExist says that nothing is at the path, or that the path is empty.
	ErrNotExist = errors.New("no such network namespace")
	// ErrNotNetns says that something is at the path, but no network namespace.
	ErrNotNetns = errors.New("not a network namespace")
)

// NS is an open network namespace, which lives at least as long as the handle.
// Several goroutines may use it, until one closes it.
type NS struct {
	path string
	h    netns.NsHandle
}

// Open opens the namespace that path leads to. The error matches ErrNotExist
// when there is nothing at path and ErrNotNetns when it is something else;
// any other error is the kernel's, for instance EACCES.
func Open(path string) (*NS, error) {
	n := &NS{path: path}
	if path == "" {
		return nil, n.wrap(ErrNotExist)
	}
	// Looked at before it is opened: opening a FIFO blocks, and opening a
	// device can do anything.
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(path, &fs) }); err != nil {
		return nil, n.wrap(pathError(err))
	}
	if fs.Type != unix.NSFS_MAGIC {
		return nil, n.wrap(fmt.Errorf("%w: unknown FS magic on %q: %x", ErrNotNetns, path, fs.Type))
	}
	err := retry(func() (err error) {
		n.h, err = netns.GetFromPath(path)
		return err
	})
	if err != nil {
		return nil, n.wrap(pathError(err))
	}
	if kind, err := unix.IoctlRetInt(int(n.h), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		_ = n.h.Close()
		return nil, n.wrap(ErrNotNetns)
	}
	return n, nil
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func pathError(err error) error {
	// ESRCH: /proc/<pid> of a process that died between two looks.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		return ErrNotExist
	}
	return err
}

// own opens the calling thread's namespace, that of a socket which is made for
// it. Below /proc, where netns.Get looks, every thread that looked at its own has
// entries that it and our parent remove together when we end, which takes
// milliseconds.
func own() (netns.NsHandle, error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netns.None(), err
	}
	defer unix.Close(sock)
	h, err := unix.IoctlRetInt(sock, unix.SIOCGSKNS)
	if errors.Is(err, unix.EPERM) { // it takes CAP_NET_ADMIN
		return netns.Get()
	}
	return netns.NsHandle(h), err
}

// Proc is the directory below /proc whose net shows the calling thread's
// namespace: that of the process, where it is the main thread's too, for the
// reason that own has, else that of the thread.
func Proc() string {
	main, err := netns.GetFromPath("/proc/self/ns/net")
	if err == nil {
		defer main.Close()
		if same, err := (&NS{h: main}).IsCurrent(); err == nil && same {
			return "/proc/self"
		}
	}
	return "/proc/thread-self"
}

// OfSocket opens the namespace in which a socket was created. It takes
// CAP_NET_ADMIN there.
func OfSocket(fd int) (*NS, error) {
	h, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return nil, fmt.Errorf("network namespace of a socket: %w", err)
	}
	return &NS{h: netns.NsHandle(h)}, nil
}

// FD is the open file descriptor, -1 once closed. It belongs to the handle.
func (n *NS) FD() int { return int(n.h) }

// Path is the path given to Open; empty for OfSocket.
func (n *NS) Path() string { return n.path }

// IsCurrent tells whether the calling thread is in the namespace.
func (n *NS) IsCurrent() (bool, error) {
	h, err := own()
	if err != nil {
		return false, fmt.Errorf("network namespace of this thread: %w", err)
	}
	defer h.Close()
	here, err := (&NS{h: h}).stat()
	if err != nil {
		return false, err
	}
	st, err := n.stat()
	return here.Dev == st.Dev && here.Ino == st.Ino, err
}

func (n *NS) stat() (st unix.Stat_t, err error) {
	if err := unix.Fstat(int(n.h), &st); err != nil {
		return st, n.wrap(err)
	}
	return st, nil
}

// Close releases the handle. Closing again does nothing.
func (n *NS) Close() error {
	if !n.h.IsOpen() {
		return nil
	}
	if err := n.h.Close(); err != nil { // which makes it None
		return n.wrap(err)
	}
	return nil
}

func (n *NS) wrap(err error) error {
	return fmt.Errorf("network namespace %q: %w", n.path, err)
}
