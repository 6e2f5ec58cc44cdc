package runtimes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// nerdctl is nerdctl on a machine with containerd 2. Hooks of a container call the plugins.
type nerdctl struct {
	*daemon
	options []string
}

func newNerdctl(m *machine) *nerdctl {
	GinkgoHelper()
	nstest.NeedProgram("nerdctl")
	n := &nerdctl{daemon: newContainerd(m, built(), network.Conflist())}
	n.options = []string{"--address", n.socket, "--cni-path", n.plugins, "--cni-netconfpath", n.netconf,
		"--snapshotter", "native", "--cgroup-manager", "cgroupfs", "--data-root", filepath.Join(n.dir, "nerdctl")}
	m.Cmd(inDir(built(), "ctr"), "-a", n.socket, "-n", "default", "images", "import", writeImage(m.dir))
	return n
}

func (n *nerdctl) try(args ...string) (string, error) {
	GinkgoHelper()
	out := n.Run(nstest.Program{Path: "nerdctl", Args: append(n.options[:len(n.options):len(n.options)], args...),
		Env: n.program.Env})
	GinkgoWriter.Print(out.Stderr)
	if out.Exit != 0 {
		return "", fmt.Errorf("nerdctl %s: exit %d: %s", strings.Join(args, " "), out.Exit, out.Stderr)
	}
	return strings.TrimSpace(out.Stdout), nil
}

func (n *nerdctl) must(args ...string) string {
	GinkgoHelper()
	out := nstest.Must(n.try(args...))
	return out
}

// container starts one; id is its name for CNI.
func (n *nerdctl) container(name string, options ...string) (id string, pod pods.Pod, err error) {
	GinkgoHelper()
	args := append([]string{"run", "-d", "--name", name, "--cgroup-parent", n.machine.cgroup}, options...)
	if _, err = n.try(append(args, image)...); err != nil {
		n.must("rm", "-f", name)
		return "", pod, err
	}
	inspect := func(format string) string { return n.must("inspect", "--format", format, name) }
	address := inspect("{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
	return "default-" + inspect("{{.ID}}"), pods.At("/proc/"+inspect("{{.State.Pid}}")+"/ns/net", address, ""), nil
}

var _ = Describe("nerdctl", Label("all"), func() {
	It("makes a network, runs containers in it, and leaves nothing", Label("runtimes"), func() {
		n := newNerdctl(newMachine(""))
		Expect(os.Remove(filepath.Join(n.netconf, "pods.conflist"))).To(Succeed(), "nerdctl allows no overlap")
		n.must("network", "create", "made", "--subnet", "10.88.0.0/16")
		_, _, err := n.container("first", "--net", "made", "-p", "8080:80/tcp")
		Expect(err).NotTo(HaveOccurred())
		n.must("rm", "-f", "first")
		before := n.state()
		_, client, err := n.container("client", "--net", "made")
		Expect(err).NotTo(HaveOccurred())
		_, server, err := n.container("server", "--net", "made", "-p", "8080:80/tcp", "-p", "8080:80/udp")
		Expect(err).NotTo(HaveOccurred())
		n.traffic("8080", "").Expect(client, server)
		_, _, err = n.container("greedy", "--net", "made", "-p", "8080:80/tcp")
		Expect(err).To(MatchError(ContainSubstring("8080")))
		n.must("restart", "-t", "0", "server")
		n.must("stop", "-t", "0", "client")
		n.must("rm", "-f", "client", "server")
		pods.ExpectGone(n.Host)
		Expect(n.state()).To(Equal(before))
	})

	It("has containers at which the node's tool looks", Label("tool-runtimes"), func() {
		n := newNerdctl(newMachine(""))
		n.Cmd("sh", "-ec", `mkdir -p /run/containerd; ln -sfn "$0" /run/containerd/containerd.sock`, n.socket)
		tooled{machine: n.machine, env: n.program.Env, source: "containerd", nameless: true,
			start: func(name string, serves bool) (string, pods.Pod, error) {
				options := []string{"--net", "pods"}
				if serves {
					options = append(options, "-p", "8080:80/tcp", "-p", "8080:80/udp")
				}
				return n.container(name, options...)
			},
			lose: func(id string) {
				_, id, _ = strings.Cut(id, "-")
				ctr := []string{inDir(built(), "ctr"), "-a", n.socket, "-n", "default"}
				_ = n.Run(nstest.Program{Path: ctr[0], Args: append(ctr[1:], "tasks", "rm", "-f", id)})
				n.Cmd(ctr[0], append(ctr[1:], "containers", "rm", id)...)
			}}.expectTool()
	})
})
