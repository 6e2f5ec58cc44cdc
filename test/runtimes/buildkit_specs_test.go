package runtimes_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// buildkit is a BuildKit daemon on a machine. It finds the plugins in PATH under the names of its own distribution, and
// writes their list itself.
type buildkit struct {
	*machine
	daemon  *exec.Cmd
	address string
	context string
}

func newBuildkit(plugins string) *buildkit {
	GinkgoHelper()
	nstest.NeedProgram("buildkitd", "buildctl", "runc", "busybox")
	b := &buildkit{machine: newMachine(plugins)}
	bin, data := filepath.Join(b.dir, "own"), filepath.Join(b.dir, "buildkit")
	b.address, b.context = "unix://"+filepath.Join(b.dir, "b.sock"), filepath.Join(b.dir, "context")
	for _, dir := range []string{bin, b.context} {
		Expect(os.Mkdir(dir, 0o755)).To(Succeed())
	}
	for _, name := range []string{"bridge", "loopback", "host-local", "firewall"} {
		Expect(os.Link(filepath.Join(b.plugins, name), filepath.Join(bin, "buildkit-cni-"+name))).To(Succeed())
	}
	busybox := nstest.Must(os.ReadFile(nstest.Must(exec.LookPath("busybox"))))
	Expect(os.WriteFile(filepath.Join(b.context, "busybox"), busybox, 0o755)).To(Succeed())
	b.daemon = b.Start(nstest.Program{Path: nstest.Must(exec.LookPath("buildkitd")),
		Env: []string{"PATH=" + bin + ":" + os.Getenv("PATH")},
		Args: []string{"--config", "/dev/null", "--root", data, "--addr", b.address, "--containerd-worker=false",
			"--oci-worker-snapshotter", "native", "--oci-worker-net", "bridge", "--oci-worker-binary", "runc",
			"--oci-cni-pool-size", "2"}})
	Eventually(func() int { return b.buildctl("debug", "workers").Exit }).Should(BeZero())
	return b
}

func (b *buildkit) buildctl(args ...string) nstest.Output {
	GinkgoHelper()
	out := b.Run(nstest.Program{Path: "buildctl", Args: append([]string{"--addr", b.address}, args...)})
	GinkgoWriter.Print(out.Stderr)
	return out
}

// build runs a command as a step of a build, which nothing else has run before.
func (b *buildkit) build(command string) error {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	Expect(os.WriteFile(filepath.Join(dir, "Dockerfile"), fmt.Appendf(nil,
		"FROM scratch\nCOPY busybox /bin/busybox\nRUN %s\n", encode([]string{"/bin/busybox", "sh", "-ec", command})),
		0o644)).To(Succeed())
	if out := b.buildctl("build", "--no-cache", "--progress", "plain", "--frontend", "dockerfile.v0",
		"--local", "context="+b.context, "--local", "dockerfile="+dir); out.Exit != 0 {
		return fmt.Errorf("buildctl: exit %d: %s", out.Exit, out.Stderr)
	}
	return nil
}

var _ = Describe("BuildKit", Label("all"), func() {
	told("BuildKit 0.34.2", func(s story, plugins string) {
		b := newBuildkit(plugins)
		_, port, err := net.SplitHostPort(b.outside.Serve("tcp", "192.0.2.2:0"))
		Expect(err).NotTo(HaveOccurred())
		// The server's answer has the client's address: the host's.
		ask := fmt.Sprintf(`/bin/busybox nc 192.0.2.2 %s | /bin/busybox grep -q "^192.0.2.1:"`, port)
		s.step("buildkit-cni-*: a step has an address, and reaches the outside, masqueraded", func() {
			Expect(b.build(ask + " && /bin/busybox ip -4 addr show eth0 | /bin/busybox grep 10.10.")).To(Succeed())
		})
		s.step("five builds at once", func() {
			failed := make([]error, 5)
			var builds sync.WaitGroup
			for i := range failed {
				builds.Go(func() {
					defer GinkgoRecover()
					failed[i] = b.build(fmt.Sprintf("true %d; %s", i, ask))
				})
			}
			builds.Wait()
			Expect(failed).To(HaveEach(BeNil()))
		})
		s.step("a step that fails", func() { Expect(b.build("false")).NotTo(Succeed()) })
		s.step("it ends: nothing is left", func() {
			Expect(b.daemon.Process.Signal(syscall.SIGTERM)).To(Succeed())
			_ = b.daemon.Wait()
			pods.ExpectNothingLeft(b.Host)
		})
	})
})
