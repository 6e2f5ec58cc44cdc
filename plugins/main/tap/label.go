package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// A tap has the SELinux label of the process that makes it, and a process gets another
// label only by running a program. So for a labelled tap the plugin runs itself, with the
// control device as descriptor 3, and this command.
const createCommand = "create-tap"

// checkLabel refuses a label on a host without SELinux.
func (w wireConfig) checkLabel() error {
	var fs unix.Statfs_t
	if w.SELinux == "" {
		return nil
	}
	if unix.Statfs("/sys/fs/selinux", &fs) == nil && uint32(fs.Type) == unix.SELINUX_MAGIC {
		return nil
	}
	return cni.Refuse("selinuxContext", w.SELinux, "this host has no SELinux").WithCode(cni.CodeUnsupportedField)
}

func (w wireConfig) createLabelled(ctx context.Context, f *os.File, name string, flags uint16) error {
	runtime.LockOSThread() // the label is the thread's
	defer runtime.UnlockOSThread()
	const label = "/proc/thread-self/attr/exec"
	if err := os.WriteFile(label, []byte(w.SELinux), 0); err != nil {
		return cni.Refuse("selinuxContext", w.SELinux, err.Error())
	}
	defer func() { _ = os.WriteFile(label, nil, 0) }()
	return createElsewhere(ctx, process.Command{Path: "/proc/self/exe", Files: []*os.File{f}}, name, flags)
}

// createElsewhere does what createTap does in a process of its own, which ends with the errno.
func createElsewhere(ctx context.Context, own process.Command, name string, flags uint16) error {
	own.Args = []string{createCommand, name, strconv.Itoa(int(flags))}
	err := own.Run(ctx)
	var ended *process.ExitError
	if errors.As(err, &ended) && ended.ExitCode() > 0 {
		return unix.Errno(ended.ExitCode())
	}
	return err
}

// createHere is that process.
func createHere(env skel.Env) int {
	if len(env.Args) != 3 {
		fmt.Fprintf(env.Stderr, "tap: %s is for the plugin itself\n", createCommand)
		return int(unix.EINVAL)
	}
	flags, _ := strconv.ParseUint(env.Args[2], 10, 16)
	err := createTap(os.NewFile(3, control), env.Args[1], uint16(flags))
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EINVAL
	}
	return int(errno)
}
