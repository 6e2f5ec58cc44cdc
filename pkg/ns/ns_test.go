package ns_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestNS(t *testing.T) { nstest.RunSpecs(t, "ns") }

// netns returns the inode of the calling thread's namespace.
func netns() uint64 {
	GinkgoHelper()
	return inode("/proc/thread-self/ns/net")
}

func inode(path string) uint64 {
	GinkgoHelper()
	var st unix.Stat_t
	Expect(unix.Stat(path, &st)).To(Succeed())
	return st.Ino
}

func open(path string) *ns.NS {
	GinkgoHelper()
	n := nstest.Must(ns.Open(path))
	DeferCleanup(n.Close)
	return n
}

var _ = Describe("Open", func() {
	It("opens a pinned namespace and one of a process", func() {
		h := nstest.NewNetns()
		n := open(h.Path)
		Expect(n.Path()).To(Equal(h.Path))
		Expect(n.FD()).To(BeNumerically(">=", 0))
		open("/proc/self/ns/net")
	})

	DescribeTable("returns ErrNotExist for", func(path func() string) {
		gone := path()
		_, err := ns.Open(gone)
		Expect(err).To(MatchError(ns.ErrNotExist))
		Expect(err).NotTo(MatchError(ns.ErrNotNetns))
		Expect(err).To(MatchError(fmt.Sprintf("network namespace %q: no such network namespace", gone)))
	},
		Entry("no path", func() string { return "" }),
		Entry("a missing file", func() string { return "/run/netns/absent" }),
		Entry("a missing directory", func() string { return "/nowhere/at/all" }),
		Entry("a process that has ended", func() string { return "/proc/2147483647/ns/net" }),
		Entry("below a file", func() string { return "/proc/version/net" }),
		Entry("a dangling link", func() string {
			path := filepath.Join(GinkgoT().TempDir(), "link")
			Expect(os.Symlink("/nowhere", path)).To(Succeed())
			return path
		}),
		Entry("a namespace that is no longer mounted", func() string {
			h := nstest.NewNetns()
			h.Unpin()
			return h.Path
		}),
	)

	DescribeTable("returns ErrNotNetns for", func(path func() string) {
		_, err := ns.Open(path())
		Expect(err).To(MatchError(ns.ErrNotNetns))
		Expect(err).NotTo(MatchError(ns.ErrNotExist))
	},
		Entry("a mount namespace", func() string { return "/proc/self/ns/mnt" }),
		Entry("a user namespace", func() string { return "/proc/self/ns/user" }),
		Entry("another file of /proc", func() string { return "/proc/version" }),
		Entry("a directory", func() string { return "/run" }),
		Entry("a pipe, which would block", func() string {
			path := filepath.Join(GinkgoT().TempDir(), "fifo")
			Expect(unix.Mkfifo(path, 0o600)).To(Succeed())
			return path
		}),
		Entry("a mount point without its mount", func() string {
			path := filepath.Join(GinkgoT().TempDir(), "pin")
			Expect(os.WriteFile(path, nil, 0o444)).To(Succeed())
			return path
		}),
	)

	It("opens a namespace if /proc is not mounted", func() {
		h, result := nstest.NewNetns(), make(chan error)
		go func() {
			runtime.LockOSThread() // and the thread ends with the goroutine
			err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("", "/proc", "tmpfs", 0, ""))
			if err == nil {
				var n *ns.NS
				if n, err = ns.Open(h.Path); err == nil {
					err = n.Close()
				}
			}
			result <- err
		}()
		Expect(<-result).To(Succeed())
	})
})

// A file below /proc can be replaced at any time: a container can give the number of a descriptor to another file.
var _ = DescribeTable("does not open a device that replaces", func(target, link string, find func(proc string)) {
	proc := GinkgoT().TempDir()
	task := filepath.Join(proc, "1/task/1")
	Expect(os.MkdirAll(filepath.Join(task, "fd"), 0o700)).To(Succeed())
	device, link := filepath.Join(proc, "device"), filepath.Join(task, link)
	Expect(unix.Mkfifo(device, 0o600)).To(Succeed())
	for name, target := range map[string]string{
		filepath.Join(task, "ns"): "/proc/self/ns", filepath.Join(task, "root"): "/", link: target, link + "'": device,
	} {
		Expect(os.Symlink(target, name)).To(Succeed())
	}
	mounts := fmt.Sprintf("1 1 0:4 mnt:[1] %s rw - nsfs nsfs rw\n", link)
	Expect(os.WriteFile(filepath.Join(task, "mountinfo"), []byte(mounts), 0o600)).To(Succeed())

	holder := nstest.Must(os.OpenFile(device, os.O_RDWR, 0)) // so that opening the FIFO does not block
	defer holder.Close()
	opened := nstest.Must(unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK))
	defer unix.Close(opened)
	nstest.Must(unix.InotifyAddWatch(opened, device, unix.IN_OPEN))

	ended, last := make(chan bool), make(chan error)
	go func() {
		for {
			err := unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, link+"'", unix.RENAME_EXCHANGE)
			select {
			case <-ended:
				last <- err
				return
			default:
			}
		}
	}()
	for range 2000 {
		find(proc)
	}
	ended <- true
	Expect(<-last).To(Succeed())
	_, err := unix.Read(opened, make([]byte, 4096))
	Expect(err).To(MatchError(unix.EAGAIN))
},
	Entry("the namespace at a path", "/proc/self/ns/net", "fd/3", func(proc string) {
		if n, err := ns.Open(proc + "/1/task/1/fd/3"); err == nil {
			_ = n.Close()
		}
	}),
	Entry("a descriptor of a namespace", "/proc/self/ns/net", "fd/3", func(proc string) {
		for range ns.Uses(proc, true) {
		}
	}),
	Entry("a mount of a mount namespace", "/proc/self/ns/mnt", "mnt", func(proc string) {
		_, _ = ns.ProcessTest(proc)
	}),
)

var _ = Describe("New", func() {
	It("creates a namespace that other processes can open at its path until Close", func() {
		outside, n := netns(), nstest.Must(ns.New())
		Expect(netns()).To(Equal(outside))
		Expect(n.IsCurrent()).To(BeFalse())
		var inside uint64
		Expect(n.Do(func() error { inside = netns(); return nil })).To(Succeed())
		Expect(inode(n.Path())).To(And(Equal(inside), Not(Equal(outside))))
		open(n.Path())
		path := n.Path()
		Expect(n.Close()).To(Succeed())
		Expect(ns.Open(path)).Error().To(HaveOccurred())
	})
})

var _ = Describe("a handle", func() {
	It("reports whether the calling thread is in it", func() {
		a, b := nstest.NewNetns(), nstest.NewNetns()
		Expect(open(a.Path).IsCurrent()).To(BeFalse())
		a.Do(func() {
			Expect(open(a.Path).IsCurrent()).To(BeTrue())
			Expect(open(b.Path).IsCurrent()).To(BeFalse())
		})
	})

	It("keeps its namespace if the path is removed", func() {
		h := nstest.NewNetns()
		n, inside := open(h.Path), inode(h.Path)
		h.Unpin()
		Expect(n.Do(func() error {
			Expect(netns()).To(Equal(inside))
			return nil
		})).To(Succeed())
	})

	It("can be closed twice, and then causes errors", func() {
		h := nstest.NewNetns()
		n := open(h.Path)
		Expect(n.Close()).To(Succeed())
		Expect(n.Close()).To(Succeed())
		Expect(n.FD()).To(Equal(-1))
		Expect(n.Do(func() error { Fail("ran"); return nil })).To(MatchError(unix.EBADF))
		Expect(n.IsCurrent()).Error().To(MatchError(unix.EBADF))
		Expect(n.Identity()).Error().To(MatchError(unix.EBADF))
	})

	It("has an identity that no other namespace has, not even a later one", func() {
		h := nstest.NewNetns()
		id := nstest.Must(open(h.Path).Identity())
		Expect(id.Inode).To(Equal(inode(h.Path)))
		again := nstest.Must(open(h.Path).Identity())
		Expect(id.Is(again)).To(BeTrue())
		other := nstest.Must(open(nstest.NewNetns().Path).Identity())
		Expect(id.Is(other)).To(BeFalse())

		By("its number, not its inode, which another namespace gets when it is gone")
		reused := ns.Identity{Cookie: 8, Device: 4, Inode: 77}
		Expect(reused.Is(ns.Identity{Cookie: 7, Device: 4, Inode: 77})).To(BeFalse())
		Expect(reused.Is(ns.Identity{Cookie: 8, Device: 4, Inode: 78})).To(BeTrue())
		By("device and inode where the kernel had no number")
		Expect(reused.Is(ns.Identity{Device: 4, Inode: 77})).To(BeTrue())
		Expect(reused.Is(ns.Identity{Device: 5, Inode: 77})).To(BeFalse())
		By("and the MAC address there, where both know it")
		reused.MAC = "02:00:00:00:00:01"
		Expect(reused.Is(ns.Identity{Device: 4, Inode: 77, MAC: "02:00:00:00:00:02"})).To(BeFalse())
		Expect(reused.Is(ns.Identity{Device: 4, Inode: 77})).To(BeTrue())
		Expect(reused.Is(ns.Identity{Cookie: 8, Inode: 77, MAC: "02:00:00:00:00:02"})).To(BeTrue())
	})

	It("can be opened from a socket", func() {
		h := nstest.NewNetns()
		n, fd := open(h.Path), -1
		Expect(n.Do(func() (err error) {
			fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
			return err
		})).To(Succeed())
		defer unix.Close(fd)
		of := nstest.Must(ns.FromSocket(fd))
		defer of.Close()
		Expect(inode(fmt.Sprintf("/proc/self/fd/%d", of.FD()))).To(Equal(inode(h.Path)))
		Expect(ns.FromSocket(n.FD())).Error().To(HaveOccurred())
	})
})

var _ = Describe("Do", func() {
	var h *nstest.Host
	var n *ns.NS
	var inside uint64
	BeforeEach(func() {
		h = nstest.NewNetns()
		n, inside = open(h.Path), inode(h.Path)
	})

	It("runs in the namespace, returns the error, and leaves the caller in its namespace", func() {
		outside, bad := netns(), errors.New("bad")
		Expect(n.Do(func() error {
			Expect(netns()).To(Equal(inside))
			return bad
		})).To(MatchError(bad))
		Expect(netns()).To(Equal(outside))
	})

	It("can read the namespace in Proc", func() {
		if inode("/proc/self/ns/net") == netns() { // the main thread may be the one that could not go back
			Expect(ns.Proc()).To(Equal("/proc/self"))
		}
		h := nstest.NewNetns()
		h.Cmd("ip", "link", "add", "inside", "type", "bridge")
		n := open(h.Path)
		Expect(n.Do(func() error {
			devices, err := os.ReadFile(ns.Proc() + "/net/dev")
			Expect(string(devices)).To(ContainSubstring("inside:"))
			return err
		})).To(Succeed())
	})

	It("nests", func() {
		other := nstest.NewNetns()
		m, there := open(other.Path), inode(other.Path)
		Expect(n.Do(func() error {
			Expect(m.Do(func() error {
				Expect(netns()).To(Equal(there))
				return nil
			})).To(Succeed())
			Expect(netns()).To(Equal(inside))
			return nil
		})).To(Succeed())
	})

	It("never runs another goroutine in the namespace", func() {
		outside := netns()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				defer GinkgoRecover()
				for range 20 {
					Expect(n.Do(func() error {
						Expect(netns()).To(Equal(inside))
						runtime.Gosched()
						Expect(netns()).To(Equal(inside))
						return nil
					})).To(Succeed())
					Expect(netns()).To(Equal(outside))
				}
			})
		}
		all.Wait()
	})

	It("ends the thread if it cannot return to its namespace", func() {
		outside, tid := netns(), 0
		Expect(n.Do(func() error {
			tid = unix.Gettid()
			// This thread can no longer enter a namespace.
			var none unix.CapUserData
			data := [2]unix.CapUserData{none, none}
			return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
		})).To(Succeed())
		Eventually(func() string { return fmt.Sprintf("/proc/self/task/%d", tid) }).ShouldNot(BeADirectory())
		Expect(netns()).To(Equal(outside))
	})

	It("passes a panic to the caller, with its value", func() {
		bad := errors.New("bad")
		Expect(func() { _ = n.Do(func() error { panic(bad) }) }).To(PanicWith(bad))
	})
})
