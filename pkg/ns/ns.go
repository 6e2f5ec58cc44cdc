// Package ns opens Linux network namespaces, recognizes them later, and runs functions in them.
//
// An NS is a handle: an open file descriptor that keeps the namespace alive. Do runs a function in the namespace, on a
// thread of its own, so that no other goroutine ever runs there.
//
// An Identity distinguishes a namespace from all others of this boot. Since Linux 5.14 it contains the kernel's cookie,
// which is never reused. A path or an inode is not enough: a path can be mounted over, and an inode can be reused.
//
// A namespace can lose its path and still be in use: by a process, a descriptor, a mount or a socket. A Finder opens it
// anyway, and Gone proves that a namespace no longer exists. Since Linux 6.18 the kernel answers both by cookie
// (gone.go). On older kernels, uses.go searches all processes, with their descriptors and mount namespaces, which costs
// time in proportion to them. If a process may be hidden from that search, nothing is proved and there is an error.
package ns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotExist means that nothing is at the path, or that the path is empty.
	ErrNotExist = errors.New("no such network namespace")
	// ErrNotNetns means that something other than a network namespace is at the path.
	ErrNotNetns = errors.New("not a network namespace")
)

// NS is an open network namespace, which exists at least until Close. Several goroutines may use it at the same time.
type NS struct {
	path string
	h    netns.NsHandle
}

// Open opens the namespace at path. The error matches ErrNotExist if nothing is there, and ErrNotNetns if something
// else is. Other errors are from the kernel, for example EACCES.
func Open(path string) (*NS, error) {
	n := &NS{path: path}
	if path == "" {
		return nil, n.wrap(ErrNotExist)
	}
	fd, err := openChecked(path, func(fd int) error {
		var fs unix.Statfs_t
		err := retry(func() error { return unix.Fstatfs(fd, &fs) })
		if err == nil && fs.Type != unix.NSFS_MAGIC {
			err = fmt.Errorf("%w: unknown FS magic on %q: %x", ErrNotNetns, path, fs.Type)
		}
		return err
	})
	if err != nil {
		return nil, n.wrap(pathError(err))
	}
	n.h = netns.NsHandle(fd)
	if kind, err := unix.IoctlRetInt(int(n.h), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		_ = n.h.Close()
		return nil, n.wrap(ErrNotNetns)
	}
	return n, nil
}

// openChecked opens the file at path for reading if check accepts an O_PATH descriptor of the file. Opening with O_PATH
// does not block at a FIFO and has no effect on a device. openChecked then opens the file of this descriptor, because
// another process can replace the file at path after the check.
func openChecked(path string, check func(fd int) error) (fd int, err error) {
	checked, err := open(path, unix.O_PATH)
	if err != nil {
		return -1, err
	}
	defer unix.Close(checked)
	if err := check(checked); err != nil {
		return -1, err
	}
	fd, err = open("/proc/self/fd/"+strconv.Itoa(checked), unix.O_RDONLY)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	// Without /proc, only the path is left.
	if fd, err = open(path, unix.O_RDONLY|unix.O_NONBLOCK); err == nil {
		if err = check(fd); err != nil {
			_ = unix.Close(fd)
		}
	}
	return fd, err
}

func open(path string, flags int) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// New creates a namespace whose path is a descriptor of this process, so that nothing remains when the process ends.
func New() (*NS, error) {
	n := &NS{path: "new", h: netns.None()}
	unshare := func() error { return unix.Unshare(unix.CLONE_NEWNET) }
	err := n.do(unshare, func() (err error) {
		n.h, err = current()
		return err
	})
	if err != nil {
		return nil, err
	}
	n.path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.h)
	return n, nil
}

// retry repeats a system call until no signal interrupts it.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func pathError(err error) error {
	// ESRCH: the process of a path /proc/<pid> has just ended.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		return ErrNotExist
	}
	return err
}

// current opens the calling thread's namespace with a socket. netns.Get would open a file below /proc, which costs
// milliseconds when the process ends (docs/design.md, "Netlink").
func current() (netns.NsHandle, error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netns.None(), err
	}
	defer unix.Close(sock)
	h, err := unix.IoctlRetInt(sock, unix.SIOCGSKNS)
	if errors.Is(err, unix.EPERM) { // the process lacks CAP_NET_ADMIN
		return netns.Get()
	}
	return netns.NsHandle(h), err
}

// Proc returns a directory of /proc whose subdirectory net shows the calling thread's namespace. If the main thread is
// in the same namespace, this is /proc/self, which costs less than /proc/thread-self (see current).
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

// FromSocket opens the namespace of a socket. It requires CAP_NET_ADMIN in that namespace.
func FromSocket(fd int) (*NS, error) {
	h, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return nil, fmt.Errorf("network namespace of a socket: %w", err)
	}
	return &NS{h: netns.NsHandle(h)}, nil
}

// IsUnprivileged reports whether an unprivileged user created the namespace: it belongs to another user namespace than
// the caller, and the owner of that user namespace is not root.
func (n *NS) IsUnprivileged() bool {
	users, err := unix.IoctlRetInt(int(n.h), unix.NS_GET_USERNS)
	if err != nil { // the user namespace is an ancestor of the caller's
		return false
	}
	defer unix.Close(users)
	var self, st unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &self) != nil || unix.Fstat(users, &st) != nil || self.Ino == st.Ino {
		return false
	}
	owner, err := unix.IoctlGetUint32(users, unix.NS_GET_OWNER_UID)
	return err == nil && owner != 0
}

// FD returns the file descriptor of the handle, or -1 after Close.
func (n *NS) FD() int { return int(n.h) }

// Path returns the path that was given to Open. It is empty for a namespace from FromSocket.
func (n *NS) Path() string { return n.path }

// IsCurrent reports whether the calling thread is in the namespace.
func (n *NS) IsCurrent() (bool, error) {
	if !n.h.IsOpen() {
		return false, n.wrap(unix.EBADF)
	}
	h, err := current()
	if err != nil {
		return false, fmt.Errorf("network namespace of this thread: %w", err)
	}
	defer h.Close()
	return n.h.Equal(h), nil
}

// Close closes the handle. Closing it again has no effect.
func (n *NS) Close() error {
	if !n.h.IsOpen() {
		return nil
	}
	if err := n.h.Close(); err != nil { // sets n.h to -1
		return n.wrap(err)
	}
	return nil
}

func (n *NS) wrap(err error) error { return fmt.Errorf("network namespace %q: %w", n.path, err) }

// Identity distinguishes a namespace from all others of this boot, including later ones.
type Identity struct {
	Cookie uint64 `json:"cookie,omitempty"` // never reused; 0 before Linux 5.14
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"` // can be reused
	// MAC is the MAC address of the attachment's interface in the namespace, for kernels without cookies. The caller
	// sets it. Empty means unknown.
	MAC string `json:"mac,omitempty"`
}

// Is reports whether both identities are of the same namespace. It compares the cookies if both have one; otherwise the
// devices and inodes, and the MAC addresses if both have one.
func (i Identity) Is(other Identity) bool {
	if i.Cookie != 0 && other.Cookie != 0 {
		return i.Cookie == other.Cookie
	}
	if i.MAC != other.MAC && i.MAC != "" && other.MAC != "" {
		return false
	}
	return i.Device == other.Device && i.Inode == other.Inode
}

// Identity returns the identity of the namespace, without MAC.
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

// IdentityInside returns the same as Identity. The calling thread must be in the namespace.
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

// handleIdentity returns the identity that the descriptor shows. Before Linux 6.18, it lacks the cookie.
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

// Do runs fn in the namespace, on a thread of its own. Goroutines that fn starts do not run in the namespace. A panic
// of fn continues in the caller.
func (n *NS) Do(fn func() error) error { return n.do(func() error { return netns.Set(n.h) }, fn) }

func (n *NS) do(enter, fn func() error) (err error) {
	panicValue := make(chan any)
	go func() {
		defer func() { panicValue <- recover() }()
		err = n.runOnThread(enter, fn)
	}()
	if value := <-panicValue; value != nil {
		panic(value)
	}
	return err
}

func (n *NS) runOnThread(enter, fn func() error) error {
	runtime.LockOSThread()
	home, err := current()
	if err != nil {
		runtime.UnlockOSThread()
		return n.wrap(err)
	}
	defer func() {
		// If the thread cannot return, it stays locked and ends with this goroutine, so that no other one runs on it.
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

// TakeDescriptor opens a descriptor and never closes it. Call it after vishvananda/netlink has failed to open a socket:
// the library has closed the socket's descriptor, and closes the same number again when the socket's os.File is garbage
// collected. Another file could have this number by then. TakeDescriptor occupies it, because the kernel assigns the
// lowest free number.
func TakeDescriptor() { _, _ = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) }
