package release_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("make install", func() {
	var dest string
	var env []string
	BeforeEach(func() {
		root := GinkgoT().TempDir()
		dest = root + "/usr/libexec/cni"
		env = []string{"DESTDIR=" + root, "PREFIX=/usr/libexec/cni"}
	})
	install := func() { GinkgoHelper(); run("../..", env, "make", "install") }

	It("puts every plugin under DESTDIR and PREFIX, for everybody to run", func() {
		install()
		Expect(names(dest)).To(Equal(plugins()))
		for _, plugin := range plugins() {
			info, err := os.Stat(filepath.Join(dest, plugin))
			Expect(err).NotTo(HaveOccurred())
			Expect(info.Mode()).To(Equal(os.FileMode(0o755)))
			out := run(dest, []string{"CNI_COMMAND=VERSION"}, "./"+plugin)
			Expect(out).To(ContainSubstring(`"supportedVersions"`))
		}
	})

	It("replaces plugins by whole files: who has opened the old one still reads that", func() {
		Expect(os.MkdirAll(dest, 0o755)).To(Succeed())
		Expect(os.WriteFile(dest+"/bridge", []byte("the old one"), 0o755)).To(Succeed())
		old, err := os.Open(dest + "/bridge")
		Expect(err).NotTo(HaveOccurred())
		defer old.Close()
		install()
		Expect(io.ReadAll(old)).To(BeEquivalentTo("the old one"))
		Expect(names(dest)).To(Equal(plugins()))
		Expect(contents(dest + "/bridge")).To(Equal(contents("../../bin/bridge")))
	})

	It("leaves nothing half-written when it cannot go on", func() {
		Expect(os.MkdirAll(dest+"/loopback/of-somebody", 0o755)).To(Succeed())
		out, err := try("../..", env, "make", "install")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("loopback"))
		all := plugins()
		Expect(names(dest)).To(Equal(all[:slices.Index(all, "loopback")+1]))
	})
})
