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
	env []string
}

func newPodman(m *machine, conflist string) *podman {
	GinkgoHelper()
	nstest.NeedProgram("podman", "runc")
	p := &podman{machine: m}
	conf := func(name, content string) string {
		path := filepath.Join(m.dir, name)
		Expect(os.WriteFile(path, []byte(content), 0o644)).To(Succeed())
		return path
	}
	Expect(os.Mkdir(filepath.Join(m.dir, "net.d"), 0o755)).To(Succeed())
	Expect(os.Mkdir(filepath.Join(m.dir, "tmp"), 0o755)).To(Succeed())
	conf("net.d/pods.conflist", conflist)
	nofile := strings.TrimSpace(m.Cmd("sh", "-c", "ulimit -Hn"))
	nproc := strings.TrimSpace(m.Cmd("bash", "-c", "ulimit -Hu"))
	ulimits := fmt.Sprintf(`"nofile=%[1]s:%[1]s"`, nofile)
	if nproc != "unlimited" {
		ulimits += fmt.Sprintf(`, "nproc=%[1]s:%[1]s"`, nproc)
	}
	p.env = []string{"TMPDIR=" + m.dir + "/tmp",
		"CONTAINERS_CONF=" + conf("containers.conf", fmt.Sprintf(`[containers]
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
`, ulimits, m.plugins, m.dir+"/net.d")),
		"CONTAINERS_STORAGE_CONF=" + conf("storage.conf", `[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
`)}
	p.must("load", "-q", "-i", writeImage(m.dir))
	AddReportEntry("version", p.must("--version"))
	return p
}

// create makes another network, and takes away the plugin that podman writes into
// each and that we do not have.
func (p *podman) create(name string, options ...string) {
	GinkgoHelper()
	p.must(append(append([]string{"network", "create"}, options...), name)...)
	path := filepath.Join(p.dir, "net.d", name+".conflist")
	data, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	var list object
	Expect(json.Unmarshal(data, &list)).To(Succeed())
	list["plugins"] = slices.DeleteFunc(list["plugins"].([]any), func(plugin any) bool {
		return plugin.(object)["type"] == "firewall"
	})
	Expect(os.WriteFile(path, encode(list), 0o644)).To(Succeed())
}

// try runs podman.
func (p *podman) try(args ...string) (string, error) {
	GinkgoHelper()
	out := p.Run(nstest.Program{Path: "podman", Args: args, Env: p.env})
	GinkgoWriter.Print(out.Stderr)
	if out.Exit != 0 {
		return "", fmt.Errorf("podman %s: exit %d: %s", strings.Join(args, " "), out.Exit, out.Stderr)
	}
	return strings.TrimSpace(out.Stdout), nil
}

// must runs podman, which has to succeed.
func (p *podman) must(args ...string) string {
	GinkgoHelper()
	out, err := p.try(args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// container starts a container on a network, "pods" or another.
func (p *podman) container(name string, options ...string) pods.Pod {
	GinkgoHelper()
	args := append([]string{"run", "-d", "--name", name, "--cgroup-parent", p.cgroup}, options...)
	p.must(append(args, image)...)
	return p.find(name)
}

// find returns a container by its name.
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
