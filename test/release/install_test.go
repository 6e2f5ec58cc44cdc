package release_test

import (
	"fmt"
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

// debian is the root directory of a machine whose packages dpkg keeps.
type debian struct{ root, work string }

func newDebian() debian {
	GinkgoHelper()
	d := debian{root: GinkgoT().TempDir(), work: GinkgoT().TempDir()}
	Expect(os.MkdirAll(d.root+"/var/lib/dpkg", 0o755)).To(Succeed())
	Expect(os.WriteFile(d.root+"/var/lib/dpkg/status", nil, 0o644)).To(Succeed())
	return d
}

// dpkg runs the packages' scripts outside of the root, and tells them of it.
func (d debian) dpkg(args ...string) {
	GinkgoHelper()
	run(d.work, nil, "dpkg", append([]string{"--root=" + d.root, "--force-script-chrootless", "--force-not-root",
		"--log=/dev/null"}, args...)...)
}

func (d debian) install(deb string) { GinkgoHelper(); d.dpkg("--install", deb) }

func (d debian) bin() string { return d.root + "/opt/cni/bin" }

func (d debian) plugin(name string) string {
	GinkgoHelper()
	return contents(filepath.Join(d.bin(), name))
}

func (d debian) diversions() string {
	GinkgoHelper()
	return run(d.work, nil, "dpkg-divert", "--root="+d.root, "--list")
}

// kubernetesCNI makes a package like that of Kubernetes: with two of our names,
// and a plugin that we do not have.
func (d debian) kubernetesCNI(version string) string {
	GinkgoHelper()
	tree := filepath.Join(d.work, version)
	for _, plugin := range []string{"bridge", "portmap", "flannel"} {
		file := filepath.Join(tree, "opt/cni/bin", plugin)
		Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
		Expect(os.WriteFile(file, []byte(plugin+" of "+version), 0o755)).To(Succeed())
	}
	Expect(os.MkdirAll(tree+"/DEBIAN", 0o755)).To(Succeed())
	control := fmt.Sprintf("Package: kubernetes-cni\nVersion: %s\nArchitecture: amd64\n"+
		"Maintainer: a <a@example.org>\nDescription: a\n",
		version)
	Expect(os.WriteFile(tree+"/DEBIAN/control", []byte(control), 0o644)).To(Succeed())
	run(d.work, nil, "dpkg-deb", "--build", "--root-owner-group", tree, tree+".deb")
	return tree + ".deb"
}
