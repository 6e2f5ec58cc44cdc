package faults_test

import "golang.org/x/sys/unix"

// older has further watched calls, which newer architectures lack.
var older = map[uint64]string{
	unix.SYS_OPEN: "open", unix.SYS_ACCESS: "access", unix.SYS_READLINK: "readlink", unix.SYS_UNLINK: "unlink",
	unix.SYS_POLL: "poll", unix.SYS_SELECT: "select", unix.SYS_DUP2: "dup2", unix.SYS_PIPE: "pipe",
	unix.SYS_FORK: "fork", unix.SYS_VFORK: "vfork",
}
