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

// netnsDir is where namespaces are pinned: the directory of ip-netns(8). It is a
// shared mount, so that a pin made anywhere is seen in every Host.
const netnsDir = "/run/netns"

// initMain is PID 1 of the new namespaces. It tells the parent on descriptor 3 whether they are usable, runs
// the tests as a child, and reaps orphans, which would stay zombies if the tests themselves were PID 1.
func initMain() int {
	report := os.NewFile(3, "report")
	unix.CloseOnExec(3)
	if err := setUp(); err != nil {
		_, _ = report.WriteString(err.Error())
		return 1
	}
	pid, err := startTests()
	if err != nil {
		_, _ = report.WriteString("start the tests: " + err.Error())
		return 1
	}
	_, _ = report.WriteString("ok")
	_ = report.Close()
	defer forwardSignals(pid)()
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			fmt.Fprintln(os.Stderr, "nstest: wait:", err)
			return 1
		case got == pid:
			return exitCode(ws)
		}
	}
}

func startTests() (int, error) {
	// An ordinary user's PATH lacks what only root can use, which we are by now.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin"); err != nil {
		return 0, err
	}
	if err := os.Setenv(stageEnv, stageInside); err != nil {
		return 0, err
	}
	return syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
}

// setUp detaches the mounts from the machine's and replaces those that would show or change its state.
func setUp() error {
	if err := detachMounts(); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
		return err
	}
	for _, dir := range []string{netnsDir, "/run/lock"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", netnsDir, "tmpfs", 0); err != nil {
		return err
	}
	if err := mount("none", netnsDir, "", unix.MS_SHARED); err != nil {
		return err
	}
	if ginkgoParallel() {
		return nil
	}
	// The network namespace is older than the mapping of root in its user
	// namespace, so that parts of its /proc/net are closed to us.
	runtime.LockOSThread()
	return unix.Unshare(unix.CLONE_NEWNET)
}

// deepest is how far below the namespace's root a chroot may be: a path has 4096 bytes.
const deepest = 2048

// detachMounts keeps the mounts of a new mount namespace from the machine's. In a chroot,
// / need not be a mount point: it becomes one then, below a mount that is private already.
func detachMounts() error {
	err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	// Whoever stands above his root can go up to the namespace's.
	err = errors.Join(unix.Chroot("/proc"), root.Chdir())
	for range deepest {
		err = errors.Join(err, os.Chdir(".."))
	}
	return errors.Join(err, mount("none", ".", "", unix.MS_REC|unix.MS_PRIVATE), root.Chdir(), unix.Chroot("."),
		mount("/", "/", "", unix.MS_BIND|unix.MS_REC), unix.Chroot("/.."), os.Chdir(wd))
}

func mount(source, target, fstype string, flags uintptr) error {
	if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// isFuzzWorker tells a process that go test starts to run a fuzz target with inputs that it makes up.
func isFuzzWorker() bool {
	return slices.ContainsFunc(os.Args[1:], func(arg string) bool {
		return arg == "-test.fuzzworker" || arg == "-test.fuzzworker=true"
	})
}

// confine starts this program again where no input, whatever it makes a plugin do, can change a file: in a
// network and a mount namespace of its own, with nothing writable but the kernel's switches of that network
// namespace and directories in memory that go with the process. It returns only to say why that is impossible.
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

// Container is what a runtime hands to a plugin, as [NewNetns] makes it, for a test that is no spec.
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
