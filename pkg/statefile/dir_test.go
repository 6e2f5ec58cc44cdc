package statefile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

func open(path string) *statefile.Dir {
	GinkgoHelper()
	d, err := statefile.Open(path, 0o755)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(d.Close)
	return d
}

func entries(path string) []string {
	GinkgoHelper()
	list, err := os.ReadDir(path)
	Expect(err).NotTo(HaveOccurred())
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

	It("is made with its parents", func() {
		Expect(path).To(BeADirectory())
	})

	It("that is absent is not made without permissions for it", func() {
		_, err := statefile.Open(path+"/none", 0)
		Expect(err).To(MatchError(fs.ErrNotExist))
		_, err = statefile.OpenOwn(path+"/none", 0)
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(entries(path)).To(BeEmpty())
	})

	It("of our own is no link", func() {
		Expect(os.Symlink("/etc", path+"/sub")).To(Succeed())
		_, err := statefile.OpenOwn(path+"/sub", 0o755)
		Expect(err).To(MatchError(unix.ENOTDIR))
		Expect(err).To(MatchError(ContainSubstring(path + "/sub")))
	})

	It("names the path when it is a file", func() {
		Expect(os.WriteFile(path+"/f", nil, 0o600)).To(Succeed())
		_, err := statefile.Open(path+"/f", 0o755)
		Expect(err).To(MatchError(unix.ENOTDIR))
		Expect(err).To(MatchError(ContainSubstring(path + "/f")))
	})

	DescribeTable("refuses names that lead elsewhere", func(name string) {
		for _, err := range []error{
			d.Create(name, nil, 0o600), d.Replace(name, nil, 0o600), d.Remove(name),
			second(d.Read(name)), second(d.OpenFile(name)),
		} {
			Expect(err).To(MatchError(fs.ErrInvalid))
		}
	},
		Entry("empty", ""), Entry("dot", "."), Entry("parent", ".."),
		Entry("path", "x/y"), Entry("absolute", "/etc/passwd"), Entry("NUL", "a\x00b"))

	It("has a time that the kernel overwrites when an entry comes or goes", func() {
		stamp := time.Unix(400_000_000, 0)
		Expect(d.Create("f", nil, 0o600)).To(Succeed())
		Expect(d.SetModTime(stamp)).To(Succeed())
		Expect(os.WriteFile(path+"/f", []byte("x"), 0o600)).To(Succeed())
		Expect(modTime(d)).To(Equal(stamp))
		Expect(d.Remove("f")).To(Succeed())
		Expect(modTime(d)).NotTo(Equal(stamp))
	})
})

func modTime(d *statefile.Dir) time.Time {
	GinkgoHelper()
	st, err := d.Stat()
	Expect(err).NotTo(HaveOccurred())
	return time.Unix(st.Mtim.Unix())
}

func second[T any](_ T, err error) error { return err }

var _ = Describe("a file", func() {
	var path string
	var d *statefile.Dir
	BeforeEach(func() {
		path = GinkgoT().TempDir()
		d = open(path)
	})

	It("is created once, under no other name before", func() {
		inTheWay := statefile.Temporary("10.1.2.2")
		Expect(os.MkdirAll(path+"/"+inTheWay+"/full", 0o755)).To(Succeed())
		Expect(d.Create("10.1.2.2", []byte("c1\r\neth0"), 0o600)).To(Succeed())
		Expect(os.ReadFile(path + "/10.1.2.2")).To(BeEquivalentTo("c1\r\neth0"))
		info, err := os.Lstat(path + "/10.1.2.2")
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode()).To(Equal(fs.FileMode(0o600)))

		Expect(d.Create("10.1.2.2", []byte("other"), 0o600)).To(MatchError(fs.ErrExist))
		Expect(os.ReadFile(path + "/10.1.2.2")).To(BeEquivalentTo("c1\r\neth0"))
		Expect(entries(path)).To(Equal([]string{inTheWay, "10.1.2.2"}))
	})

	It("has a name of up to 255 bytes", func() {
		long := strings.Repeat("n", 255)
		Expect(d.Replace(long, []byte("old"), 0o600)).To(Succeed())
		Expect(d.Replace(long, []byte("new"), 0o600)).To(Succeed())
		Expect(d.Read(long)).To(BeEquivalentTo("new"))
		Expect(d.Discard(long)).To(Succeed())
		Expect(d.Create(long, nil, 0o600)).To(Succeed())
		Expect(entries(path)).To(Equal([]string{long}))
		Expect(d.Replace(long+"n", nil, 0o600)).To(MatchError(unix.ENAMETOOLONG))
		Expect(entries(path)).To(Equal([]string{long}))
	})

	It("is replaced in one step, link and all", func() {
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

	It("is replaced, and discarded, with what a Replace that was killed has left", func() {
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

	It("that is a link is neither created over, read nor opened", func() {
		Expect(os.Symlink("/etc/passwd", path+"/l")).To(Succeed())
		Expect(d.Create("l", nil, 0o600)).To(MatchError(fs.ErrExist))
		Expect(second(d.Read("l"))).To(MatchError(unix.ELOOP))
		Expect(second(d.OpenFile("l"))).To(MatchError(unix.ELOOP))
	})

	It("with a second name is not opened for writing", func() {
		Expect(os.WriteFile(path+"/f", nil, 0o600)).To(Succeed())
		Expect(os.Link(path+"/f", path+"/g")).To(Succeed())
		Expect(second(d.OpenFile("g"))).To(MatchError(ContainSubstring("one name")))
	})

	It("that is a FIFO or a directory is an error at once", func() {
		Expect(unix.Mkfifo(path+"/fifo", 0o600)).To(Succeed())
		Expect(os.Mkdir(path+"/dir", 0o700)).To(Succeed())
		for _, name := range []string{"fifo", "dir"} {
			Expect(second(d.Read(name))).To(MatchError(ContainSubstring(path + "/" + name)))
			Expect(second(d.OpenFile(name))).To(HaveOccurred())
		}
	})

	It("is changed in place", func() {
		Expect(d.Create("f", []byte("abcdef"), 0o600)).To(Succeed())
		f, err := d.OpenFile("f")
		Expect(err).NotTo(HaveOccurred())
		defer f.Close()
		Expect(second(f.WriteAt([]byte("XY"), 2))).To(Succeed())
		got := make([]byte, 3)
		Expect(second(f.ReadAt(got, 1))).To(Succeed())
		Expect(got).To(BeEquivalentTo("bXY"))
	})

	It("is removed, and may be absent", func() {
		Expect(d.Create("f", nil, 0o600)).To(Succeed())
		Expect(d.Remove("f")).To(Succeed())
		Expect(d.Remove("f")).To(Succeed())
		Expect(entries(path)).To(BeEmpty())
	})

	It("of a killed writer is hidden, and swept", func() {
		Expect(os.WriteFile(path+"/.whole.tmp", []byte("half"), 0o600)).To(Succeed())
		Expect(os.WriteFile(path+"/whole", nil, 0o600)).To(Succeed())
		Expect(d.Names()).To(Equal([]string{"whole"}))
		Expect(d.Sweep()).To(Succeed())
		Expect(entries(path)).To(Equal([]string{"whole"}))
	})
})

var _ = Describe("a full filesystem", func() {
	It("leaves the old content, no new file and nothing else", func() {
		path := GinkgoT().TempDir()
		if err := unix.Mount("none", path, "tmpfs", 0, "size=64k"); err != nil {
			Skip("tmpfs: " + err.Error())
		}
		DeferCleanup(unix.Unmount, path, 0)
		d := open(path)
		Expect(d.Create("old", []byte("old"), 0o600)).To(Succeed())
		big := bytes.Repeat([]byte("x"), 128<<10)

		Expect(d.Create("new", big, 0o600)).To(MatchError(unix.ENOSPC))
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

// writerEnv makes the test binary write in the directory until it is killed.
const writerEnv = "STATEFILE_WRITE"

// killContent is long enough that a write of it is not over at once.
var killContent = bytes.Repeat([]byte("whole "), 10_000)

func writeForEver(path string) {
	d, err := statefile.Open(path, 0o755)
	for err == nil {
		err = errors.Join(
			d.Create("created", killContent, 0o600), d.Replace("replaced", killContent, 0o600),
			d.Remove("created"))
	}
	println(err.Error())
	os.Exit(1)
}
