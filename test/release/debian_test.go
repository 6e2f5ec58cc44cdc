package release_test

import (
	"fmt"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

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
