package faults_test

import "golang.org/x/sys/unix"

// older calls are watched too; younger architectures do not have them.
var older = map[uint64]string{
	unix.SYS_OPEN: "open", unix.SYS_ACCESS: "access", unix.SYS_READLINK: "readlink", unix.SYS_UNLINK: "unlink",
	unix.SYS_POLL: "poll", unix.SYS_SELECT: "select", unix.SYS_DUP2: "dup2", unix.SYS_PIPE: "pipe",
	unix.SYS_FORK: "fork", unix.SYS_VFORK: "vfork",
}
