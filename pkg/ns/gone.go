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

// The file handle of a namespace (Linux 6.18): its number, which of a network namespace is the cookie, its kind and its
// inode.
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

// openHandle opens a namespace by its cookie and inode. ESTALE says that it is gone: nothing on the machine has it, not
// even a message between sockets. From Linux 6.19 on it says so also where only a socket of the namespace is left.
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

// Gone returns a function that reports whether a namespace of this boot, which has a cookie, is gone for certain: no
// process is in it, and no descriptor or mount has it. The kernel says that (Linux 6.18). On older ones all processes
// are looked at: the error says why one that is not seen may have it nevertheless, so that nothing is certain.
func Gone() (isGone func(Identity) bool, err error) {
	if isGone, err = byHandle(); err == nil {
		return isGone, nil
	}
	if err := seesAll(); err != nil {
		return nil, err
	}
	return unused("/proc")
}

// MayBeGone returns a function that reports whether a namespace of this boot may be gone. The function asks the kernel
// or, before Linux 6.18, reports whether no runtime has pinned the namespace, so its cost does not grow with the
// machine's processes. The errors are also Gone's.
func MayBeGone() (mayBeGone func(Identity) bool, err error) {
	if mayBeGone, err = byHandle(); err == nil {
		return mayBeGone, nil
	}
	if err := seesAll(); err != nil {
		return nil, err
	}
	return unpinned(Pins)
}

// Pins is the directory in which runtimes mount namespaces.
const Pins = "/run/netns"

// unpinned returns a function that reports whether a namespace is not mounted in dir.
func unpinned(dir string) (mayBeGone func(Identity) bool, err error) {
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
	return absentFrom(pinned), nil
}

// absentFrom returns a function that reports whether a namespace is not in paths, which has a path for each inode.
func absentFrom(paths map[uint64]string) func(Identity) bool {
	return func(id Identity) bool {
		path, isFound := paths[id.Inode]
		return id.Cookie != 0 && (!isFound || isReused(path, id))
	}
}

// byHandle is Gone by the kernel's word. A kernel that cannot open namespaces by their cookies, or does not let us, may
// say ESTALE of all; so our own must open.
func byHandle() (isGone func(Identity) bool, err error) {
	h, err := own()
	if err != nil {
		return nil, err
	}
	home := &NS{path: "our own", h: h}
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

// InitialPIDs is the inode of the first PID namespace, in which each process is seen (PROC_PID_INIT_INO).
const InitialPIDs = 0xEFFFFFFC

// seesAll says why processes of the machine may be hidden from us.
func seesAll() error {
	var st unix.Statx_t
	if err := statx("/proc/self/ns/pid", &st); err != nil {
		return err
	}
	if st.Ino != InitialPIDs {
		return errors.New("processes outside of our PID namespace are not seen")
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

// unused is Gone by what the processes of a proc file system have. It looks twice, since a namespace that is handed on
// meanwhile may be missed once.
func unused(proc string) (isGone func(Identity) bool, err error) {
	used := map[uint64]string{}
	for range 2 {
		s := search{proc: proc, descriptors: true, yield: func(use Use, failed error) bool {
			if failed == nil {
				used[use.Inode] = use.Path
			}
			err = failed
			return failed == nil
		}}
		s.run()
		if missed := s.hidden(); cmp.Or(err, missed) != nil {
			return nil, cmp.Or(err, missed)
		}
	}
	return absentFrom(used), nil
}

// isReused reports whether another namespace has the inode now. Two that live never have the same.
func isReused(path string, id Identity) bool {
	n, err := Open(path)
	if err != nil {
		return false
	}
	defer n.Close()
	now, err := n.Identity()
	return err == nil && now.Inode == id.Inode && now.Cookie != 0 && now.Cookie != id.Cookie
}
