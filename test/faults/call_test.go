package faults_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

// call is one watched call that is about to be made.
type call struct {
	N    int // of all threads and children together, from 1
	Name string
	Pid  int // of the process
	Main bool
	Args [6]uint64

	Program  string // that the process runs
	File     string // what a descriptor or a path leads to, as far as it is known
	Failures int    // in how many ways it can fail
}

func callName(nr uint64) string {
	if name, ok := watched[nr]; ok {
		return name
	}
	return older[nr]
}

// String is the call for people: "17 bridge openat /run/hawser/nft.lock".
func (c call) String() string {
	s := fmt.Sprintf("%d %s %s %s", c.N, c.Program, c.Name, c.File)
	switch c.Name {
	case "openat", "fcntl", "flock", "setsockopt":
		s += fmt.Sprintf(" %#x %#x", uint32(c.Args[1]), c.Args[2])
	}
	return strings.TrimSpace(s)
}

// ours reports whether the program is one of the plugins.
func (c call) ours() bool { return !strings.Contains(c.Program, "tables") }

func (c call) is(names ...string) bool { return slices.Contains(names, c.Name) }

// describe finds out what the call is about. The caller of it waits for our answer, so nothing moves.
func (c *call) describe(tid int) {
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", tid))
	c.Program = filepath.Base(program)
	switch {
	case c.is("openat", "openat2", "mkdirat", "unlinkat", "readlinkat", "faccessat", "faccessat2", "newfstatat",
		"statx", "fchmodat", "utimensat", "mknodat"):
		c.File = pathAt(tid, c.Args[0], c.Args[1])
	case c.is("linkat", "renameat", "renameat2"):
		c.File = pathAt(tid, c.Args[2], c.Args[3])
	case c.is("symlinkat"):
		c.File = pathAt(tid, c.Args[1], c.Args[2])
	case c.is("execve", "open", "access", "readlink", "unlink"):
		c.File = trace.Text(tid, c.Args[0])
	case c.is("sendto") && c.Args[4] != 0 && family(tid, c.Args[4]) == unix.AF_NETLINK:
		c.File = "netlink"
	case c.is("read", "pread64", "readv", "write", "pwrite64", "writev", "close", "fstat", "getdents64", "fsync",
		"fdatasync", "ftruncate",
		"fchmod", "fcntl", "flock", "ioctl", "setns", "dup3", "dup2", "bind", "connect", "setsockopt", "getsockopt",
		"sendto", "sendmsg",
		"recvfrom", "recvmsg"):
		c.File = descriptor(tid, c.Args[0])
	}
}

func pathAt(tid int, dir, name uint64) string {
	path := ""
	if name != 0 {
		path = trace.Text(tid, name)
	}
	if filepath.IsAbs(path) || int32(dir) == unix.AT_FDCWD {
		return path
	}
	return filepath.Join(descriptor(tid, dir), path)
}

func descriptor(tid int, fd uint64) string {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)))
	if err != nil {
		return fmt.Sprintf("fd %d", int32(fd))
	}
	if kind, _, ok := strings.Cut(to, ":["); ok {
		return kind
	}
	return to
}

func family(tid int, address uint64) uint16 {
	b := trace.Memory(tid, address, 2)
	if len(b) < 2 {
		return unix.AF_UNSPEC
	}
	return binary.NativeEndian.Uint16(b)
}

func poke(tid int, address uint64, data []byte) error {
	local := []unix.Iovec{{Base: &data[0]}}
	local[0].SetLen(len(data))
	n, err := unix.ProcessVMWritev(tid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(data)}}, 0)
	if err == nil && n != len(data) {
		err = unix.EFAULT
	}
	return err
}

// watched are the calls that can fail or that change something outside of the
// process, by number. What the Go runtime does for itself (memory, threads, signals,
// polling) is not: where that fails it ends the process, which is a kill.
var watched = map[uint64]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_LINKAT: "linkat",
	unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKNODAT: "mknodat", unix.SYS_FCHMOD: "fchmod",
	unix.SYS_FCHMODAT: "fchmodat", unix.SYS_UTIMENSAT: "utimensat", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_READ: "read", unix.SYS_PREAD64: "pread64",
	unix.SYS_READV: "readv", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_WRITEV: "writev",
	unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_FSTAT: "fstat", unix.SYS_STATX: "statx",
	unix.SYS_GETDENTS64: "getdents64", unix.SYS_READLINKAT: "readlinkat", unix.SYS_FACCESSAT: "faccessat",
	unix.SYS_FACCESSAT2: "faccessat2", unix.SYS_CLOSE: "close", unix.SYS_DUP3: "dup3", unix.SYS_FCNTL: "fcntl",
	unix.SYS_FLOCK: "flock", unix.SYS_IOCTL: "ioctl", unix.SYS_PIPE2: "pipe2", unix.SYS_MEMFD_CREATE: "memfd_create",
	unix.SYS_PPOLL: "ppoll", unix.SYS_SOCKET: "socket", unix.SYS_BIND: "bind", unix.SYS_CONNECT: "connect",
	unix.SYS_SETSOCKOPT: "setsockopt", unix.SYS_GETSOCKOPT: "getsockopt", unix.SYS_SENDTO: "sendto",
	unix.SYS_SENDMSG: "sendmsg", unix.SYS_RECVFROM: "recvfrom", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SETNS: "setns",
	unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_EXECVE: "execve", unix.SYS_WAIT4: "wait4",
	unix.SYS_WAITID: "waitid", unix.SYS_INOTIFY_INIT1: "inotify_init1",
	unix.SYS_INOTIFY_ADD_WATCH: "inotify_add_watch",
}

// changing are the calls that change something outside of the process, or may. A lock
// that is taken or given back is none, since it goes with the process.
var changing = strings.Fields("openat open mkdirat linkat symlinkat renameat renameat2 unlinkat unlink mknodat " +
	"fchmod fchmodat utimensat ftruncate write pwrite64 writev sendto sendmsg execve clone clone3 fork vfork")

// changes reports whether the call changes something outside of the process.
func (c call) changes(tid int) bool {
	switch c.Name {
	case "openat":
		return c.Args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0 // a file that O_TMPFILE makes has no name
	case "open":
		return c.Args[1]&(unix.O_CREAT|unix.O_TRUNC) != 0
	case "sendto":
		return !asks(tid, c)
	}
	return c.is(changing...)
}

// asks reports whether a message to the kernel is a question.
func asks(tid int, c call) bool {
	header := trace.Memory(tid, c.Args[1], unix.SizeofNlMsghdr)
	if len(header) < unix.SizeofNlMsghdr {
		return false
	}
	switch typ := binary.NativeEndian.Uint16(header[4:]); {
	case typ>>8 == unix.NFNL_SUBSYS_NFTABLES: // changes come in a batch
		return true
	case typ>>8 == 0:
		return typ >= unix.RTM_BASE && typ%4 == unix.RTM_GETLINK%4
	}
	return false
}
