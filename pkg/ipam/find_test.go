package ipam_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
)

var _ = Describe("Find", func() {
	var a, b string
	BeforeEach(func() { a, b = GinkgoT().TempDir(), GinkgoT().TempDir() })

	find := func(path, name string) (string, error) {
		c := ipam.Client{Type: name, Path: path}
		err := c.Find()
		return c.File(), err
	}

	It("takes the first regular file", func() {
		install(b, "ipam", "")
		Expect(find(a+":"+b, "ipam")).To(Equal(filepath.Join(b, "ipam")))
		install(a, "ipam", "")
		Expect(find(a+":"+b, "ipam")).To(Equal(filepath.Join(a, "ipam")))
		Expect(find(b+":"+a, "ipam")).To(Equal(filepath.Join(b, "ipam")))
	})

	It("follows links and passes over everything else", func() {
		Expect(os.Mkdir(filepath.Join(a, "dir"), 0o755)).To(Succeed())
		Expect(syscall.Mkfifo(filepath.Join(a, "fifo"), 0o755)).To(Succeed())
		Expect(os.Symlink("nothing", filepath.Join(a, "dangling"))).To(Succeed())
		Expect(os.Symlink("loop", filepath.Join(a, "loop"))).To(Succeed())
		for _, name := range []string{"dir", "fifo", "dangling", "loop"} {
			_, err := find(a, name)
			Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
			install(b, name, "")
			Expect(find(a+":"+b, name)).To(Equal(filepath.Join(b, name)))
		}
		Expect(os.Symlink(filepath.Join(b, "dir"), filepath.Join(a, "link"))).To(Succeed())
		Expect(find(a, "link")).To(Equal(filepath.Join(a, "link")))
	})

	It("passes over empty entries, which do not mean the working directory", func() {
		GinkgoT().Chdir(a)
		install(a, "ipam", "")
		_, err := find("::", "ipam")
		Expect(err).To(HaveOccurred())
		Expect(find("::"+a+":", "ipam")).To(Equal(filepath.Join(a, "ipam")))
	})

	DescribeTable("names CNI_PATH when there is no such plugin", func(path string) {
		_, err := find(path, "ipam")
		Expect(err).To(MatchError(fmt.Sprintf("CNI_PATH: no plugin %[1]q in %[2]q: "+
			"failed to find plugin %[1]q in path %[3]s", "ipam", path, filepath.SplitList(path))))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
	},
		Entry("empty", ""), Entry("empty entries", "::"), Entry("no directory", "/no/such"),
		Entry("a file as directory", "/etc/passwd"),
	)

	DescribeTable("refuses names that are no file names", Label("delegate-name"), func(name string) {
		_, err := find("/bin:/usr/bin", name)
		Expect(err).To(MatchError(ContainSubstring("type: %q", name)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
	},
		Entry("empty", ""), Entry("parent", ".."), Entry("itself", "."), Entry("a path", "/bin/sh"), Entry("upwards",
			"../bin/sh"),
		Entry("below", "x/y"), Entry("a backslash", `x\y`),
	)

	It("never takes a plugin of a relative directory from PATH", func() {
		GinkgoT().Chdir(a)
		install(a, "ipam", "echo here")
		install(b, "ipam", "echo PATH")
		GinkgoT().Setenv("PATH", b+":"+os.Getenv("PATH"))
		for _, path := range []string{".", "../" + filepath.Base(a)} {
			out, err := run(context.Background(), &ipam.Client{Type: "ipam", Path: path, Env: os.Environ()})
			Expect(err).NotTo(HaveOccurred())
			Expect(string(out)).To(Equal("here\n"))
		}
	})
})
