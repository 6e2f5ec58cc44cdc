package runtimes_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// podman is podman on a machine, with CNI as its network backend.
type podman struct {
	*machine
	command []string // podman, and what comes before it
	env     []string
}

const rootStorage = `[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
`

func newPodman(m *machine, conflist string) *podman {
	GinkgoHelper()
	nstest.NeedProgram("podman", "runc")
	p := &podman{machine: m, command: []string{"podman"}}
	p.configure(conflist, rootStorage)
	return p
}

// configure writes podman's configuration, and gives it the image.
func (p *podman) configure(conflist, storage string) {
	GinkgoHelper()
	for _, dir := range []string{"net.d", "tmp"} {
		Expect(os.Mkdir(filepath.Join(p.dir, dir), 0o755)).To(Succeed())
		Expect(os.Chmod(filepath.Join(p.dir, dir), 0o777)).To(Succeed()) // an ordinary user writes there too
	}
	p.write("net.d/pods.conflist", conflist)
	p.env = append(p.env, "TMPDIR="+p.dir+"/tmp", "CONTAINERS_STORAGE_CONF="+p.write("storage.conf", storage),
		"CONTAINERS_CONF="+p.write("containers.conf", fmt.Sprintf(`[containers]
default_ulimits = [%s]
log_driver = "k8s-file"
apparmor_profile = ""
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "cni"
default_network = "pods"
cni_plugin_dirs = [%q]
network_config_dir = %q
`, p.ulimits(), p.plugins, p.dir+"/net.d")))
	p.must("load", "-q", "-i", writeImage(p.dir))
	AddReportEntry("version", p.must("--version"))
}

// ulimits are no higher than ours, which is all that we may give.
func (p *podman) ulimits() string {
	var limits []string
	for name, flag := range map[string]string{"nofile": "-Hn", "nproc": "-Hu"} {
		if limit := strings.TrimSpace(p.Cmd("bash", "-c", "ulimit "+flag)); limit != "unlimited" {
			limits = append(limits, fmt.Sprintf("%q", fmt.Sprintf("%s=%s:%[2]s", name, limit)))
		}
	}
	return strings.Join(limits, ", ")
}

func (p *podman) write(name, content string) string {
	GinkgoHelper()
	path := filepath.Join(p.dir, name)
	Expect(os.WriteFile(path, []byte(content), 0o644)).To(Succeed())
	return path
}

func (p *podman) create(name string, options ...string) {
	GinkgoHelper()
	p.must(append(append([]string{"network", "create"}, options...), name)...)
}

func (p *podman) try(args ...string) (string, error) {
	GinkgoHelper()
	out := p.Run(nstest.Program{Path: p.command[0], Args: append(slices.Clone(p.command[1:]), args...), Env: p.env})
	GinkgoWriter.Print(out.Stderr)
	if out.Exit != 0 {
		return "", fmt.Errorf("podman %s: exit %d: %s", strings.Join(args, " "), out.Exit, out.Stderr)
	}
	return strings.TrimSpace(out.Stdout), nil
}

func (p *podman) must(args ...string) string {
	GinkgoHelper()
	out := nstest.Must(p.try(args...))
	return out
}

func (p *podman) container(name string, options ...string) pods.Pod {
	GinkgoHelper()
	args := append([]string{"run", "-d", "--name", name, "--cgroup-parent", p.cgroup}, options...)
	p.must(append(args, image)...)
	return p.find(name)
}

func (p *podman) find(name string) pods.Pod {
	GinkgoHelper()
	var list []struct {
		NetworkSettings struct {
			SandboxKey string
			Networks   map[string]struct{ IPAddress, GlobalIPv6Address string }
		}
	}
	Expect(json.Unmarshal([]byte(p.must("inspect", name)), &list)).To(Succeed())
	s := list[0].NetworkSettings
	return pods.At(s.SandboxKey, s.Networks["pods"].IPAddress, s.Networks["pods"].GlobalIPv6Address)
}

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
