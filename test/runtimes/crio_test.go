package runtimes_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// crio is the daemon on a machine, with a kubelet that speaks to it.
type crio struct {
	*machine
	*kubelet
	config, netconf string
	process         *exec.Cmd
}

// newCrio starts CRI-O with a network. Its pods are namespaces without a process: it
// needs no pause container where the processes of a pod do not see each other.
func newCrio(m *machine, conflist string) *crio {
	GinkgoHelper()
	return newCrioOf(newPodman(m, conflist))
}

// newCrioOf starts it with the images and networks of podman.
func newCrioOf(p *podman) *crio {
	GinkgoHelper()
	nstest.NeedProgram("crio", "pinns", "conmon", "runc")
	m := p.machine
	c := &crio{machine: m, config: filepath.Join(m.dir, "crio.conf"), netconf: filepath.Join(m.dir, "net.d")}
	c.write("policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`)
	Expect(os.WriteFile(c.config, []byte(c.settings()), 0o644)).To(Succeed())
	AddReportEntry("version", m.Cmd("crio", "--version"))
	c.launch()
	c.kubelet = newKubelet(c.socket(), m)
	c.ready()
	return c
}

func (c *crio) socket() string { return filepath.Join(c.machine.dir, "crio.sock") }

// write writes a file into the machine's directory.
func (c *crio) write(name, content string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(c.machine.dir, name), []byte(content), 0o644)).To(Succeed())
}

// settings is crio.conf.
func (c *crio) settings() string {
	GinkgoHelper()
	runc, err := exec.LookPath("runc")
	Expect(err).NotTo(HaveOccurred())
	conmon, err := exec.LookPath("conmon")
	Expect(err).NotTo(HaveOccurred())
	pinns, err := exec.LookPath("pinns")
	Expect(err).NotTo(HaveOccurred())
	return fmt.Sprintf(`[crio]
root = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
log_dir = "%[1]s/log"
version_file = "/run/crio/version"
clean_shutdown_file = ""
internal_wipe = false
[crio.api]
listen = %[2]q
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
apparmor_profile = "unconfined"
pinns_path = %[3]q
namespaces_dir = "/var/run"
hooks_dir = []
drop_infra_ctr = true
enable_criu_support = false
[crio.runtime.runtimes.runc]
runtime_path = %[4]q
runtime_root = "/run/runc"
monitor_path = %[5]q
monitor_cgroup = "pod"
[crio.image]
pause_image = %[6]q
pause_command = "/bin/payload"
signature_policy = "%[1]s/policy.json"
[crio.network]
network_dir = %[7]q
plugin_dirs = [%[8]q]
[crio.nri]
enable_nri = false
`, c.machine.dir, c.socket(), pinns, runc, conmon, image, c.netconf, c.plugins)
}

// launch starts the daemon, for the first time or again.
func (c *crio) launch() {
	GinkgoHelper()
	c.process = c.Start(nstest.Program{Path: "crio", Args: []string{"--config", c.config, "--config-dir", "",
		"--log-level", "warn"}, Env: []string{"HAWSER_LOG=" + c.log()}})
}

// log is where our plugins write down their calls.
func (c *crio) log() string { return filepath.Join(c.machine.dir, "calls.log") }

// crash kills the daemon as the kernel would. What it has called comes to its end.
func (c *crio) crash() {
	GinkgoHelper()
	Expect(c.process.Process.Kill()).To(Succeed())
	_ = c.process.Wait()
	pods.Settle(c.plugins)
}

// ready returns when pods can be started: STATUS has succeeded, and GC has ended.
func (c *crio) ready() {
	GinkgoHelper()
	Eventually(c.network).Should(Equal("ready"))
}
