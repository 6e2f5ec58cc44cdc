package runtimes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// newContainerd starts containerd with a network; its programs are those in dir, or
// in PATH where that is empty.
func newContainerd(m *machine, dir, conflist string) *daemon {
	GinkgoHelper()
	c := &daemon{machine: m, socket: filepath.Join(m.dir, "c.sock"), netconf: filepath.Join(m.dir, "net.d")}
	path, config := os.Getenv("PATH"), filepath.Join(m.dir, "config.toml")
	if dir != "" {
		path = dir + ":" + path
	}
	c.program = nstest.Program{Path: inDir(dir, "containerd"), Args: []string{"-c", config, "-l", "warn"},
		Env: []string{"PATH=" + path}}
	nstest.NeedProgram(c.program.Path, "runc")
	Expect(os.Mkdir(c.netconf, 0o755)).To(Succeed())
	c.configure(conflist)
	version := m.Cmd(c.program.Path, "--version")
	Expect(os.WriteFile(config, []byte(c.containerdConfig(strings.Contains(version, " 1."))), 0o644)).To(Succeed())
	AddReportEntry("version", version)
	c.serve()
	c.importImage(dir, writeImage(m.dir))
	return c
}

// inDir is a program of a directory, or of PATH.
func inDir(dir, program string) string {
	if dir == "" {
		return program
	}
	return filepath.Join(dir, program)
}

func (d *daemon) importImage(dir, archive string) {
	GinkgoHelper()
	d.Cmd(inDir(dir, "ctr"), "-a", d.socket, "-n", "k8s.io", "images", "import", archive)
}

// reconfigure writes another network, and returns when the daemon has read it.
func (d *daemon) reconfigure(conflist string) {
	GinkgoHelper()
	d.configure(conflist)
	Eventually(d.read).Should(ContainElement(conflist))
}

// containerdConfig is config.toml. What needs more rights than a machine for tests has, or
// writes where it should not, is switched off.
func (d *daemon) containerdConfig(first bool) string {
	version, runtime, sandbox, pinned := 3, `plugins."io.containerd.cri.v1.runtime"`, "",
		fmt.Sprintf("[plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = %q\n", image)
	bin := fmt.Sprintf("bin_dirs = [%q]", d.plugins)
	if first {
		version, runtime, sandbox, pinned = 2, `plugins."io.containerd.grpc.v1.cri"`, fmt.Sprintf("sandbox_image = %q",
			image), ""
		bin = fmt.Sprintf("bin_dir = %q", d.plugins)
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
%[7]s`, version, d.socket, runtime, sandbox, d.netconf, bin, pinned)
}
