package ns_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// needHandles skips the spec if the kernel cannot report itself whether a namespace exists.
func needHandles() {
	GinkgoHelper()
	_, err := ns.KernelTest()
	nstest.NeedOK("namespaces by handle", err)
}

// run starts a program, waits for its first output, and kills it at the end of the spec.
func run(attr *syscall.SysProcAttr, program string, args ...string) *exec.Cmd {
	GinkgoHelper()
	c := exec.Command(program, args...)
	c.SysProcAttr = attr
	out := nstest.Must(c.StdoutPipe())
	Expect(c.Start()).To(Succeed())
	DeferCleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	Expect(out.Read(make([]byte, 1))).To(Equal(1))
	return c
}

// descriptor returns a descriptor of a namespace. The caller closes it.
func descriptor(h *nstest.Host) int {
	GinkgoHelper()
	return nstest.Must(unix.Open(h.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0))
}

// holders keep a namespace in use until the spec ends, each in another way.
var holders = map[string]func(h *nstest.Host){
	"a process": func(h *nstest.Host) {
		h.Do(func() { run(nil, "/bin/sh", "-c", "echo; exec sleep 600") })
	},
	"a thread": func(h *nstest.Host) {
		ready, end := make(chan bool), make(chan bool)
		go h.Do(func() { ready <- true; <-end })
		<-ready
		DeferCleanup(func() { close(end) })
	},
	"an open descriptor": func(h *nstest.Host) {
		DeferCleanup(unix.Close, descriptor(h))
	},
	"a descriptor of one thread alone": func(h *nstest.Host) {
		ready, end := make(chan error), make(chan bool)
		go func() {
			runtime.LockOSThread() // and the thread ends with the goroutine
			err := unix.Unshare(unix.CLONE_FILES)
			fd := descriptor(h)
			ready <- err
			<-end
			_ = unix.Close(fd)
		}()
		Expect(<-ready).To(Succeed())
		DeferCleanup(func() { close(end) })
	},
	"a process in a user namespace": func(h *nstest.Host) {
		nstest.Need("userns")
		h.Do(func() {
			run(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}, "/bin/sh", "-c", "echo; exec sleep 600")
		})
	},
	"a mount in another mount namespace": func(h *nstest.Host) {
		path := filepath.Join(GinkgoT().TempDir(), "held")
		Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		run(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, "/bin/sh", "-c",
			`mount --bind "$0" "$1" && echo && exec sleep 600`, h.Path, path)
	},
	"a mount that a chrooted process does not see": func(h *nstest.Host) {
		path, jail := filepath.Join(GinkgoT().TempDir(), "held"), GinkgoT().TempDir()
		Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		run(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, "/bin/sh", "-c",
			`mount --bind "$0" "$1" && mount --bind / "$2" && exec chroot "$2" /bin/sh -c 'echo; exec sleep 600'`,
			h.Path, path, jail)
	},
	"a mount in a mount namespace that is open": func(h *nstest.Host) {
		path := filepath.Join(GinkgoT().TempDir(), "held")
		Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		c := run(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, "/bin/sh", "-c",
			`mount --bind "$0" "$1" && echo && exec sleep 600`, h.Path, path)
		fd := nstest.Must(unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", c.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0))
		DeferCleanup(unix.Close, fd)
		Expect(c.Process.Kill()).To(Succeed())
		_ = c.Wait()
	},
	"processes, each of which forks another one and ends": func(h *nstest.Host) {
		h.Do(func() {
			chain := `#!/bin/sh
echo
[ -e "$1" ] || "$0" "$1" &`
			script, end := filepath.Join(GinkgoT().TempDir(), "chain"), filepath.Join(GinkgoT().TempDir(), "end")
			Expect(os.WriteFile(script, []byte(chain), 0o700)).To(Succeed())
			run(nil, script, end)
			DeferCleanup(os.WriteFile, end, []byte{}, os.FileMode(0o600))
		})
	},
}

// unseenHolders keep a namespace in use in a way that /proc does not show.
var unseenHolders = map[string]func(h *nstest.Host){
	"a message between sockets": func(h *nstest.Host) {
		pair := nstest.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
		fd := descriptor(h)
		Expect(unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0)).To(Succeed())
		Expect(unix.Close(fd)).To(Succeed())
		DeferCleanup(unix.Close, pair[0])
		DeferCleanup(unix.Close, pair[1])
	},
}

var _ = Describe("a namespace", Label("gone"), func() {
	// held returns the identity of a namespace that has lost its path and is kept in use by hold.
	held := func(hold func(h *nstest.Host)) ns.Identity {
		GinkgoHelper()
		h := nstest.NewNetns()
		n := nstest.Must(ns.Open(h.Path))
		id := nstest.Must(n.Identity())
		Expect(n.Close()).To(Succeed())
		hold(h)
		h.Unpin()
		return id
	}

	for _, name := range slices.Sorted(maps.Keys(holders)) {
		hold := holders[name]
		It("exists for the kernel as long as it has "+name, func() {
			needHandles()
			isGone := nstest.Must(ns.KernelTest())
			Expect(isGone(held(hold))).To(BeFalse())
		})
		It("exists for a search of all processes as long as it has "+name, func() {
			id := held(hold)
			for range 5 {
				isGone, err := ns.ProcessTest("/proc")
				Expect(err == nil && isGone(id)).To(BeFalse())
			}
		})
	}

	for _, name := range slices.Sorted(maps.Keys(unseenHolders)) {
		hold := unseenHolders[name]
		It("exists for the kernel as long as it has "+name, func() {
			needHandles()
			Expect(nstest.Must(ns.KernelTest())(held(hold))).To(BeFalse())
		})
		It("may exist for a search of all processes if there is "+name, func() {
			held(hold)
			Expect(ns.ProcessTest("/proc")).Error().To(HaveOccurred())
		})
	}

	It("exists for the kernel as long as a socket is in it", func() {
		needHandles()
		nstest.NeedOK("a kernel whose handles lead to what sockets have", before("6.19"))
		id := held(func(h *nstest.Host) {
			h.Do(func() {
				DeferCleanup(unix.Close, nstest.Must(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)))
			})
		})
		Expect(nstest.Must(ns.KernelTest())(id)).To(BeFalse())
	})

	It("no longer exists without a use, even if another namespace has its inode", func() {
		id := held(func(*nstest.Host) {})
		live := nstest.Must(open(nstest.NewNetns().Path).Identity())
		ways := map[string]func() (func(ns.Identity) bool, error){
			"a look at all processes": func() (func(ns.Identity) bool, error) { return ns.ProcessTest("/proc") },
		}
		if _, err := ns.KernelTest(); err == nil {
			ways["the kernel"] = ns.KernelTest
		}
		for way, find := range ways {
			var isGone func(ns.Identity) bool
			Eventually(func() bool { // it is being cleared up, or a look may have missed one
				all, err := find()
				isGone = all
				return err == nil && isGone(id) && isGone(ns.Identity{Cookie: id.Cookie, Inode: live.Inode})
			}).Should(BeTrue(), way)
			Expect(isGone(live)).To(BeFalse(), way)
			Expect(isGone(ns.Identity{Inode: id.Inode})).To(BeFalse(), way+", without a cookie")
		}
	})

	DescribeTable("no longer exists for a search of processes, although none shows the mounts of", func(hold func()) {
		id := held(func(*nstest.Host) {})
		hold()
		Eventually(func() bool { // it is being cleared up, or a look may have missed one
			isGone, err := ns.ProcessTest("/proc")
			return err == nil && isGone(id)
		}).Should(BeTrue())
	},
		Entry("a mounted mount namespace, such as those of snapd", func() {
			path := filepath.Join(GinkgoT().TempDir(), "snap.mnt")
			Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
			Eventually(func() error { // Linux 6.18 numbers them by processor, and refuses a lower number than ours
				c := run(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, "/bin/sh", "-c", `echo; exec sleep 600`)
				defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
				return unix.Mount(fmt.Sprintf("/proc/%d/ns/mnt", c.Process.Pid), path, "", unix.MS_BIND, "")
			}).Should(Succeed())
			DeferCleanup(unix.Unmount, path, unix.MNT_DETACH)
		}),
		Entry("a mount namespace whose only process has another root", func() {
			run(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, "/bin/sh", "-c",
				`mount --bind / "$0" && exec chroot "$0" /bin/sh -c 'echo; exec sleep 600'`, GinkgoT().TempDir())
		}),
	)

	It("may not exist if no runtime has pinned it, or if another one has its inode", func() {
		h := nstest.NewNetns()
		pins := filepath.Dir(h.Path)
		pinned := nstest.Must(open(h.Path).Identity())
		live := held(holders["an open descriptor"])
		mayBeGone := nstest.Must(ns.PinTest(pins))
		Expect(mayBeGone(pinned)).To(BeFalse())
		Expect(mayBeGone(live)).To(BeTrue(), "it looks at no process")
		Expect(mayBeGone(ns.Identity{Cookie: live.Cookie, Inode: pinned.Inode})).To(BeTrue())
		Expect(mayBeGone(ns.Identity{Inode: live.Inode})).To(BeFalse(), "without a cookie")
		Expect(nstest.Must(ns.PinTest("/nowhere"))(pinned)).To(BeTrue())
	})

	It("may exist if processes of the machine are hidden", func() {
		Expect(ns.CheckVisible()).To(MatchError(ContainSubstring("PID namespace"))) // the specs have one of their own
	})

	It("has the same identity by its handle and from inside", func() {
		n := open(nstest.NewNetns().Path)
		var cookie uint64
		Expect(n.Do(func() error {
			sock := nstest.Must(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
			defer unix.Close(sock)
			cookie = nstest.Must(unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE))
			return nil
		})).To(Succeed())
		Expect(nstest.Must(n.Identity()).Cookie).To(Equal(cookie))
	})

	It("is found without its path in every kind of use", func() {
		needHandles()
		for _, hold := range unseenHolders {
			id := held(hold)
			n := nstest.Must(new(ns.Finder).Open("/nowhere", id))
			Expect(nstest.Must(n.Identity()).Is(id)).To(BeTrue())
			Expect(n.Close()).To(Succeed())
		}
		gone := held(func(*nstest.Host) {})
		Eventually(func() error {
			n, err := new(ns.Finder).Open("/nowhere", gone)
			if err == nil { // the kernel is still clearing it up
				err = n.Close()
			}
			return err
		}).Should(MatchError(ns.ErrNotExist))
	})
})

var _ = It("finds a namespace without its path by its uses, or returns why it may have missed it", func() {
	h := nstest.NewNetns()
	id := nstest.Must(open(h.Path).Identity())
	h.Unpin()
	n := nstest.Must(ns.Search(new(ns.Finder), id))
	Expect(nstest.Must(n.Identity()).Is(id)).To(BeTrue())
	Expect(n.Close()).To(Succeed())
	id.Inode = 1
	Expect(ns.Search(new(ns.Finder), id)).To(BeNil())

	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		err := unix.Capget(&header, &sets[0])
		sets[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
		sets[0].Permitted &^= 1 << unix.CAP_SYS_PTRACE
		if err = errors.Join(err, unix.Capset(&header, &sets[0])); err == nil {
			_, err = ns.Search(new(ns.Finder), id)
		}
		errs <- err
	}()
	Expect(<-errs).To(And(MatchError(unix.EACCES), Not(MatchError(ns.ErrNotExist))))
})

var _ = It("ends a search that takes too long with an error, so that nothing is proved", func() {
	slow := ns.UsesWithin(1, "/proc")
	var errs []error
	for _, err := range slow {
		errs = append(errs, err)
	}
	Expect(errs).To(ConsistOf(MatchError(unix.ETIMEDOUT)))
	Expect(ns.HasProcess(open(nstest.NewNetns().Path), slow)).To(BeTrue())
})

// before returns an error unless the kernel is older than a release.
func before(release string) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	var major, minor, toMajor, toMinor int
	_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	_, _ = fmt.Sscanf(release, "%d.%d", &toMajor, &toMinor)
	if major > toMajor || major == toMajor && minor >= toMinor {
		return fmt.Errorf("Linux %s", strings.TrimSpace(unix.ByteSliceToString(u.Release[:])))
	}
	return nil
}
