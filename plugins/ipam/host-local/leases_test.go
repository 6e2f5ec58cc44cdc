package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("the lease directory and its index", func() {
	var n network
	BeforeEach(func() { n = newNetwork("") })

	within := func(do func(l *leases)) {
		GinkgoHelper()
		l, err := openLeases(context.Background(), n.dataDir, "net", true)
		Expect(err).NotTo(HaveOccurred())
		do(l)
		Expect(l.close()).To(Succeed())
	}
	lookup := func(owner string) (held []netip.Addr, walked bool) {
		GinkgoHelper()
		within(func(l *leases) {
			var err error
			held, err = l.of(owner)
			Expect(err).NotTo(HaveOccurred())
			walked = l.listed != nil
		})
		return held, walked
	}
	reserve := func(addr, owner string) {
		GinkgoHelper()
		within(func(l *leases) {
			Expect(l.of(owner)).To(BeEmpty()) // as ADD asks first
			Expect(l.reserve(netip.MustParseAddr(addr), owner)).To(Succeed())
		})
	}
	mustWalk := func(owner string, want ...string) {
		GinkgoHelper()
		held, walked := lookup(owner)
		Expect(walked).To(BeTrue(), "the index was believed")
		Expect(held).To(ConsistOf(addrs(want...)))
		held, walked = lookup(owner)
		Expect(walked).To(BeFalse(), "the index was not made good")
		Expect(held).To(ConsistOf(addrs(want...)))
	}
	BeforeEach(func() {
		within(func(l *leases) {
			Expect(second(l.of("nobody"))).To(Succeed()) // so that there is an index to keep
			Expect(l.reserve(netip.MustParseAddr("10.1.2.2"), "c1\r\neth0")).To(Succeed())
			Expect(l.reserve(netip.MustParseAddr("2001:db8::2"), "c1\r\neth0")).To(Succeed())
		})
	})

	It("answers without reading the directory while nobody changed it", func() {
		held, walked := lookup("c1\r\neth0")
		Expect(walked).To(BeFalse())
		Expect(held).To(ConsistOf(addrs("10.1.2.2", "2001:db8::2")))
		reserve("10.1.2.3", "c2\r\neth0")
		within(func(l *leases) {
			Expect(l.of("c2\r\neth0")).To(HaveLen(1))
			Expect(l.release(netip.MustParseAddr("10.1.2.2"), "c1\r\neth0")).To(Succeed())
			Expect(l.listed).To(BeNil())
		})
		held, walked = lookup("c1\r\neth0")
		Expect(walked).To(BeFalse())
		Expect(held).To(ConsistOf(addrs("2001:db8::2")))
	})

	DescribeTable("sees what others did", func(do func(), owner string, want ...string) {
		do()
		mustWalk(owner, want...)
	},
		Entry("a new file", func() { n.write("10.1.2.9", "word") }, "word", "10.1.2.9"),
		Entry("a removed file", func() { Expect(os.Remove(n.path("10.1.2.2"))).To(Succeed()) }, "c1\r\neth0", "2001:db8::2"),
		Entry("a renamed file", func() { Expect(os.Rename(n.path("10.1.2.2"), n.path("10.1.2.7"))).To(Succeed()) }, "c1\r\neth0", "10.1.2.7", "2001:db8::2"),
		Entry("a file replaced by another owner's", func() {
			n.write("tmp", "c9\r\neth0")
			Expect(os.Rename(n.path("tmp"), n.path("10.1.2.2"))).To(Succeed())
		}, "c9\r\neth0", "10.1.2.2"),
		Entry("a file rewritten in place, when it was ours", func() { n.write("10.1.2.2", "c9\r\neth0") }, "c1\r\neth0", "2001:db8::2"),
		Entry("the whole directory replaced", func() {
			Expect(os.Rename(n.dir(), n.dir()+".old")).To(Succeed())
			n.write("10.1.2.4", "c4")
			Expect(os.Chtimes(n.dir(), time.Time{}, modTime(n.dir()+".old"))).To(Succeed())
		}, "c4", "10.1.2.4"))

	DescribeTable("does not believe an index", func(spoil func(path string)) {
		spoil(filepath.Join(n.dataDir, ".hawser", "net"))
		mustWalk("c1\r\neth0", "10.1.2.2", "2001:db8::2")
	},
		Entry("that is gone", func(p string) { Expect(os.Remove(p)).To(Succeed()) }),
		Entry("that is empty", func(p string) { Expect(os.Truncate(p, 0)).To(Succeed()) }),
		Entry("that is cut", func(p string) { Expect(os.Truncate(p, 200)).To(Succeed()) }),
		Entry("that is a link", func(p string) {
			Expect(os.Rename(p, p+"x")).To(Succeed())
			Expect(os.Symlink("netx", p)).To(Succeed())
		}),
		Entry("that has a second name", func(p string) { Expect(os.Link(p, p+"x")).To(Succeed()) }),
		Entry("of another boot", func(p string) { patch(p, func(h *header) { h.boot[0] ^= 1 }) }),
		Entry("of another directory", func(p string) { patch(p, func(h *header) { h.inode++ }) }),
		Entry("with another stamp", func(p string) { patch(p, func(h *header) { h.stamp++ }) }),
		Entry("that was being written", func(p string) {
			patch(p, func(h *header) { h.stamp = 0 })
			Expect(os.Chtimes(n.dir(), time.Time{}, stampTime(0))).To(Succeed())
		}))

	It("misses none of several changes within one tick of the kernel's clock", Label("kernel"), func() {
		seed := uint64(GinkgoRandomSeed())
		random := rand.New(rand.NewPCG(seed, seed))
		for i := range 300 {
			// Ours, then at once another's and another's.
			ours, theirs := fmt.Sprintf("10.1.3.%d", i%200), fmt.Sprintf("10.1.4.%d", i%200)
			reserve(ours, "mine")
			switch random.IntN(3) {
			case 0:
				n.write(theirs, "theirs")
				Expect(os.Remove(n.path(theirs))).To(Succeed())
				Expect(os.Remove(n.path(ours))).To(Succeed())
			case 1:
				Expect(os.Remove(n.path(ours))).To(Succeed())
				n.write(theirs, "theirs")
				Expect(os.Remove(n.path(theirs))).To(Succeed())
			case 2:
				Expect(os.Remove(n.path(ours))).To(Succeed())
			}
			held, _ := lookup("mine")
			Expect(held).To(BeEmpty(), "seed %d, step %d", seed, i)
		}
	})

	It("is read again after a kill between the change and the stamp", func() {
		l, err := openLeases(context.Background(), n.dataDir, "net", true)
		Expect(err).NotTo(HaveOccurred())
		Expect(second(l.of("nobody"))).To(Succeed())
		Expect(l.reserve(netip.MustParseAddr("10.1.2.5"), "c5")).To(Succeed())
		Expect(l.store.close()).To(Succeed()) // as the kernel does for the dead
		mustWalk("c5", "10.1.2.5")
	})

	It("finds all the files of an owner that has very many", func() {
		for i := range 200 {
			n.write(fmt.Sprintf("10.1.7.%d", i), "many")
		}
		for range 2 {
			held, walked := lookup("many")
			Expect(walked).To(BeTrue())
			Expect(held).To(HaveLen(200))
		}
		_, walked := lookup("few")
		Expect(walked).To(BeFalse())
		within(func(l *leases) {
			held, err := l.of("many")
			Expect(err).NotTo(HaveOccurred())
			for _, a := range held {
				Expect(l.release(a, "many")).To(Succeed())
			}
		})
		mustWalk("many")
	})

	It("writes no index through a link", func() {
		dir := filepath.Join(n.dataDir, ".hawser")
		Expect(os.RemoveAll(dir)).To(Succeed())
		outside := GinkgoT().TempDir()
		Expect(os.Symlink(outside, dir)).To(Succeed())
		reserve("10.1.2.6", "c6")
		held, walked := lookup("c6")
		Expect(walked).To(BeTrue())
		Expect(held).To(ConsistOf(addrs("10.1.2.6")))
		Expect(os.ReadDir(outside)).To(BeEmpty())
	})

	It("works where no index can be written", func() {
		Expect(os.RemoveAll(filepath.Join(n.dataDir, ".hawser"))).To(Succeed())
		Expect(os.WriteFile(filepath.Join(n.dataDir, ".hawser"), nil, 0o600)).To(Succeed())
		reserve("10.1.2.6", "c6")
		held, walked := lookup("c6")
		Expect(walked).To(BeTrue())
		Expect(held).To(ConsistOf(addrs("10.1.2.6")))
	})

	DescribeTable("gives a file of nobody away", func(content string) {
		n.write("10.1.2.50", content)
		reserve("10.1.2.50", "c50")
		Expect(n.leases()).To(HaveKeyWithValue("10.1.2.50", "c50"))
	},
		Entry("empty", ""), Entry("NULs", "\x00\x00"), Entry("blanks", " \r\n\t"))

	It("takes nothing that has an owner, and follows no link", func() {
		outside := filepath.Join(GinkgoT().TempDir(), "outside")
		Expect(os.WriteFile(outside, nil, 0o600)).To(Succeed())
		n.write("10.1.2.50", "reserved for the printer")
		Expect(os.Symlink(outside, n.path("10.1.2.51"))).To(Succeed())
		Expect(os.Symlink("nowhere", n.path("10.1.2.52"))).To(Succeed())
		Expect(os.Mkdir(n.path("10.1.2.53"), 0o700)).To(Succeed())
		Expect(unix.Mkfifo(n.path("10.1.2.54"), 0o600)).To(Succeed())
		within(func(l *leases) {
			for i := 50; i < 55; i++ {
				Expect(l.reserve(netip.AddrFrom4([4]byte{10, 1, 2, byte(i)}), "c")).To(MatchError(errTaken))
			}
			addr, ok, err := l.take(set("10.1.2.0/24 10.1.2.50-10.1.2.60").after(netip.Addr{}), "c")
			Expect(err).NotTo(HaveOccurred())
			Expect(ok).To(BeTrue())
			Expect(addr.String()).To(Equal("10.1.2.55"))
		})
		Expect(os.ReadFile(outside)).To(BeEmpty())
	})

	It("says nothing of who holds what while a lease cannot be read", func() {
		n.write("10.1.2.7", "c7\r\neth0")
		Expect(os.Chmod(n.path("10.1.2.7"), 0)).To(Succeed())
		nstest.WithoutDAC(func() {
			for range 2 { // nor was anything kept of the first look
				l, err := openLeases(context.Background(), n.dataDir, "net", true)
				Expect(err).NotTo(HaveOccurred())
				Expect(second(l.of("c7\r\neth0"))).To(MatchError(unix.EACCES))
				Expect(l.reserve(netip.MustParseAddr("10.1.2.7"), "c8")).To(MatchError(unix.EACCES))
				Expect(l.reserve(netip.MustParseAddr("10.1.2.8"), "c8")).To(Succeed())
				Expect(l.release(netip.MustParseAddr("10.1.2.8"), "c8")).To(Succeed())
				Expect(l.close()).To(Succeed())
			}
		})
		mustWalk("c7\r\neth0", "10.1.2.7")
	})

	It("says that nothing is left only after it read the directory", func() {
		ten := set("10.1.2.0/24 10.1.2.2-10.1.2.3").after(netip.Addr{})
		within(func(l *leases) {
			_, ok, err := l.take(ten, "c2")
			Expect(err).NotTo(HaveOccurred())
			Expect(ok).To(BeTrue())
		})
		Expect(os.Truncate(n.path("10.1.2.2"), 0)).To(Succeed()) // not seen in the directory's time
		within(func(l *leases) {
			addr, ok, err := l.take(ten, "c3")
			Expect(err).NotTo(HaveOccurred())
			Expect(ok).To(BeTrue())
			Expect(addr.String()).To(Equal("10.1.2.2"))
			_, ok, err = l.take(ten, "c4")
			Expect(err).NotTo(HaveOccurred())
			Expect(ok).To(BeFalse())
		})
	})

	It("ignores names that are not an address as we spell it", func() {
		for _, name := range []string{"010.1.2.9", "2001:DB8::9", "::ffff:10.1.2.9", "fe80::1%eth0", "10.1.2.9.tmp", "README", "last_reserved_ip.9"} {
			n.write(name, "c9")
		}
		Expect(os.MkdirAll(n.path("sub"), 0o755)).To(Succeed())
		held, _ := lookup("c9")
		Expect(held).To(BeEmpty())
	})

	It("remembers the last address as the reference does", func() {
		within(func(l *leases) {
			for _, a := range []string{"10.1.2.9", "10.1.2.10", "10.1.2.11", "10.1.2.9"} {
				Expect(l.setLast(3, netip.MustParseAddr(a))).To(Succeed())
				Expect(os.ReadFile(n.path("last_reserved_ip.3"))).To(BeEquivalentTo(a))
			}
			Expect(l.last(3)).To(Equal(netip.MustParseAddr("10.1.2.9")))
			Expect(l.last(4)).To(Equal(netip.Addr{}))
		})
		n.write("last_reserved_ip.5", "10.1.2.9\n")
		within(func(l *leases) { Expect(l.last(5)).To(Equal(netip.Addr{})) })
	})

	It("leaves the victim of a planted link alone when it remembers", func() {
		outside := filepath.Join(GinkgoT().TempDir(), "outside")
		Expect(os.WriteFile(outside, []byte("10.1.2.9"), 0o600)).To(Succeed())
		Expect(os.Symlink(outside, n.path("last_reserved_ip.0"))).To(Succeed())
		Expect(os.Link(outside, n.path("last_reserved_ip.1"))).To(Succeed())
		within(func(l *leases) {
			for i := range 2 {
				Expect(l.setLast(i, netip.MustParseAddr("10.1.2.8"))).To(Succeed())
			}
		})
		Expect(os.ReadFile(outside)).To(BeEquivalentTo("10.1.2.9"))
	})

	It("can be looked at where nothing can be written", func() {
		dir := GinkgoT().TempDir()
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			Skip("tmpfs: " + err.Error())
		}
		DeferCleanup(unix.Unmount, dir, 0)
		n.dataDir = dir
		reserve("10.1.2.2", "c1")
		n.write("10.1.2.9", "c9")
		Expect(unix.Mount("none", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")).To(Succeed())
		l, err := openLeases(context.Background(), dir, "net", false)
		Expect(err).NotTo(HaveOccurred())
		Expect(l.of("c9")).To(ConsistOf(addrs("10.1.2.9")))
		Expect(l.release(netip.MustParseAddr("10.1.2.9"), "c9")).To(MatchError(unix.EROFS))
		Expect(l.close()).To(Succeed())
		Expect(keys(n.leases())).To(Equal([]string{"10.1.2.2", "10.1.2.9"}))
	})

	It("has a full disk: an error, and nothing that is half there", func() {
		dir := GinkgoT().TempDir()
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=256k"); err != nil {
			Skip("tmpfs: " + err.Error())
		}
		DeferCleanup(unix.Unmount, dir, 0)
		n.dataDir = dir
		var full error
		for i := range 250 {
			within(func(l *leases) {
				full = l.reserve(netip.AddrFrom4([4]byte{10, 1, 2, byte(i)}), fmt.Sprint("c", i, "\r\neth0"))
			})
			if full != nil {
				break
			}
		}
		Expect(full).To(MatchError(unix.ENOSPC))
		for name, content := range n.leases() {
			Expect(content).NotTo(BeEmpty(), name)
		}
		held, _ := lookup("c3\r\neth0")
		Expect(held).To(HaveLen(1))
		within(func(l *leases) { Expect(l.release(held[0], "c3\r\neth0")).To(Succeed()) })
		held, _ = lookup("c3\r\neth0")
		Expect(held).To(BeEmpty())
	})
})

func modTime(path string) time.Time {
	GinkgoHelper()
	info, err := os.Stat(path)
	Expect(err).NotTo(HaveOccurred())
	return info.ModTime()
}

// patch changes an index's header, checksum and all.
func patch(path string, change func(*header)) {
	GinkgoHelper()
	b, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	h, err := decodeHeader(b[:headerSize])
	Expect(err).NotTo(HaveOccurred())
	change(&h)
	Expect(errors.Join(os.WriteFile(path, append(h.encode(), b[headerSize:]...), 0o600))).To(Succeed())
}
