package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

var (
	// errGone means that nothing outside the daemon uses the container's namespace.
	errGone = errors.New("no path, process or mount refers to it any more")
	// errUncertain means that a process that may use the namespace could not be read.
	errUncertain = errors.New("cannot determine whether it is used")
)

// isGone reports whether err means that the container or its interface no longer exists.
func isGone(err error) bool {
	return errors.Is(err, errGone) || errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns) ||
		errors.Is(err, rtnl.ErrNoLink)
}

// hasInode reports whether a path refers to a file with the device and inode of a namespace. Inodes are reused, so the
// file is certainly this namespace only while a descriptor keeps the namespace.
func hasInode(path string, id ns.Identity) bool {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return err == nil && uint64(st.Dev) == id.Device && st.Ino == id.Inode
}

// findUse returns a path to a namespace: the path of a thread that is in it, or of a mount that a process sees. The
// error is errGone if there is no such path. It is another error if a process could not be read.
func findUse(hostPrefix string, id ns.Identity) (string, error) {
	proc := hostPrefix + "/proc"
	if _, err := os.Stat(proc + "/1"); err != nil {
		proc = "/proc"
	}
	var uncertain error // first process that could not be read
	for use, err := range ns.Uses(proc, false) {
		if err == nil && use.Inode == id.Inode {
			return use.Path, nil
		}
		uncertain = cmp.Or(uncertain, err)
	}
	return "", cmp.Or(uncertain, errGone)
}

// onExit calls exited when the process whose /proc directory contains path has ended, or when ctx ends. It does nothing
// for other paths, and does not notice the end of a single thread.
func onExit(ctx context.Context, path string, exited func()) {
	var pid int
	if n, _ := fmt.Sscanf(path, "/proc/%d/", &pid); n == 0 {
		return
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		exited()
	}
	if err != nil {
		return
	}
	process := os.NewFile(uintptr(fd), path)
	context.AfterFunc(ctx, func() { _ = process.Close() })
	raw, _ := process.SyscallConn() // never fails for an open file
	go func() {
		// Read waits for the descriptor and calls the function again until it returns true.
		_ = raw.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
		exited()
	}()
}
