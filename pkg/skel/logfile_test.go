package skel_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/skel"
)

func content(file string) string {
	GinkgoHelper()
	data, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	return string(data)
}

var _ = Describe("the file of the log", func() {
	var dir, file string
	line := func(n int) string { return fmt.Sprintf(`{"time":"%08d"}`+"\n", n) }
	size := int64(len(line(0)))
	BeforeEach(func() {
		dir = GinkgoT().TempDir()
		file = filepath.Join(dir, "log")
	})

	It("is for its owner alone, whatever the umask", func() {
		old := unix.Umask(0)
		defer unix.Umask(old)
		Expect(skel.AppendLog(file, 1000, line(1))).To(Succeed())
		info, err := os.Stat(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode()).To(Equal(os.FileMode(0o600)))
	})

	It("is renamed before it is too long, once", func() {
		for n := range 8 {
			Expect(skel.AppendLog(file, 3*size, line(n))).To(Succeed())
		}
		Expect(content(file)).To(Equal(line(6) + line(7)))
		Expect(content(file + ".1")).To(Equal(line(3) + line(4) + line(5)))
		Expect(os.ReadDir(dir)).To(HaveLen(2))
	})

	It("takes a line that is longer than all of it may be", func() {
		Expect(skel.AppendLog(file, size/2, line(1))).To(Succeed())
		Expect(skel.AppendLog(file, size/2, line(2))).To(Succeed())
		Expect(content(file) + content(file+".1")).To(Equal(line(2) + line(1)))
	})

	It("begins a new line behind one that was torn by a full disk", func() {
		Expect(os.WriteFile(file, []byte(line(1)+`{"time":"00`), 0o600)).To(Succeed())
		Expect(skel.AppendLog(file, 1000, line(2))).To(Succeed())
		Expect(skel.AppendLog(file, 1000, line(3))).To(Succeed())
		Expect(content(file)).To(Equal(line(1) + `{"time":"00` + "\n" + line(2) + line(3)))
	})

	It("loses no line of writers side by side while it is renamed", func() {
		const writers, each = 8, 250
		// It is renamed once on the way: nothing is dropped with an older one.
		limit := size * writers * each * 2 / 3
		var wait sync.WaitGroup
		for w := range writers {
			wait.Go(func() {
				defer GinkgoRecover()
				for n := range each {
					Expect(skel.AppendLog(file, limit, line(w*each+n))).To(Succeed())
				}
			})
		}
		wait.Wait()
		Expect(int64(len(content(file)))).To(BeNumerically("<=", limit))
		all := content(file+".1") + content(file)
		// An empty line stands where one looked like torn while it was written.
		Expect(strings.Fields(all)).To(HaveLen(writers * each * len(strings.Fields(line(0)))))
		for n := range writers * each {
			Expect(all).To(ContainSubstring(line(n)))
		}
	})

	It("is written to in spite of a lock that somebody keeps, up to twice its length", func() {
		Expect(skel.AppendLog(file, 2*size, line(0))).To(Succeed())
		held, err := os.Open(file)
		Expect(err).NotTo(HaveOccurred())
		defer held.Close()
		Expect(unix.Flock(int(held.Fd()), unix.LOCK_EX)).To(Succeed())
		for n := range 4 {
			Expect(skel.AppendLog(file, 2*size, line(n))).To(Succeed())
		}
		Expect(skel.AppendLog(file, 2*size, line(9))).To(MatchError(ContainSubstring("is full")))
		Expect(content(file)).To(HaveLen(int(5 * size)))
		Expect(unix.Flock(int(held.Fd()), unix.LOCK_UN)).To(Succeed())
		Expect(skel.AppendLog(file, 2*size, line(9))).To(Succeed())
		Expect(content(file)).To(Equal(line(9)))
	})

	other := func(name, text string) string {
		GinkgoHelper()
		path := filepath.Join(dir, name)
		Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
		return path
	}

	DescribeTable("is nothing but a log: it refuses", func(says string, make func() (path string, leaves []string)) {
		path, leaves := make()
		var before []string
		for _, f := range leaves {
			before = append(before, content(f))
		}
		Expect(skel.AppendLog(path, 1, line(1))).To(MatchError(And(ContainSubstring(path), ContainSubstring(says))))
		for i, f := range leaves {
			Expect(content(f)).To(Equal(before[i]))
		}
	},
		Entry("a file of something else", "is no log", func() (string, []string) { f := other("passwd", "root:x:0:0"); return f, []string{f} }),
		Entry("to replace a file of something else", "log.1: is no log", func() (string, []string) {
			return other("log", line(1)), []string{file, other("log.1", "text")}
		}),
		Entry("a symbolic link", "is a symbolic link", func() (string, []string) {
			f := other("target", "")
			Expect(os.Symlink(f, file)).To(Succeed())
			return file, []string{f}
		}),
		Entry("a link to nothing", "is a symbolic link", func() (string, []string) {
			Expect(os.Symlink(filepath.Join(dir, "nothing"), file)).To(Succeed())
			DeferCleanup(func() { Expect(filepath.Join(dir, "nothing")).NotTo(BeAnExistingFile()) })
			return file, nil
		}),
		Entry("a way over a symbolic link", "there is one on the way", func() (string, []string) {
			Expect(os.Mkdir(filepath.Join(dir, "real"), 0o755)).To(Succeed())
			Expect(os.Symlink("real", filepath.Join(dir, "way"))).To(Succeed())
			f := other("real/log", line(1))
			return filepath.Join(dir, "way", "log"), []string{f}
		}),
		Entry("a second name of a file", "has another name", func() (string, []string) {
			f := other("target", line(1))
			Expect(os.Link(f, file)).To(Succeed())
			return file, []string{f}
		}),
		Entry("a file to which others may write", "others may write", func() (string, []string) {
			f := other("log", "")
			Expect(os.Chmod(f, 0o620)).To(Succeed())
			return f, []string{f}
		}),
		Entry("somebody else's file", "others may write", func() (string, []string) {
			f := other("log", "")
			Expect(os.Chown(f, 1, 1)).To(Succeed())
			return f, []string{f}
		}),
		Entry("a pipe that nobody reads", "is no regular file", func() (string, []string) {
			Expect(unix.Mkfifo(file, 0o600)).To(Succeed())
			return file, nil
		}),
		Entry("a device", "is no regular file", func() (string, []string) { return "/dev/full", nil }),
		Entry("a directory", "is no regular file", func() (string, []string) { return dir, nil }),
		Entry("a directory in the old one's place", "log.1", func() (string, []string) {
			f := other("log", line(1))
			Expect(os.Mkdir(file+".1", 0o755)).To(Succeed())
			return f, []string{f}
		}),
	)
})
