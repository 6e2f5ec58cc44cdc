package ns

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Gone returns a function that reports whether a namespace of this boot, which has a cookie, certainly no longer
// exists: no process is in it, and no descriptor or mount refers to it.
func Gone() (isGone func(Identity) bool, err error) { return kernelTestOr(processTest, "/proc") }

// MayBeGone returns a function that reports whether a namespace of this boot may no longer exist. The function asks the
// kernel or, before Linux 6.18, reports whether no runtime has pinned the namespace. Its cost therefore does not depend
// on the number of processes. MayBeGone returns an error in the same cases as Gone.
func MayBeGone() (mayBeGone func(Identity) bool, err error) { return kernelTestOr(pinTest, Pins) }

// kernelTestOr returns the kernel's test or, before Linux 6.18, the test that fallback returns for dir. In the latter
// case, it returns an error if processes that are not visible may use a namespace.
func kernelTestOr(fallback func(dir string) (func(Identity) bool, error), dir string) (func(Identity) bool, error) {
	if test, err := kernelTest(); err == nil {
		return test, nil
	}
	if err := checkVisible(); err != nil {
		return nil, err
	}
	return fallback(dir)
}

// kernelTest implements Gone for Linux 6.18 and later. A kernel that cannot open namespaces by their cookies, or does
// not permit it, may return ESTALE for every namespace, so kernelTest first opens the thread's own namespace.
func kernelTest() (isGone func(Identity) bool, err error) {
	h, err := current()
	if err != nil {
		return nil, err
	}
	home := &NS{path: "of this thread", h: h}
	defer home.Close()
	id, err := home.handleIdentity()
	if err != nil {
		return nil, err
	}
	fd, err := openHandle(id)
	if err != nil {
		return nil, home.wrap(err)
	}
	return func(id Identity) bool {
		fd, err := openHandle(id)
		if err == nil {
			_ = unix.Close(fd)
		}
		return id.Cookie != 0 && errors.Is(err, unix.ESTALE)
	}, unix.Close(fd)
}

// The file handle of a namespace (Linux 6.18) consists of the namespace's number, kind and inode. The number of a
// network namespace is its cookie.
const (
	handleType = 241 // FILEID_NSFS
	handleSize = 16
)

func cookieOf(handle unix.FileHandle) uint64 {
	b := handle.Bytes()
	if handle.Type() != handleType || len(b) < handleSize || binary.NativeEndian.Uint32(b[8:]) != unix.CLONE_NEWNET {
		return 0
	}
	return binary.NativeEndian.Uint64(b)
}

// openHandle opens a namespace by its cookie and inode. ESTALE means that nothing on the machine uses the namespace any
// more, not even a descriptor in a message between sockets. Since Linux 6.19, a remaining socket is not a use.
func openHandle(id Identity) (fd int, err error) {
	b := binary.NativeEndian.AppendUint64(nil, id.Cookie)
	b = binary.NativeEndian.AppendUint32(b, unix.CLONE_NEWNET)
	b = binary.NativeEndian.AppendUint32(b, uint32(id.Inode))
	handle := unix.NewFileHandle(handleType, b)
	err = retry(func() (err error) {
		fd, err = unix.OpenByHandleAt(unix.FD_NSFS_ROOT, handle, unix.O_RDONLY|unix.O_CLOEXEC)
		return err
	})
	return fd, err
}

// processTest implements Gone for earlier kernels: it searches the uses of namespaces by the processes of a proc file
// system. It searches twice, because one search can miss a namespace that one process passes to another at that moment.
func processTest(proc string) (isGone func(Identity) bool, err error) {
	used := map[uint64]string{}
	for range 2 {
		s := search{proc: proc, descriptors: true, yield: func(use Use, useErr error) bool {
			if useErr == nil {
				used[use.Inode] = use.Path
			}
			err = useErr
			return useErr == nil
		}}
		s.run()
		if err = cmp.Or(err, s.searchHidden()); err != nil {
			return nil, err
		}
	}
	return absenceTest(used), nil
}

// isReused reports whether the namespace at path is another one with the same inode. No two have it simultaneously.
func isReused(path string, id Identity) bool {
	n, err := Open(path)
	if err != nil {
		return false
	}
	defer n.Close()
	actual, err := n.Identity()
	return err == nil && actual.Inode == id.Inode && actual.Cookie != 0 && actual.Cookie != id.Cookie
}

// InitialPIDs is the inode of the initial PID namespace, in which all processes are visible (PROC_PID_INIT_INO).
const InitialPIDs = 0xEFFFFFFC

// checkVisible returns an error if processes of the machine may be hidden from the calling process.
func checkVisible() error {
	var st unix.Statx_t
	if err := statx("/proc/self/ns/pid", &st); err != nil {
		return err
	}
	if st.Ino != InitialPIDs {
		return errors.New("processes outside of our PID namespace are not visible")
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 {
		return errors.New("processes may be hidden from a call without CAP_SYS_PTRACE")
	}
	return nil
}

// Pins is the directory in which runtimes mount namespaces.
const Pins = "/run/netns"

// pinTest returns a function that reports whether no file in dir is a mount of a namespace.
func pinTest(dir string) (mayBeGone func(Identity) bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	pinned := map[uint64]string{}
	for _, e := range entries {
		var st unix.Statx_t
		path := filepath.Join(dir, e.Name())
		if statx(path, &st) == nil {
			pinned[st.Ino] = path
		}
	}
	return absenceTest(pinned), nil
}

// absenceTest returns a function that reports whether a namespace is not in paths, a map from inodes to paths.
func absenceTest(paths map[uint64]string) func(Identity) bool {
	return func(id Identity) bool {
		path, isFound := paths[id.Inode]
		return id.Cookie != 0 && (!isFound || isReused(path, id))
	}
}
