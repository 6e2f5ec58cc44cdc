package hostlocal

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

var _ = Describe("a file of the lease directory", func() {
	var path string
	var dir *statefile.Dir
	openDir := func(in string) {
		GinkgoHelper()
		path = in
		dir = nstest.Must(statefile.Open(path, 0))
		DeferCleanup(dir.Close)
	}
	BeforeEach(func() { openDir(GinkgoT().TempDir()) })
	names := func() (names []string) {
		GinkgoHelper()
		for _, e := range nstest.Must(os.ReadDir(path)) {
			names = append(names, e.Name())
		}
		return names
	}
	openError := func(name string) error {
		_, err := openInPlace(dir, name)
		return err
	}

	It("is created once, and had no other name before", func() {
		Expect(os.MkdirAll(path+"/.10.1.2.2.tmp/full", 0o755)).To(Succeed())
		Expect(createFile(dir, "10.1.2.2", []byte("c1\r\neth0"), nil)).To(Succeed())
		Expect(os.ReadFile(path + "/10.1.2.2")).To(BeEquivalentTo("c1\r\neth0"))
		Expect(nstest.Must(os.Lstat(path + "/10.1.2.2")).Mode()).To(Equal(fs.FileMode(0o600)))

		Expect(createFile(dir, "10.1.2.2", []byte("other"), nil)).To(
			And(MatchError(fs.ErrExist), MatchError(ContainSubstring("create "+path+"/10.1.2.2"))))
		Expect(os.ReadFile(path + "/10.1.2.2")).To(BeEquivalentTo("c1\r\neth0"))
		Expect(names()).To(Equal([]string{".10.1.2.2.tmp", "10.1.2.2"}))
	})

	It("has a name of up to 255 bytes", func() {
		long := strings.Repeat("n", 255)
		Expect(createFile(dir, long, nil, nil)).To(Succeed())
		Expect(names()).To(Equal([]string{long}))
	})

	It("is neither created nor opened at a symbolic link", func() {
		Expect(os.Symlink("/etc/passwd", path+"/l")).To(Succeed())
		Expect(createFile(dir, "l", nil, nil)).To(MatchError(fs.ErrExist))
		Expect(openError("l")).To(MatchError(unix.ELOOP))
	})

	It("is not opened for writing if it has a second name, or is a FIFO or a directory", func() {
		Expect(os.WriteFile(path+"/f", nil, 0o600)).To(Succeed())
		Expect(os.Link(path+"/f", path+"/g")).To(Succeed())
		Expect(openError("g")).To(MatchError(ContainSubstring("one name")))
		Expect(unix.Mkfifo(path+"/fifo", 0o600)).To(Succeed())
		Expect(openError("fifo")).To(HaveOccurred())
		Expect(os.Mkdir(path+"/dir", 0o700)).To(Succeed())
		Expect(openError("dir")).To(HaveOccurred())
	})

	It("is changed in place", func() {
		Expect(createFile(dir, "f", []byte("abcdef"), nil)).To(Succeed())
		f := nstest.Must(openInPlace(dir, "f"))
		defer f.Close()
		_, err := f.WriteAt([]byte("XY"), 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.ReadFile(path + "/f")).To(BeEquivalentTo("abXYef"))
	})

	It("leaves nothing behind on a full file system", func() {
		openDir(tmpfs(0, "size=64k"))
		Expect(createFile(dir, "new", bytes.Repeat([]byte("x"), 128<<10), nil)).To(MatchError(unix.ENOSPC))
		Expect(names()).To(BeEmpty())
	})

	It("overwrites the directory's modification time when it is created or removed, not when it is written", func() {
		stamp := stampTime(7)
		modTime := func() time.Time { return nstest.Must(os.Stat(path)).ModTime() }
		Expect(createFile(dir, "f", nil, nil)).To(Succeed())
		Expect(os.Chtimes(path, time.Time{}, stamp)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(path, "f"), []byte("x"), 0o600)).To(Succeed())
		Expect(modTime()).To(BeTemporally("==", stamp))
		Expect(dir.Remove("f")).To(Succeed())
		Expect(modTime()).NotTo(BeTemporally("==", stamp))
	})
})
