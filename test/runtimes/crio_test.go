package runtimes_test

import (
	"fmt"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// newCrio starts CRI-O with a network. Its pods are namespaces without a process: it
// needs no pause container where the processes of a pod do not see each other.
func newCrio(m *machine, conflist string) *daemon {
	GinkgoHelper()
	return newCrioOf(newPodman(m, conflist))
}

// newCrioOf starts it with the images and networks of podman.
func newCrioOf(p *podman) *daemon {
	GinkgoHelper()
	nstest.NeedProgram("crio", "pinns", "conmon", "runc")
	c := &daemon{machine: p.machine, socket: filepath.Join(p.dir, "crio.sock"), netconf: filepath.Join(p.dir, "net.d")}
	p.write("policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`)
	c.program = nstest.Program{Path: "crio", Args: []string{"--config", p.write("crio.conf", c.crioConfig()),
		"--config-dir", "", "--log-level", "warn"}, Env: []string{"HAWSER_LOG=" + c.callLog()}}
	AddReportEntry("version", c.Cmd("crio", "--version"))
	c.serve()
	return c
}

// callLog is where our plugins write down their calls.
func (d *daemon) callLog() string { return filepath.Join(d.dir, "calls.log") }

// crioConfig is crio.conf.
func (d *daemon) crioConfig() string {
	path := func(program string) string {
		path, err := exec.LookPath(program)
		Expect(err).NotTo(HaveOccurred())
		return path
	}
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
`, d.dir, d.socket, path("pinns"), path("runc"), path("conmon"), image, d.netconf, d.plugins)
}
