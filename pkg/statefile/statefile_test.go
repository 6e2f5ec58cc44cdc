package statefile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		writeForever(dir)
	}
	if path := os.Getenv(lockerEnv); path != "" {
		holdUntilEOF(path)
	}
	nstest.Main(m)
}

func TestStatefile(t *testing.T) { nstest.RunSpecs(t, "pkg/statefile") }

func open(path string) *statefile.Dir {
	GinkgoHelper()
	d := nstest.Must(statefile.Open(path, 0o755))
	DeferCleanup(d.Close)
	return d
}

func entries(path string) []string {
	GinkgoHelper()
	list := nstest.Must(os.ReadDir(path))
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

var _ = Describe("a directory", func() {
	var path string
	var d *statefile.Dir
	BeforeEach(func() {
		path = filepath.Join(GinkgoT().TempDir(), "a", "b")
		d = open(path)
	})

	It("is not created if no permissions are given", func() {
		Expect(statefile.Open(path+"/none", 0)).Error().To(MatchError(fs.ErrNotExist))
		Expect(statefile.OpenNoFollow(path+"/none", 0)).Error().To(MatchError(fs.ErrNotExist))
		Expect(entries(path)).To(BeEmpty())
	})

	It("of our own must not be a symbolic link", func() {
		Expect(os.Symlink("/etc", path+"/sub")).To(Succeed())
		Expect(statefile.OpenNoFollow(path+"/sub", 0o755)).Error().To(
			And(MatchError(unix.ENOTDIR), MatchError(ContainSubstring(path+"/sub"))))
	})

	It("that is a file causes an error with its path", func() {
		Expect(os.WriteFile(path+"/f", nil, 0o600)).To(Succeed())
		Expect(statefile.Open(path+"/f", 0o755)).Error().To(
			And(MatchError(unix.ENOTDIR), MatchError(ContainSubstring(path+"/f"))))
	})

	DescribeTable("refuses names outside the directory", func(name string) {
		for _, err := range []error{
			d.Replace(name, nil, 0o600), d.Remove(name), second(d.Read(name)),
		} {
			Expect(err).To(MatchError(fs.ErrInvalid))
		}
	},
		Entry("empty", ""), Entry("dot", "."), Entry("parent", ".."),
		Entry("path", "x/y"), Entry("absolute", "/etc/passwd"), Entry("NUL", "a\x00b"))
})

func second[T any](_ T, err error) error { return err }

var _ = Describe("a file", func() {
	var path string
	var d *statefile.Dir
	BeforeEach(func() {
		path = GinkgoT().TempDir()
		d = open(path)
	})

	It("has a name of up to 255 bytes", func() {
		long := strings.Repeat("n", 255)
		Expect(d.Replace(long, []byte("old"), 0o600)).To(Succeed())
		Expect(d.Replace(long, []byte("new"), 0o600)).To(Succeed())
		Expect(d.Read(long)).To(BeEquivalentTo("new"))
		Expect(d.Discard(long)).To(Succeed())
		Expect(entries(path)).To(BeEmpty())
		Expect(d.Replace(long+"n", nil, 0o600)).To(MatchError(unix.ENAMETOOLONG))
		Expect(entries(path)).To(BeEmpty())
	})

	It("is replaced atomically, even if it is a link", func() {
		outside := filepath.Join(GinkgoT().TempDir(), "outside")
		Expect(os.WriteFile(outside, []byte("keep"), 0o600)).To(Succeed())
		Expect(os.Symlink(outside, path+"/soft")).To(Succeed())
		Expect(os.Link(outside, path+"/hard")).To(Succeed())
		for _, name := range []string{"soft", "hard", "new"} {
			Expect(d.Replace(name, []byte("mine"), 0o600)).To(Succeed())
			Expect(os.ReadFile(path + "/" + name)).To(BeEquivalentTo("mine"))
		}
		Expect(os.ReadFile(outside)).To(BeEquivalentTo("keep"))
		Expect(entries(path)).To(ConsistOf("soft", "hard", "new"))
	})

	It("is replaced or discarded together with the temporary file of a killed Replace", func() {
		left := path + "/" + statefile.Temporary("f")
		leave := func() { Expect(os.WriteFile(left, []byte("half"), 0o600)).To(Succeed()) }
		leave()
		Expect(d.Replace("f", []byte("old"), 0o600)).To(Succeed())
		Expect(d.Replace("f", []byte("new"), 0o600)).To(Succeed())
		Expect(os.ReadFile(path + "/f")).To(BeEquivalentTo("new"))
		Expect(entries(path)).To(Equal([]string{"f"}))
		leave()
		Expect(d.Names()).To(Equal([]string{"f"}))
		Expect(d.Discard("f")).To(Succeed())
		Expect(entries(path)).To(BeEmpty())
		leave()
		Expect(d.Discard("f")).To(Succeed())
		Expect(entries(path)).To(BeEmpty())
	})

	It("that is a symbolic link is not read", func() {
		Expect(os.Symlink("/etc/passwd", path+"/l")).To(Succeed())
		Expect(second(d.Read("l"))).To(MatchError(unix.ELOOP))
	})

	It("that is a FIFO or a directory causes an error immediately", func() {
		Expect(unix.Mkfifo(path+"/fifo", 0o600)).To(Succeed())
		Expect(os.Mkdir(path+"/dir", 0o700)).To(Succeed())
		for _, name := range []string{"fifo", "dir"} {
			Expect(second(d.Read(name))).To(MatchError(ContainSubstring(path + "/" + name)))
		}
	})

	It("of a killed writer is not listed, and Sweep removes it", func() {
		Expect(os.WriteFile(path+"/.whole.tmp", []byte("half"), 0o600)).To(Succeed())
		Expect(os.WriteFile(path+"/whole", nil, 0o600)).To(Succeed())
		Expect(d.Names()).To(Equal([]string{"whole"}))
		Expect(d.Sweep()).To(Succeed())
		Expect(entries(path)).To(Equal([]string{"whole"}))
	})
})

var _ = Describe("a full filesystem", func() {
	It("keeps the old content, and gets no new or temporary file", func() {
		path := GinkgoT().TempDir()
		if err := unix.Mount("none", path, "tmpfs", 0, "size=64k"); err != nil {
			Skip("tmpfs: " + err.Error())
		}
		DeferCleanup(unix.Unmount, path, 0)
		d := open(path)
		Expect(d.Replace("old", []byte("old"), 0o600)).To(Succeed())
		big := bytes.Repeat([]byte("x"), 128<<10)

		Expect(d.Replace("new", big, 0o600)).To(MatchError(unix.ENOSPC))
		Expect(d.Replace("old", big, 0o600)).To(MatchError(unix.ENOSPC))
		Expect(statefile.Writable(path + "/not/there/yet")).To(Succeed())
		Expect(os.WriteFile(path+"/rest", big, 0o600)).To(MatchError(unix.ENOSPC))
		Expect(statefile.Writable(path + "/not/there/yet")).To(MatchError(unix.ENOSPC))
		Expect(os.Remove(path + "/rest")).To(Succeed())
		Expect(os.ReadFile(path + "/old")).To(BeEquivalentTo("old"))
		Expect(entries(path)).To(Equal([]string{"old"}))
	})
})

var _ = It("a read-only filesystem is not writable", func() {
	path := GinkgoT().TempDir()
	if err := unix.Mount("none", path, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		Skip("tmpfs: " + err.Error())
	}
	DeferCleanup(unix.Unmount, path, 0)
	Expect(statefile.Writable(path)).To(MatchError(unix.EROFS))
})

// writerEnv makes the test binary write in the named directory until it is killed.
const writerEnv = "STATEFILE_WRITE"

// killContent is long, so that a kill can interrupt its write.
var killContent = bytes.Repeat([]byte("whole "), 10_000)

func writeForever(path string) {
	d, err := statefile.Open(path, 0o755)
	for err == nil {
		err = errors.Join(
			d.Replace("created", killContent, 0o600), d.Replace("replaced", killContent, 0o600), d.Remove("created"))
	}
	println(err.Error())
	os.Exit(1)
}

// lockerEnv makes the test binary hold the named lock until its input ends.
const lockerEnv = "STATEFILE_LOCK"

func holdUntilEOF(path string) {
	held, err := statefile.LockFile(context.Background(), path, 0o600)
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString("locked\n")
	os.Stdin.Read(make([]byte, 1))
	held.Unlock()
	os.Exit(0)
}

// holdLock starts a process that holds the lock until release is called.
func holdLock(path string) (pid int, release func()) {
	GinkgoHelper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), lockerEnv+"="+path)
	in := nstest.Must(cmd.StdinPipe())
	out := nstest.Must(cmd.StdoutPipe())
	Expect(cmd.Start()).To(Succeed())
	line := make([]byte, 7)
	Expect(second(out.Read(line))).To(Succeed())
	return cmd.Process.Pid, func() { in.Close(); cmd.Wait() }
}

var _ = Describe("a lock", func() {
	var path string
	BeforeEach(func() { path = filepath.Join(GinkgoT().TempDir(), "lock") })

	It("is an empty file with the requested mode, which remains", func() {
		held := nstest.Must(statefile.LockFile(context.Background(), path, 0o750))
		Expect(held.Unlock()).To(Succeed())
		info := nstest.Must(os.Stat(path))
		Expect(info.Size()).To(BeZero())
		Expect(info.Mode()).To(Equal(fs.FileMode(0o750)))
	})

	It("that another process holds causes an error with the holder at the deadline", Label("locks"), func() {
		pid, release := holdLock(path)
		defer release()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := statefile.LockFile(ctx, path, 0o600)
		Expect(err).To(MatchError(statefile.ErrBusy))
		comm, readErr := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		Expect(readErr).NotTo(HaveOccurred())
		Expect(err).To(MatchError(fmt.Sprintf("lock %s: held by process %d (%s)", path, pid, comm[:len(comm)-1])))
	})

	It("of a byte excludes other locks of this byte, and its error names the holder", Label("locks"), func() {
		held := nstest.Must(statefile.LockByte(context.Background(), path, 4026532000, "a namespace"))
		other := nstest.Must(statefile.LockByte(context.Background(), path, 4026532001, "another"))
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := statefile.LockByte(ctx, path, 4026532000, "a namespace")
		Expect(err).To(MatchError(statefile.ErrBusy))
		Expect(err).To(MatchError(HavePrefix(fmt.Sprintf("lock a namespace: held by process %d (", os.Getpid()))))
		Expect(statefile.ByteHolder(path, 4026532000, 0)).To(BeZero(), "without time to search")
		done := make(chan error)
		go func() {
			next, err := statefile.LockByte(context.Background(), path, 4026532000, "a namespace")
			if err == nil {
				err = next.Unlock()
			}
			done <- err
		}()
		Expect(held.Unlock()).To(Succeed())
		Expect(<-done).To(Succeed())
		Expect(other.Unlock()).To(Succeed())
		Expect(nstest.Must(os.Stat(path)).Size()).To(BeZero())
	})

	It("in a directory has its own time limit", func() {
		d := open(filepath.Dir(path))
		_, release := holdLock(path)
		Expect(d.LockFile(context.Background(), "lock", 0o600, 20*time.Millisecond)).Error().To(
			And(MatchError(statefile.ErrBusy), MatchError(ContainSubstring(path))))
		release()
		held := nstest.Must(d.LockFile(context.Background(), "lock", 0o600, 5*time.Second))
		Expect(held.Unlock()).To(Succeed())
		Expect(second(d.LockFile(context.Background(), "../lock", 0o600, 0))).To(MatchError(fs.ErrInvalid))
	})

	It("is acquired as soon as the holder releases it", func() {
		_, release := holdLock(path)
		done := make(chan error)
		go func() {
			held, err := statefile.LockFile(context.Background(), path, 0o600)
			if err == nil {
				err = held.Unlock()
			}
			done <- err
		}()
		Consistently(done, "50ms").ShouldNot(Receive())
		release()
		Eventually(done).Should(Receive(BeNil()))
	})

	It("is not kept if it is acquired after the deadline", func() {
		_, release := holdLock(path)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		Expect(statefile.LockFile(ctx, path, 0o600)).Error().To(MatchError(statefile.ErrBusy))
		release()
		again, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		held := nstest.Must(statefile.LockFile(again, path, 0o600))
		Expect(held.Unlock()).To(Succeed())
	})

	It("reports that the wait was canceled", func() {
		_, release := holdLock(path)
		defer release()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		Expect(statefile.LockFile(ctx, path, 0o600)).Error().To(MatchError(context.Canceled))
	})

	It("is never a symbolic link", func() {
		Expect(os.Symlink("/dev/null", path)).To(Succeed())
		Expect(statefile.LockFile(context.Background(), path, 0o600)).Error().To(
			And(MatchError(unix.ELOOP), MatchError(ContainSubstring(path))))
	})
})

var _ = DescribeTable("the holder in /proc/locks", func(line string, want int) {
	Expect(statefile.FindHolder(line, 1234, unix.Mkdev(8, 2))).To(Equal(want))
},
	Entry("same device", "1: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF\n", 4711),
	Entry("another device number (btrfs)", "1: FLOCK  ADVISORY  WRITE 4711 00:1f:1234 0 EOF\n", 4711),
	Entry("the same device first",
		"1: FLOCK ADVISORY WRITE 1 00:1f:1234 0 EOF\n2: FLOCK ADVISORY WRITE 2 08:02:1234 0 EOF\n", 2),
	Entry("a waiting process", "1: -> FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF\n", 0),
	Entry("another inode", "1: FLOCK  ADVISORY  WRITE 4711 08:02:11234 0 EOF\n", 0),
	Entry("another kind", "1: POSIX  ADVISORY  WRITE 4711 08:02:1234 0 EOF\n", 0),
	Entry("garbage", "1: FLOCK\n\n1: FLOCK a b c d\n", 0))

var _ = Describe("a killed writer", func() {
	It("leaves only complete files, whenever it is killed", func() {
		seed := uint64(GinkgoRandomSeed())
		random := rand.New(rand.NewPCG(seed, seed))
		path := GinkgoT().TempDir()
		d := open(path)
		for range 60 {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), writerEnv+"="+path)
			Expect(cmd.Start()).To(Succeed())
			Eventually(func() []string { return entries(path) }).WithPolling(time.Millisecond).ShouldNot(BeEmpty())
			<-time.After(time.Duration(random.IntN(3000)) * time.Microsecond)
			Expect(cmd.Process.Kill()).To(Succeed())
			cmd.Wait()

			names := nstest.Must(d.Names())
			for _, name := range names {
				Expect(d.Read(name)).To(Equal(killContent), "%s, seed %d", name, seed)
				Expect(d.Remove(name)).To(Succeed())
			}
			Expect(d.Sweep()).To(Succeed())
			Expect(entries(path)).To(BeEmpty())
		}
	})
})

type lease struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

func (l lease) Hash() string { return l.Name }

func (l lease) Plausible() bool { return l.Address != "everywhere" }

func leases(path string, wait time.Duration) *statefile.Store[lease] {
	return statefile.NewStore[lease](path, wait)
}

// get returns the result of Get, which must succeed.
func get(s *statefile.Store[lease], name string) (lease, bool) {
	GinkgoHelper()
	l, ok, err := s.Get(name)
	Expect(err).NotTo(HaveOccurred())
	return l, ok
}

var _ = Describe("a store", func() {
	var path string
	BeforeEach(func() { path = filepath.Join(GinkgoT().TempDir(), "run", "leases") })

	reopen := func() *statefile.Store[lease] {
		GinkgoHelper()
		s := nstest.Must(leases(path, time.Second).Open(context.Background()))
		DeferCleanup(s.Close)
		return s
	}

	It("does not treat a directory with the name of a record as a record", func(ctx SpecContext) {
		Expect(os.MkdirAll(path+"/a1.json/x", 0o700)).To(Succeed())
		s := reopen()
		_, ok := get(s, "a1")
		Expect(ok).To(BeFalse())
		Expect(s.Drop(ctx, "a1")).To(Succeed())
		Expect(path + "/a1.json/x").To(BeADirectory())
	})

	It("keeps a record in a file until it is dropped", func(ctx SpecContext) {
		s := reopen()
		Expect(s.Put(ctx, lease{"a1", "192.0.2.1"})).To(Succeed())
		Expect(s.Put(ctx, lease{"a1", "192.0.2.2"})).To(Succeed())
		Expect(s.Put(ctx, lease{"b2", "192.0.2.3"})).To(Succeed())
		Expect(s.Close()).To(Succeed())
		Expect(s.Close()).To(Succeed())
		Expect(os.ReadFile(path + "/a1.json")).To(MatchJSON(`{"name": "a1", "address": "192.0.2.2"}`))
		info := nstest.Must(os.Stat(path))
		Expect(info.Mode().Perm()).To(BeEquivalentTo(0o700))

		s = reopen()
		Expect(s.All()).To(Equal([]*lease{{"a1", "192.0.2.2"}, {"b2", "192.0.2.3"}}))
		Expect(s.Drop(ctx, "a1")).To(Succeed())
		Expect(s.Drop(ctx, "a1")).To(Succeed())
		_, ok := get(s, "a1")
		Expect(ok).To(BeFalse())
		Expect(s.All()).To(HaveLen(1))
	})

	It("whose directory does not exist is empty, and only Open creates the directory", func(ctx SpecContext) {
		s := nstest.Must(leases(path, time.Second).OpenExisting(ctx))
		_, ok := get(s, "a1")
		Expect(ok).To(BeFalse())
		Expect(s.All()).To(BeEmpty())
		Expect(s.Drop(ctx, "a1")).To(Succeed())
		Expect(s.Put(ctx, lease{Name: "a1"})).To(MatchError(fs.ErrClosed))
		Expect(s.Close()).To(Succeed())
		Expect(path).NotTo(BeADirectory())

		Expect(reopen().Put(ctx, lease{"a1", "192.0.2.1"})).To(Succeed())
	})

	It("ignores files that it cannot have written", func(ctx SpecContext) {
		s := reopen()
		Expect(os.WriteFile(path+"/torn.json", []byte(`{"name": "torn", "address": "192.`), 0o600)).To(Succeed())
		Expect(os.WriteFile(path+"/half.json", []byte(`{"name": "half", "address": 7}`), 0o600)).To(Succeed())
		Expect(os.WriteFile(path+"/moved.json", []byte(`{"name": "a1"}`), 0o600)).To(Succeed())
		Expect(os.WriteFile(path+"/false.json", []byte(`{"name": "false", "address": "everywhere"}`), 0o600)).
			To(Succeed())
		Expect(os.Mkdir(path+"/dir.json", 0o700)).To(Succeed())
		Expect(os.Symlink("/etc/passwd", path+"/link.json")).To(Succeed())
		Expect(os.WriteFile(path+"/notes", []byte(`{}`), 0o600)).To(Succeed())
		for _, name := range []string{"torn", "half", "moved", "false", "dir", "link"} {
			l, ok := get(s, name)
			Expect(ok).To(BeFalse(), name)
			Expect(l).To(BeZero(), name)
		}
		Expect(s.All()).To(BeEmpty())
	})

	It("is never a symbolic link", func(ctx SpecContext) {
		Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
		Expect(os.Symlink(GinkgoT().TempDir(), path)).To(Succeed())
		_, err := leases(path, time.Second).Open(ctx)
		Expect(err).To(MatchError(ContainSubstring("open " + path + ": not a directory")))
		s := nstest.Must(leases(path, time.Second).OpenExisting(ctx))
		Expect(s.Put(ctx, lease{Name: "a1"})).To(MatchError(fs.ErrClosed))
	})

	It("refuses names outside the directory", func(ctx SpecContext) {
		s := reopen()
		Expect(s.Put(ctx, lease{Name: "../x"})).To(MatchError(fs.ErrInvalid))
		Expect(s.Drop(ctx, "../x")).To(MatchError(fs.ErrInvalid))
		_, _, err := s.Get("../x")
		Expect(err).To(MatchError(fs.ErrInvalid))
	})

	It("removes the temporary file of a killed writer in Drop and in All", func(ctx SpecContext) {
		s := reopen()
		for _, clean := range []func() error{
			func() error { return s.Drop(ctx, "a1") }, func() error { return second(s.All()) },
		} {
			Expect(os.WriteFile(path+"/"+statefile.Temporary("a1.json"), []byte("half"), 0o600)).To(Succeed())
			Expect(clean()).To(Succeed())
			Expect(entries(path)).To(Equal([]string{"lock"}))
		}
	})

	It("is unlocked if the work panics", func(ctx SpecContext) {
		records := leases(path, 20*time.Millisecond)
		Expect(nstest.Must(records.Open(ctx)).Close()).To(Succeed())
		Expect(func() {
			_ = records.Locked(ctx, func(*statefile.Store[lease]) error { panic("work") })
		}).To(Panic())
		Expect(nstest.Must(records.OpenExisting(ctx)).Close()).To(Succeed())
	})
})

var _ = Describe("a store that is not open", func() {
	var records *statefile.Store[lease]
	BeforeEach(func() {
		path := filepath.Join(GinkgoT().TempDir(), "run", "leases")
		records = leases(path, time.Second)
	})
	isAt := func(address string) func(lease) bool { return func(l lease) bool { return l.Address == address } }

	It("reads and writes the same records as an open one", func(ctx SpecContext) {
		Expect(records.Put(ctx, lease{"a1", "192.0.2.1"})).To(Succeed())
		Expect(records.Put(ctx, lease{"b2", "192.0.2.2"})).To(Succeed())
		Expect(os.ReadFile(records.Path + "/a1.json")).To(MatchJSON(`{"name": "a1", "address": "192.0.2.1"}`))
		l, ok := get(records, "a1")
		Expect(ok).To(BeTrue())
		Expect(l).To(Equal(lease{"a1", "192.0.2.1"}))
		Expect(records.All()).To(Equal([]*lease{{"a1", "192.0.2.1"}, {"b2", "192.0.2.2"}}))
		Expect(records.Any(isAt("192.0.2.2"))).To(BeTrue())
		Expect(records.Any(isAt("192.0.2.3"))).To(BeFalse())
		Expect(records.Drop(ctx, "a1", "a1", "b2")).To(Succeed())
		Expect(entries(records.Path)).To(Equal([]string{"lock"}))
	})

	It("is empty if the directory does not exist, and only Put creates it", func(ctx SpecContext) {
		_, ok := get(records, "a1")
		Expect(ok).To(BeFalse())
		Expect(records.All()).To(BeEmpty())
		Expect(records.Any(isAt(""))).To(BeFalse())
		Expect(records.Drop(ctx, "a1")).To(Succeed())
		Expect(records.Path).NotTo(BeADirectory())
	})

	It("drops all named records, even after an error", func(ctx SpecContext) {
		Expect(records.Put(ctx, lease{"b2", "192.0.2.2"})).To(Succeed())
		Expect(records.Drop(ctx, "../x", "b2")).To(MatchError(fs.ErrInvalid))
		Expect(records.All()).To(BeEmpty())
	})

	It("is read without the lock, and reports whether a record has a file", func(ctx SpecContext) {
		Expect(records.HasFile("a1")).To(BeFalse())
		Expect(records.Put(ctx, lease{"a1", "192.0.2.1"})).To(Succeed())
		s := nstest.Must(records.Open(ctx))
		DeferCleanup(s.Close)
		_, ok := get(records, "a1")
		Expect(ok).To(BeTrue())
		Expect(records.Any(isAt("192.0.2.1"))).To(BeTrue())
		Expect(records.HasFile("a1")).To(BeTrue())
		Expect(s.Drop(ctx, "a1")).To(Succeed())
		Expect(records.HasFile("a1")).To(BeFalse())
		Expect(os.WriteFile(records.Path+"/"+statefile.Temporary("a1.json"), []byte("half"), 0o600)).To(Succeed())
		Expect(records.HasFile("a1")).To(BeTrue())
	})

	It("is listed with its files, without the lock and without changes", func(ctx SpecContext) {
		Expect(records.List()).To(BeEmpty())
		Expect(records.Path).NotTo(BeADirectory())
		Expect(records.Put(ctx, lease{"b2", "192.0.2.2"})).To(Succeed())
		Expect(records.Put(ctx, lease{"a1", "192.0.2.1"})).To(Succeed())
		s := nstest.Must(records.Open(ctx))
		DeferCleanup(s.Close)
		Expect(os.WriteFile(records.Path+"/torn.json", []byte(`{"name`), 0o600)).To(Succeed())
		temporary := records.Path + "/" + statefile.Temporary("a1.json")
		Expect(os.WriteFile(temporary, []byte("half"), 0o600)).To(Succeed())
		Expect(os.Chtimes(records.Path+"/a1.json", time.Time{}, time.Unix(77, 0))).To(Succeed())
		all := nstest.Must(records.List())
		Expect(all).To(HaveLen(2))
		Expect(all[0]).To(Equal(statefile.File[lease]{Record: lease{"a1", "192.0.2.1"},
			Path: records.Path + "/a1.json", Written: time.Unix(77, 0)}))
		Expect(all[1].Record.Name).To(Equal("b2"))
		Expect(temporary).To(BeAnExistingFile())
	})

	It("is written by one process at a time, and others wait no longer than Wait", func(ctx SpecContext) {
		Expect(records.Put(ctx, lease{Name: "a1"})).To(Succeed())
		s := nstest.Must(records.Open(ctx))
		DeferCleanup(s.Close)
		records.Wait = 20 * time.Millisecond
		Expect(records.Put(ctx, lease{Name: "a1"})).To(MatchError(statefile.ErrBusy))
		Expect(records.Drop(ctx, "b2", "a1")).To(MatchError(statefile.ErrBusy))
		Expect(records.Collect(ctx, isAt(""), nil)).To(MatchError(statefile.ErrBusy))
		Expect(records.Drop(ctx, "b2")).To(Succeed())
	})

	It("ends stale records without the lock, and drops each one whose end succeeds", func(ctx SpecContext) {
		for _, name := range []string{"a1", "b2", "c3"} {
			Expect(records.Put(ctx, lease{Name: name})).To(Succeed())
		}
		stale := func(l lease) bool { return l.Name != "b2" }
		Expect(records.Collect(ctx, stale, func(l lease) error {
			Expect(records.Put(ctx, l)).To(Succeed())
			if l.Name == "a1" {
				return errors.New("busy: a1")
			}
			return nil
		})).To(MatchError("busy: a1"))
		Expect(records.All()).To(Equal([]*lease{{Name: "a1"}, {Name: "b2"}}))
	})
})
