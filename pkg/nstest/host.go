package nstest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// Host is a network namespace, and for one made by [NewHost] also a mount
// namespace, in which a spec works. It lives until the end of the spec.
type Host struct {
	// Name is the namespace's name for ip-netns(8).
	Name string
	// Path is where the network namespace is pinned, as CNI_NETNS would name it.
	Path string

	mounts *os.File // nil: the test process's own mount namespace
}

// NewHost makes a machine: an own network namespace with lo up, and an own mount namespace with empty /run and
// /var/lib and the /sys of that network namespace. It skips the spec where namespaces cannot be made.
func NewHost() *Host {
	ginkgo.GinkgoHelper()
	h := create(true)
	h.Cmd("ip", "link", "set", "lo", "up")
	return h
}

// NewNetns makes what a runtime hands to a plugin: a network namespace in which nothing was touched (lo is
// down). Programs run in it see the mounts of the test process.
func NewNetns() *Host {
	ginkgo.GinkgoHelper()
	return create(false)
}

// count makes names unique within the run.
var count atomic.Int64

func create(machine bool) *Host {
	ginkgo.GinkgoHelper()
	if run.unavailable != "" {
		skip("namespaces", run.unavailable)
	}
	name := fmt.Sprintf("ns%d", count.Add(1))
	h := &Host{Name: name, Path: filepath.Join(netnsDir, name)}
	err := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and so does its membership of the namespaces.
		runtime.LockOSThread()
		err <- h.unshare(machine)
	}()
	if err := <-err; err != nil {
		ginkgo.Fail("make " + name + ": " + err.Error())
	}
	ginkgo.DeferCleanup(h.unpin)
	return h
}

// unshare moves the calling thread into the new namespaces and pins them.
func (h *Host) unshare(machine bool) error {
	flags := unix.CLONE_NEWNET
	if machine {
		flags |= unix.CLONE_FS | unix.CLONE_NEWNS
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_ = f.Close()
	if err := mount("/proc/thread-self/ns/net", h.Path, "", unix.MS_BIND); err != nil {
		return err
	}
	if !machine {
		return nil
	}
	if err := machineMounts(); err != nil {
		return err
	}
	h.mounts, err = os.Open("/proc/thread-self/ns/mnt")
	return err
}

// machineMounts gives the calling thread's mount namespace the directories in
// which plugins and their helpers keep state.
func machineMounts() error {
	pins, err := unix.Open(netnsDir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pins) }()
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
			return err
		}
	}
	for _, dir := range []string{netnsDir, "/run/lock", "/var/lib/cni"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount(fmt.Sprintf("/proc/thread-self/fd/%d", pins), netnsDir, "", unix.MS_BIND|unix.MS_REC); err != nil {
		return err
	}
	// A container engine that masks parts of /sys makes the kernel refuse a new
	// one; programs then see the /sys of the machine, read-only for us.
	_ = mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	return nil
}

// Do runs fn on a thread inside the namespaces and returns when it has ended. A failed assertion in fn ends the
// spec as usual. Goroutines that fn starts are not inside.
func (h *Host) Do(fn func()) {
	ginkgo.GinkgoHelper()
	done, panicked := make(chan struct{}), any(nil)
	var enterErr error
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if enterErr = h.enter(); enterErr != nil {
			return
		}
		defer func() { panicked = recover() }()
		fn()
	}()
	<-done
	if enterErr != nil {
		ginkgo.Fail(fmt.Sprintf("enter %s: %v", h.Name, enterErr))
	}
	if panicked != nil {
		panic(panicked)
	}
}

// enter moves the calling thread into the namespaces for good.
func (h *Host) enter() error {
	f, err := os.Open(h.Path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if h.mounts != nil {
		if err := h.enterMounts(); err != nil {
			return err
		}
	}
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	return nil
}

func (h *Host) enterMounts() error {
	// setns takes the working directory to the root.
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(h.mounts.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	return unix.Chdir(wd)
}

// Unpin removes Path as a runtime does at the end of a container, and gives a machine's mounts up. The
// namespaces go when nothing uses them any more. Unpinning twice does nothing.
func (h *Host) Unpin() {
	ginkgo.GinkgoHelper()
	gomega.Expect(h.unpin()).To(gomega.Succeed())
}

func (h *Host) unpin() error {
	if h.mounts != nil {
		_ = h.mounts.Close()
	}
	// Not Path: a spec may have set that to something else, which would be removed.
	pin := filepath.Join(netnsDir, h.Name)
	// EINVAL: the spec itself has unmounted it.
	err := unix.Unmount(pin, unix.MNT_DETACH)
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unpin %s: %w", pin, err)
	}
	if err := os.Remove(pin); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// AtOnce calls do with 0 to n-1, each in a goroutine of its own, and waits for all.
func AtOnce(n int, do func(i int)) {
	ginkgo.GinkgoHelper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			defer ginkgo.GinkgoRecover()
			do(i)
		})
	}
	all.Wait()
}

// deadline is a context that ends as one does whose time is over.
type deadline struct {
	context.Context
	over chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// DeadlineWhen is a context whose deadline is over as soon as done says so, whatever time the
// machine needs to get there, and after [Hang] in any case.
func DeadlineWhen(done func() bool) context.Context {
	ginkgo.GinkgoHelper()
	d := deadline{context.Background(), make(chan struct{})}
	stop := make(chan struct{})
	ginkgo.DeferCleanup(func() {
		close(stop)
		<-d.over // done may look at what is removed next
	})
	go func() {
		defer close(d.over)
		defer ginkgo.GinkgoRecover()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(Patience(Hang)); !done() && time.Now().Before(end); {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	return d
}
