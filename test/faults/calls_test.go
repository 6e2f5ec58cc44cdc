package faults_test

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

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
	header := make([]byte, unix.SizeofNlMsghdr)
	if peek(tid, c.Args[1], header) != nil {
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
