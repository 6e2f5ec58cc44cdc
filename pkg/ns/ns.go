// Package ns is a handle on a Linux network namespace: open it by path, compare it with
// our own, know it again later, run a function inside.
package ns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotExist says that nothing is at the path, or that the path is empty.
	ErrNotExist = errors.New("no such network namespace")
	// ErrNotNetns says that something is at the path, but no network namespace.
	ErrNotNetns = errors.New("not a network namespace")
)

// NS is an open network namespace, which lives as long as the handle. Several goroutines
// may use it.
type NS struct {
	path string
	h    netns.NsHandle
}

// Open opens the namespace at path. The error matches ErrNotExist when there is nothing,
// ErrNotNetns when there is something else. Any other is the kernel's, EACCES for example.
func Open(path string) (*NS, error) {
	n := &NS{path: path}
	if path == "" {
		return nil, n.wrap(ErrNotExist)
	}
	var fs unix.Statfs_t // before path is opened: a FIFO would block, a device can do anything
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

// New makes a namespace, which lives as long as the handle, or as what else is made to hold it. Its path leads through
// this process, so that nothing is left of it when that ends.
func New() (*NS, error) {
	n := &NS{path: "new", h: netns.None()}
	unshare := func() error { return unix.Unshare(unix.CLONE_NEWNET) }
	err := n.do(unshare, func() (err error) {
		n.h, err = own()
		return err
	})
	if err != nil {
		return nil, err
	}
	n.path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.h)
	return n, nil
}

// retry repeats a call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func pathError(err error) error {
	// ESRCH: /proc/<pid> of a process that died meanwhile.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		return ErrNotExist
	}
	return err
}

// own opens the calling thread's namespace, by a socket. netns.Get opens a file below
// /proc, which costs milliseconds when we end (docs/design.md, "Threads and /proc").
func own() (netns.NsHandle, error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netns.None(), err
	}
	defer unix.Close(sock)
	h, err := unix.IoctlRetInt(sock, unix.SIOCGSKNS)
	if errors.Is(err, unix.EPERM) { // without CAP_NET_ADMIN
		return netns.Get()
	}
	return netns.NsHandle(h), err
}

// Proc is the directory below /proc whose net shows the calling thread's namespace: the
// process's, which costs less (see own), where the main thread is in that namespace too.
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

// OfSocket opens the namespace of a socket. It takes CAP_NET_ADMIN there.
func OfSocket(fd int) (*NS, error) {
	h, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return nil, fmt.Errorf("network namespace of a socket: %w", err)
	}
	return &NS{h: netns.NsHandle(h)}, nil
}

// IsUsers reports whether an unprivileged user made the namespace: it belongs to another user namespace than the
// caller's, and a user other than root made that user namespace.
func (n *NS) IsUsers() bool {
	users, err := unix.IoctlRetInt(int(n.h), unix.NS_GET_USERNS)
	if err != nil { // the user namespace is above the caller's
		return false
	}
	defer unix.Close(users)
	var own, st unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &own) != nil || unix.Fstat(users, &st) != nil || own.Ino == st.Ino {
		return false
	}
	maker, err := unix.IoctlGetUint32(users, unix.NS_GET_OWNER_UID)
	return err == nil && maker != 0
}

// FD is the handle's file descriptor, -1 once closed.
func (n *NS) FD() int { return int(n.h) }

// Path is the path given to Open; empty for OfSocket.
func (n *NS) Path() string { return n.path }

// IsCurrent reports whether the calling thread is in the namespace.
func (n *NS) IsCurrent() (bool, error) {
	if !n.h.IsOpen() {
		return false, n.wrap(unix.EBADF)
	}
	h, err := own()
	if err != nil {
		return false, fmt.Errorf("network namespace of this thread: %w", err)
	}
	defer h.Close()
	return n.h.Equal(h), nil
}

// Close closes the handle. Closing again does nothing.
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

// Identity tells a namespace from all others, also from later ones, until the machine restarts.
type Identity struct {
	Cookie uint64 `json:"cookie,omitempty"` // the kernel's own number; 0 before Linux 5.14
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"` // a new namespace can get that of a dead one
	// MAC is the MAC address of the attachment's interface in the namespace, for kernels without
	// cookies. The caller sets it; empty = unknown.
	MAC string `json:"mac,omitempty"`
}

// Is reports whether both are of one namespace. It compares the cookies where both have
// one, or device, inode and the MAC address where both have one.
func (i Identity) Is(other Identity) bool {
	if i.Cookie != 0 && other.Cookie != 0 {
		return i.Cookie == other.Cookie
	}
	if i.MAC != other.MAC && i.MAC != "" && other.MAC != "" {
		return false
	}
	return i.Device == other.Device && i.Inode == other.Inode
}

// Identity is the namespace's.
func (n *NS) Identity() (Identity, error) {
	id, err := n.handleIdentity()
	if err != nil || id.Cookie != 0 {
		return id, err
	}
	err = n.Do(func() (err error) {
		id, err = n.IdentityInside()
		return err
	})
	return id, err
}

// IdentityInside is Identity for a caller who is in the namespace already.
func (n *NS) IdentityInside() (Identity, error) {
	id, err := n.handleIdentity()
	if err != nil || id.Cookie != 0 {
		return id, err
	}
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Identity{}, err
	}
	defer unix.Close(sock)
	id.Cookie, _ = unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return id, nil
}

// handleIdentity is what the descriptor tells: before Linux 6.18 not the cookie.
func (n *NS) handleIdentity() (Identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(n.h), &st); err != nil {
		return Identity{}, n.wrap(err)
	}
	id := Identity{Device: uint64(st.Dev), Inode: st.Ino}
	if handle, _, err := unix.NameToHandleAt(int(n.h), "", unix.AT_EMPTY_PATH); err == nil {
		id.Cookie = cookieOf(handle)
	}
	return id, nil
}

// Do runs fn on a thread of its own in the namespace. Goroutines that fn starts are
// outside. A panic of fn continues in the caller.
func (n *NS) Do(fn func() error) error {
	return n.do(func() error { return netns.Set(n.h) }, fn)
}

func (n *NS) do(enter, fn func() error) (err error) {
	panicked := make(chan any)
	go func() {
		defer func() { panicked <- recover() }()
		err = n.onThread(enter, fn)
	}()
	if value := <-panicked; value != nil {
		panic(value)
	}
	return err
}

func (n *NS) onThread(enter, fn func() error) error {
	runtime.LockOSThread()
	home, err := own()
	if err != nil {
		runtime.UnlockOSThread()
		return n.wrap(err)
	}
	defer func() {
		// A thread that cannot go back ends with its locked goroutine, and serves no other one.
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		_ = home.Close()
	}()
	if err := enter(); err != nil {
		return n.wrap(err)
	}
	return fn()
}
