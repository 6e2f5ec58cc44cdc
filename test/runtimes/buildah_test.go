package runtimes_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// buildah is buildah on a machine, with podman's configuration and a static busybox to build images of.
type buildah struct {
	*podman
	context string
}

func newBuildah(plugins string) *buildah {
	nstest.NeedProgram("buildah", "busybox")
	p := *newPodman(newMachine(plugins), pods.Network{Version: "0.4.0"}.Conflist())
	p.command = []string{"buildah"}
	b := &buildah{&p, filepath.Join(p.dir, "context")}
	Expect(os.Mkdir(b.context, 0o755)).To(Succeed())
	path := nstest.Must(exec.LookPath("busybox"))
	busybox := nstest.Must(os.ReadFile(path))
	Expect(os.WriteFile(filepath.Join(b.context, "busybox"), busybox, 0o755)).To(Succeed())
	return b
}

func (b *buildah) arguments(command string) []string {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "Containerfile")
	Expect(os.WriteFile(file, fmt.Appendf(nil, "FROM scratch\nCOPY busybox /bin/busybox\nRUN %s\n",
		encode([]string{"/bin/busybox", "sh", "-ec", command})), 0o644)).To(Succeed())
	return []string{"bud", "--isolation", "oci", "--cgroup-parent", b.cgroup, "--no-cache", "-f", file, b.context}
}

func (b *buildah) build(command string) error {
	GinkgoHelper()
	_, err := b.try(b.arguments(command)...)
	return err
}

var _ = Describe("buildah", Label("more-runtimes", "runtime-killed"), func() {
	told("buildah 1.28.2", func(s story, plugins string) {
		b := newBuildah(plugins)
		_, port, err := net.SplitHostPort(b.outside.Serve("tcp", "192.0.2.2:0"))
		Expect(err).NotTo(HaveOccurred())
		// The server says whom it sees: the host.
		ask := fmt.Sprintf(`/bin/busybox nc 192.0.2.2 %s | /bin/busybox grep -q "^192.0.2.1:"`, port)
		Expect(b.build(ask)).To(Succeed()) // what containers share is there from now on
		before := b.state()

		s.step("a step of a build has an address, and reaches the outside, masqueraded", func() {
			Expect(b.build(ask + " && /bin/busybox ip -4 addr show eth0 | /bin/busybox grep 10.88.0.")).To(Succeed())
		})
		s.step("five builds at once", func() {
			var builds [5][]string
			for i := range builds {
				builds[i] = b.arguments(fmt.Sprint(ask, " && : ", i))
			}
			var errs [len(builds)]error
			nstest.AtOnce(len(builds), func(i int) { _, errs[i] = b.try(builds[i]...) })
			Expect(errs).To(HaveEach(Succeed()))
		})
		s.step("a step that fails", func() { Expect(b.build(ask + " && false")).NotTo(Succeed()) })
		s.step("nothing is left", func() {
			pods.ExpectNothingLeft(b.Host)
			Expect(b.state()).To(Equal(before))
		})
		s.step("killed in a step: GC collects what it forgot", func() {
			killed := b.Start(nstest.Program{Path: "buildah", Env: b.env, Args: b.arguments("/bin/busybox sleep 1000")})
			Eventually(func() []string { return pods.Leases(b.Host) }).ShouldNot(BeEmpty())
			Expect(killed.Process.Kill()).To(Succeed())
			_ = killed.Wait()
			pods.Settle(b.plugins)
			b.collect()
			pods.ExpectNothingLeft(b.Host)
		})
	})
})
