package hostlocal

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// withLeaseDir opens the lease directory of a network for one call.
func (n network) withLeaseDir(do func(s *leaseDir)) {
	GinkgoHelper()
	s := nstest.Must(openLeaseDir(context.Background(), n.dataDir, "net", dirMode))
	do(s)
	Expect(s.close()).To(Succeed())
}

// lookup returns the addresses of an owner, and whether the directory was read.
func (n network) lookup(owner string) (held []netip.Addr, walked bool) {
	GinkgoHelper()
	n.withLeaseDir(func(s *leaseDir) {
		held, walked = nstest.Must(s.findLeases(owner)), s.hasWalked()
	})
	return held, walked
}

// reserve allocates an address for an owner that has none, as ADD does.
func (n network) reserve(addr, owner string) {
	GinkgoHelper()
	n.withLeaseDir(func(s *leaseDir) {
		Expect(s.findLeases(owner)).To(BeEmpty())
		Expect(s.reserve(netip.MustParseAddr(addr), owner)).To(Succeed())
	})
}

// knows checks the addresses of an owner. The index must contain them.
func (n network) knows(owner string, want ...string) { n.finds(false, owner, want) }

// mustWalk looks an owner up twice. The first time the directory must be read, the second time only the index.
func (n network) mustWalk(owner string, want ...string) {
	n.finds(true, owner, want)
	n.finds(false, owner, want)
}

func (n network) finds(walks bool, owner string, want []string) {
	GinkgoHelper()
	held, walked := n.lookup(owner)
	Expect(walked).To(Equal(walks), "whether the directory is read")
	Expect(held).To(ConsistOf(addrs(want...)))
}

var _ = Describe("the index", func() {
	var n network
	BeforeEach(func() {
		n = network{dataDir: GinkgoT().TempDir()}
		n.reserve("10.1.2.2", "c1\r\neth0")
		n.withLeaseDir(func(s *leaseDir) {
			Expect(s.findLeases("nobody")).To(BeEmpty())
			Expect(s.reserve(netip.MustParseAddr("2001:db8::2"), "c1\r\neth0")).To(Succeed())
		})
	})

	It("answers without reading the directory if it has not changed", func() {
		n.knows("c1\r\neth0", "10.1.2.2", "2001:db8::2")
		n.reserve("10.1.2.3", "c2\r\neth0")
		n.withLeaseDir(func(s *leaseDir) {
			Expect(s.findLeases("c2\r\neth0")).To(HaveLen(1))
			Expect(s.findLeases("c1\r\neth0")).To(HaveLen(2))
			Expect(s.release(netip.MustParseAddr("10.1.2.2"))).To(Succeed())
			Expect(s.hasWalked()).To(BeFalse())
		})
		n.knows("c1\r\neth0", "2001:db8::2")
		n.knows("c2\r\neth0", "10.1.2.3")
	})

	It("agrees with the directory through hundreds of changes, without reading it", func() {
		random, seed := dice()
		owners := map[netip.Addr]string{}
		for step := range 400 {
			addr := netip.AddrFrom4([4]byte{10, 2, 0, byte(random.IntN(40))})
			owner := fmt.Sprint("owner", random.IntN(9))
			n.withLeaseDir(func(s *leaseDir) {
				want := maps.Clone(owners)
				maps.DeleteFunc(want, func(_ netip.Addr, o string) bool { return o != owner })
				at := fmt.Sprintf("seed %d, step %d", seed, step)
				Expect(s.findLeases(owner)).To(ConsistOf(slices.Collect(maps.Keys(want))), at)
				Expect(s.hasWalked()).To(BeFalse(), at)
				if owners[addr] == "" {
					Expect(s.reserve(addr, owner)).To(Succeed())
					owners[addr] = owner
				} else {
					Expect(s.findLeases(owners[addr])).To(ContainElement(addr), at)
					Expect(s.release(addr)).To(Succeed())
					delete(owners, addr)
				}
				taken := nstest.Must(s.index.addresses())
				Expect(s.index.count).To(Equal(len(owners)+2), at)
				for addr := range owners {
					Expect(taken.contains(addr)).To(BeTrue(), at)
				}
				Expect(taken.contains(addr)).To(Equal(owners[addr] != ""), at)
			})
		}
	})

	DescribeTable("notices changes by other programs:", func(do func(), owner string, want ...string) {
		do()
		n.mustWalk(owner, want...)
	},
		Entry("a new file", func() { n.write("10.1.2.9", "word") }, "word", "10.1.2.9"),
		Entry("a removed file", func() { Expect(os.Remove(n.path("10.1.2.2"))).To(Succeed()) },
			"c1\r\neth0", "2001:db8::2"),
		Entry("a renamed file", func() { Expect(os.Rename(n.path("10.1.2.2"), n.path("10.1.2.7"))).To(Succeed()) },
			"c1\r\neth0", "10.1.2.7", "2001:db8::2"),
		Entry("a file replaced by another owner's", func() {
			n.write("tmp", "c9\r\neth0")
			Expect(os.Rename(n.path("tmp"), n.path("10.1.2.2"))).To(Succeed())
		}, "c9\r\neth0", "10.1.2.2"),
		Entry("a file of Hawser rewritten in place", func() { n.write("10.1.2.2", "c9\r\neth0") },
			"c1\r\neth0", "2001:db8::2"),
		Entry("the whole directory replaced", func() {
			Expect(os.Rename(n.dir(), n.dir()+".old")).To(Succeed())
			n.write("10.1.2.4", "c4")
			Expect(os.Chtimes(n.dir(), time.Time{}, modTime(n.dir()+".old"))).To(Succeed())
		}, "c4", "10.1.2.4"))

	DescribeTable("is not trusted", func(spoil func(path string)) {
		spoil(filepath.Join(n.dataDir, ".hawser", "net"))
		n.mustWalk("c1\r\neth0", "10.1.2.2", "2001:db8::2")
	},
		Entry("when it is missing", func(p string) { Expect(os.Remove(p)).To(Succeed()) }),
		Entry("when it is empty", func(p string) { Expect(os.Truncate(p, 0)).To(Succeed()) }),
		Entry("when its records are cut", cut(1)),
		Entry("when its header is cut", cut(2*entrySize+1)),
		Entry("when it is a link", func(p string) {
			Expect(os.Rename(p, p+"x")).To(Succeed())
			Expect(os.Symlink("netx", p)).To(Succeed())
		}),
		Entry("when it has a second name", func(p string) { Expect(os.Link(p, p+"x")).To(Succeed()) }),
		Entry("of another version", damage(0)),
		Entry("of another boot", func(p string) {
			boot := nstest.Must(os.ReadFile("/proc/sys/kernel/random/boot_id"))
			Expect(bytes.Index(nstest.Must(os.ReadFile(p)), boot)).To(Equal(len(indexMagic)))
			damage(len(indexMagic))(p)
		}),
		Entry("of another device", damage(len(indexMagic)+37)),
		Entry("of another directory", damage(len(indexMagic)+37+32)),
		Entry("with another stamp", damage(len(indexMagic)+37+34)))

	It("misses no change within one tick of the kernel's clock", Label("kernel"), func() {
		random, seed := dice()
		for i := range 300 {
			// Our change, then immediately two changes of another program.
			ours, theirs := fmt.Sprintf("10.1.3.%d", i%200), fmt.Sprintf("10.1.4.%d", i%200)
			n.reserve(ours, "mine")
			before, after := random.IntN(2) == 0, random.IntN(2) == 0
			if before {
				n.write(theirs, "theirs")
			}
			Expect(os.Remove(n.path(ours))).To(Succeed())
			if after {
				n.write(theirs, "theirs")
			}
			_ = os.Remove(n.path(theirs))
			held, _ := n.lookup("mine")
			Expect(held).To(BeEmpty(), "seed %d, step %d", seed, i)
		}
	})

	It("is created again after a kill between the change and the stamp", func() {
		s := nstest.Must(openLeaseDir(context.Background(), n.dataDir, "net", dirMode))
		Expect(s.findLeases("nobody")).To(BeEmpty())
		Expect(s.reserve(netip.MustParseAddr("10.1.2.5"), "c5")).To(Succeed())
		Expect(s.lock.Unlock()).To(Succeed()) // as the kernel does after a kill
		n.mustWalk("c5", "10.1.2.5")
	})

	DescribeTable("is not needed", func(instead func(path string)) {
		dir := filepath.Join(n.dataDir, ".hawser")
		Expect(os.RemoveAll(dir)).To(Succeed())
		instead(dir)
		n.reserve("10.1.2.6", "c6")
		n.finds(true, "c6", []string{"10.1.2.6"})
	},
		Entry("if it cannot be written", func(dir string) { Expect(os.WriteFile(dir, nil, 0o600)).To(Succeed()) }),
		Entry("if a link is in its place", func(dir string) {
			outside := GinkgoT().TempDir()
			DeferCleanup(func() { Expect(os.ReadDir(outside)).To(BeEmpty()) })
			Expect(os.Symlink(outside, dir)).To(Succeed())
		}))

	It("is not the only evidence that a set is full", func() {
		all := set("10.1.2.0/24 10.1.2.100-10.1.2.140 gw 10.1.2.1")
		for addr := range all.Candidates(netip.Addr{}) {
			n.reserve(addr.String(), addr.String())
		}
		Expect(os.Truncate(n.path("10.1.2.140"), 0)).To(Succeed()) // does not change the time of the directory
		n.withLeaseDir(func(s *leaseDir) {
			Expect(s.findLeases("c4")).To(BeEmpty())
			Expect(allocateFrom(s, all, "c4")).To(Equal(netip.MustParseAddr("10.1.2.140")))
			_, err := allocateFrom(s, all, "c5")
			Expect(err).To(MatchError(errFull))
		})
	})
})

// allocateFrom allocates an address of a set for an owner, without reclaiming any.
func allocateFrom(s *leaseDir, set ranges.Set, owner string) (netip.Addr, error) {
	cfg := &config{sets: []ranges.Set{set}, requested: make([]ranges.Requested, 1)}
	return (&allocation{leaseDir: s, cfg: cfg, owner: owner}).allocateOne(0, set)
}

// cut removes bytes from the end of a file.
func cut(bytes int64) func(path string) {
	return func(path string) {
		GinkgoHelper()
		Expect(os.Truncate(path, nstest.Must(os.Stat(path)).Size()-bytes)).To(Succeed())
	}
}

// damage changes one byte of a file.
func damage(at int) func(path string) {
	return func(path string) {
		GinkgoHelper()
		data := nstest.Must(os.ReadFile(path))
		data[at] ^= 1
		Expect(os.WriteFile(path, data, 0o600)).To(Succeed())
	}
}

var _ = Describe("the lease directory", func() {
	var n network
	BeforeEach(func() { n = network{dataDir: GinkgoT().TempDir()} })

	DescribeTable("assigns an address whose file has no owner", Label("empty-lease"), func(content string) {
		n.write("10.1.2.50", content)
		n.reserve("10.1.2.50", "c50")
		Expect(n.leases()).To(HaveKeyWithValue("10.1.2.50", "c50"))
	},
		Entry("empty", ""), Entry("NULs", "\x00\x00"), Entry("blanks", " \r\n\t"))

	It("keeps files that have an owner, and follows no link", func() {
		outside := filepath.Join(GinkgoT().TempDir(), "outside")
		Expect(os.WriteFile(outside, nil, 0o600)).To(Succeed())
		n.write("10.1.2.50", "reserved for the printer")
		Expect(os.Symlink(outside, n.path("10.1.2.51"))).To(Succeed())
		Expect(os.Symlink("nowhere", n.path("10.1.2.52"))).To(Succeed())
		Expect(os.Mkdir(n.path("10.1.2.53"), 0o700)).To(Succeed())
		Expect(unix.Mkfifo(n.path("10.1.2.54"), 0o600)).To(Succeed())
		n.withLeaseDir(func(s *leaseDir) {
			for i := 50; i < 55; i++ {
				Expect(s.reserve(netip.AddrFrom4([4]byte{10, 1, 2, byte(i)}), "c")).To(MatchError(errTaken))
			}
			some := set("10.1.2.0/24 10.1.2.50-10.1.2.60")
			Expect(allocateFrom(s, some, "c")).To(Equal(netip.MustParseAddr("10.1.2.55")))
		})
		Expect(os.ReadFile(outside)).To(BeEmpty())
	})

	It("is not searched for an owner while a lease cannot be read", func() {
		n.write("10.1.2.7", "c7\r\neth0")
		Expect(os.Chmod(n.path("10.1.2.7"), 0)).To(Succeed())
		nstest.WithoutDAC(func() {
			for range 2 { // the first search must not leave an index
				n.withLeaseDir(func(s *leaseDir) {
					_, err := s.findLeases("c7\r\neth0")
					Expect(err).To(MatchError(unix.EACCES))
					Expect(s.reserve(netip.MustParseAddr("10.1.2.7"), "c8")).To(MatchError(unix.EACCES))
					Expect(s.reserve(netip.MustParseAddr("10.1.2.8"), "c8")).To(Succeed())
					Expect(s.release(netip.MustParseAddr("10.1.2.8"))).To(Succeed())
				})
			}
		})
		n.mustWalk("c7\r\neth0", "10.1.2.7")
	})

	It("ignores names that are not addresses in canonical form", func() {
		for _, name := range []string{"010.1.2.9", "2001:DB8::9", "::ffff:10.1.2.9", "fe80::1%eth0", "10.1.2.9.tmp",
			"README", "last_reserved_ip.9"} {
			n.write(name, "c9")
		}
		Expect(os.MkdirAll(n.path("sub"), 0o755)).To(Succeed())
		held, _ := n.lookup("c9")
		Expect(held).To(BeEmpty())
	})
})

var _ = It("finds no lease directory, or one, while another call creates the first one", Label("slow"), func() {
	dir := GinkgoT().TempDir()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3000 {
			_ = os.Mkdir(filepath.Join(dir, "net"), dirMode)
			_ = os.Remove(filepath.Join(dir, "net"))
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		s := nstest.Must(openUnlocked(dir, "net", 0))
		if s != nil {
			Expect(s.close()).To(Succeed())
		}
	}
})

var _ = It("creates a file only once, also if the name of a temporary file is taken", func() {
	path := GinkgoT().TempDir()
	dir := nstest.Must(statefile.Open(path, 0))
	DeferCleanup(dir.Close)
	Expect(os.MkdirAll(path+"/.10.1.2.2.tmp/full", 0o755)).To(Succeed())
	Expect(createFile(dir, "10.1.2.2", []byte("c1\r\neth0"), nil)).To(Succeed())
	Expect(os.ReadFile(path + "/10.1.2.2")).To(BeEquivalentTo("c1\r\neth0"))
	Expect(nstest.Must(os.Lstat(path + "/10.1.2.2")).Mode()).To(Equal(fs.FileMode(0o600)))

	Expect(createFile(dir, "10.1.2.2", []byte("other"), nil)).To(
		And(MatchError(fs.ErrExist), MatchError(ContainSubstring("create "+path+"/10.1.2.2"))))
	Expect(os.ReadFile(path + "/10.1.2.2")).To(BeEquivalentTo("c1\r\neth0"))
	Expect(os.ReadDir(path)).To(HaveLen(2), "the directory in its way, and the file")
})
