// Package ns is a handle on a Linux network namespace: open it by path, tell
// whether two are the same, run a function inside.
package ns

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

var (
	// ErrNotExist says that nothing is at the path, or that the path is empty.
	ErrNotExist = errors.New("no such network namespace")
	// ErrNotNetns says that something is at the path, but no network namespace.
	ErrNotNetns = errors.New("not a network namespace")
)

// NS is an open network namespace. The namespace lives at least as long as the
// handle. Its methods may be called from several goroutines.
type NS struct {
	path string

	mu sync.RWMutex
	fd int
}

// Open opens the namespace that path leads to. The error matches ErrNotExist
// when there is nothing at path and ErrNotNetns when it is something else;
// any other error is the kernel's, for instance EACCES.
func Open(path string) (*NS, error) {
	if path == "" {
		return nil, fmt.Errorf("network namespace %q: %w", path, ErrNotExist)
	}
	fd, err := openNetns(path)
	if err != nil {
		return nil, fmt.Errorf("network namespace %q: %w", path, err)
	}
	return &NS{path: path, fd: fd}, nil
}

// Current opens the namespace of the calling thread. Path is empty, since the
// thread's own path means another namespace in any other thread.
func Current() (*NS, error) {
	fd, err := openOwn()
	if err != nil {
		return nil, fmt.Errorf("network namespace of this thread: %w", err)
	}
	return &NS{fd: fd}, nil
}

// OfSocket opens the namespace in which a socket was created. It takes
// CAP_NET_ADMIN there.
func OfSocket(fd int) (*NS, error) {
	netns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return nil, fmt.Errorf("network namespace of a socket: %w", err)
	}
	return &NS{fd: netns}, nil
}

func openNetns(path string) (int, error) {
	// Looked at before it is opened: opening a FIFO blocks, and opening a
	// device can do anything.
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(path, &fs) }); err != nil {
		return -1, pathError(err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return -1, ErrNotNetns
	}
	fd, err := openPath(path)
	if err != nil {
		return -1, err
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		unix.Close(fd)
		return -1, ErrNotNetns
	}
	return fd, nil
}

// openOwn opens the calling thread's namespace, that of a socket which is made
// for it. Below /proc every thread that looked at its own has entries that it
// and our parent remove together when we end, which takes milliseconds.
func openOwn() (int, error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(sock)
	fd, err := unix.IoctlRetInt(sock, unix.SIOCGSKNS)
	if errors.Is(err, unix.EPERM) { // it takes CAP_NET_ADMIN
		return openPath("/proc/thread-self/ns/net")
	}
	return fd, err
}

func openPath(path string) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, pathError(err)
}

func pathError(err error) error {
	// ESRCH: /proc/<pid> of a process that died between two looks.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		return ErrNotExist
	}
	return err
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// FD is the open file descriptor, -1 once closed. It belongs to the handle.
func (n *NS) FD() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.fd
}

// Path is the path given to Open; empty for Current.
func (n *NS) Path() string { return n.path }

// Same tells whether both handles lead to one namespace, by device and inode.
// The kernel gives the inode of a dead namespace to a new one, so the answer
// holds only for handles that are open at the same time.
func (n *NS) Same(other *NS) (bool, error) {
	a, err := n.stat()
	if err != nil {
		return false, err
	}
	b, err := other.stat()
	if err != nil {
		return false, err
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}

func (n *NS) stat() (unix.Stat_t, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	var st unix.Stat_t
	if n.fd < 0 {
		return st, n.wrap(os.ErrClosed)
	}
	if err := unix.Fstat(n.fd, &st); err != nil {
		return st, n.wrap(err)
	}
	return st, nil
}

// Close releases the handle. Closing again does nothing.
func (n *NS) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd < 0 {
		return nil
	}
	err := unix.Close(n.fd)
	n.fd = -1
	if err != nil {
		return n.wrap(err)
	}
	return nil
}

// Cookie is the number that the kernel gives to this namespace and, unlike its
// inode, to no other until the machine restarts. It is false where the kernel
// has no such number (before 5.14).
func (n *NS) Cookie() (uint64, bool) {
	var cookie uint64
	var ok bool
	err := n.Do(func() error {
		cookie, ok = CurrentCookie()
		return nil
	})
	return cookie, ok && err == nil
}

// CurrentCookie is the Cookie of the calling thread's namespace.
func CurrentCookie() (uint64, bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie, err == nil
}

func (n *NS) wrap(err error) error {
	return fmt.Errorf("network namespace %q: %w", n.path, err)
}
