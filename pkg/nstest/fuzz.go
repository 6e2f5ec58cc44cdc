package nstest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// isFuzzWorker tells a process that go test starts to run a fuzz target with
// inputs that it makes up.
func isFuzzWorker() bool {
	return slices.ContainsFunc(os.Args[1:], func(arg string) bool {
		return arg == "-test.fuzzworker" || arg == "-test.fuzzworker=true"
	})
}

// confine starts this program again where no input, whatever it makes a plugin
// do, can change a file: in a network and a mount namespace of its own, with
// nothing writable but the kernel's switches of that network namespace and
// directories in memory that go with the process. It returns only to say why
// that is impossible.
func confine() error {
	// exec makes the calling thread, and so its namespaces, the process.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := confineMounts(); err != nil {
		return err
	}
	if err := os.Setenv(stageEnv, stageConfined); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

func confineMounts() error {
	if err := detachMounts(); err != nil {
		return err
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &readOnly); err != nil {
		return fmt.Errorf("make everything read-only: %w", err)
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/var/lib", os.TempDir()} {
		if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
			return err
		}
	}
	return errors.Join(os.Mkdir("/run/lock", 0o755), os.Mkdir(netnsDir, 0o755))
}

// Container is what a runtime hands to a plugin, as [NewNetns] makes it, for a
// test that is no spec.
func Container(tb testing.TB, name string) (*Host, error) {
	if run.unavailable != "" {
		return nil, errors.New(run.unavailable)
	}
	h := &Host{Name: name, Path: filepath.Join(netnsDir, name)}
	err := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked, as in create
		err <- h.unshare(false)
	}()
	tb.Cleanup(func() { _ = h.unpin() })
	return h, <-err
}
