package runtimes_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// containerd is the daemon on a machine, with a kubelet that speaks to it.
type containerd struct {
	*machine
	*kubelet
	path    string // PATH of the daemon
	daemon  string
	config  string
	netconf string // directory of network configurations
	process *exec.Cmd
}

// newContainerd starts containerd with a network; its programs are those in dir, or
// in PATH where that is empty.
func newContainerd(m *machine, dir, conflist string) *containerd {
	GinkgoHelper()
	c := &containerd{machine: m, path: os.Getenv("PATH"), daemon: "containerd",
		config: filepath.Join(m.dir, "config.toml"), netconf: filepath.Join(m.dir, "net.d")}
	if dir != "" {
		c.path, c.daemon = dir+":"+c.path, filepath.Join(dir, "containerd")
	}
	nstest.NeedProgram(c.daemon, "runc")
	Expect(os.Mkdir(c.netconf, 0o755)).To(Succeed())
	c.configure(conflist)
	version := m.Cmd(c.daemon, "--version")
	Expect(os.WriteFile(c.config, []byte(c.settings(strings.Contains(version, " 1."))), 0o644)).To(Succeed())
	AddReportEntry("version", version)
	c.start()
	c.kubelet = newKubelet(c.socket(), m)
	c.ready()
	c.Cmd("ctr", "-a", c.socket(), "-n", "k8s.io", "images", "import", writeImage(m.dir))
	return c
}

func (c *containerd) socket() string { return filepath.Join(c.dir(), "c.sock") }

func (c *containerd) dir() string { return c.machine.dir }

// configure writes the network. Not by a rename: containerd 1.6 would not notice.
func (c *containerd) configure(conflist string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(c.netconf, "10-pods.conflist"), []byte(conflist), 0o644)).To(Succeed())
}

// reconfigure writes another network, and returns when the daemon has read it.
func (c *containerd) reconfigure(conflist string) {
	GinkgoHelper()
	c.configure(conflist)
	Eventually(c.read).Should(ContainElement(conflist))
}

// settings is config.toml. What needs more rights than a machine for tests has, or
// writes where it should not, is switched off.
func (c *containerd) settings(first bool) string {
	version, runtime, sandbox, pinned := 3, `plugins."io.containerd.cri.v1.runtime"`, "",
		fmt.Sprintf("[plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = %q\n", image)
	bin := fmt.Sprintf("bin_dirs = [%q]", c.plugins)
	if first {
		version, runtime, sandbox, pinned = 2, `plugins."io.containerd.grpc.v1.cri"`, fmt.Sprintf("sandbox_image = %q",
			image), ""
		bin = fmt.Sprintf("bin_dir = %q", c.plugins)
	}
	return fmt.Sprintf(`version = %[1]d
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile"]
[grpc]
  address = %[2]q
[%[3]s]
  disable_apparmor = true
  restrict_oom_score_adj = true
  %[4]s
[%[3]s.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[%[3]s.cni]
  max_conf_num = 2
  conf_dir = %[5]q
  %[6]s
%[7]s`, version, c.socket(), runtime, sandbox, c.netconf, bin, pinned)
}

// start starts the daemon, for the first time or again.
func (c *containerd) start() {
	GinkgoHelper()
	c.process = c.Start(nstest.Program{Path: c.daemon, Args: []string{"-c", c.config, "-l", "warn"},
		Env: []string{"PATH=" + c.path}})
}

// crash kills the daemon as the kernel would. What it has called comes to its end.
func (c *containerd) crash() {
	GinkgoHelper()
	Expect(c.process.Process.Kill()).To(Succeed())
	_ = c.process.Wait()
	pods.Settle(c.plugins)
}

// ready returns when pods can be started.
func (c *containerd) ready() {
	GinkgoHelper()
	Eventually(c.network).Should(Equal("ready"))
}

// Cmd runs a program on the machine, those of the daemon first.
func (c *containerd) Cmd(name string, args ...string) string {
	GinkgoHelper()
	if dir := filepath.Dir(c.daemon); dir != "." && name == "ctr" {
		name = filepath.Join(dir, name)
	}
	return c.machine.Cmd(name, args...)
}
