package runtimes_test

import (
	"encoding/json"
	"fmt"
	"os"
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
