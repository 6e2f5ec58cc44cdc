package runtimes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// daemon is a runtime on a machine, with a kubelet that speaks to it.
type daemon struct {
	*machine
	*kubelet
	program nstest.Program
	socket  string
	netconf string // directory of network configurations
	process *exec.Cmd
}

// serve starts the daemon, and returns when it answers.
func (d *daemon) serve() {
	GinkgoHelper()
	d.launch()
	d.kubelet = newKubelet(d.socket, d.machine)
	Eventually(func() error { _, _, err := d.condition("NetworkReady"); return err }).Should(Succeed())
}

// launch starts the daemon, for the first time or again.
func (d *daemon) launch() {
	GinkgoHelper()
	d.process = d.Start(d.program)
}

// crash kills the daemon as the kernel would. What it has called comes to its end.
func (d *daemon) crash() {
	GinkgoHelper()
	Expect(d.process.Process.Kill()).To(Succeed())
	_ = d.process.Wait()
	pods.Settle(d.plugins)
}

// ready returns when pods can be started: STATUS, where the runtime calls it, has succeeded, and GC has ended.
func (d *daemon) ready() {
	GinkgoHelper()
	Eventually(d.network).Should(Equal("ready"))
}

func (d *daemon) restart() {
	GinkgoHelper()
	d.crash()
	d.launch()
	d.ready()
}

// configure writes the network. Not by a rename: containerd 1.6 would not notice.
func (d *daemon) configure(conflist string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(d.netconf, "pods.conflist"), []byte(conflist), 0o644)).To(Succeed())
}

// sandboxed is a pod and the runtime's name for it.
type sandboxed struct {
	pods.Pod
	id string
}

// startTwo starts a client and a server with host ports.
func (d *daemon) startTwo() (client, server sandboxed) {
	GinkgoHelper()
	client.id, client.Pod = d.start("client")
	server.id, server.Pod = d.start("server", tcp(8080, 80), udp(8080, 80), on(pods.HostAddr, tcp(8081, 80)),
		on(pods.HostAddr6, tcp(8081, 80)))
	return client, server
}

// expectChecked runs CHECK of both.
func (d *daemon) expectChecked(conflist string, client, server sandboxed) {
	GinkgoHelper()
	Expect(d.check(conflist, client.id, client.Pod)).To(Succeed())
	Expect(d.check(conflist, server.id, server.Pod)).To(Succeed())
}

// newContainerd starts containerd with a network, and returns when pods can be started.
func newContainerd(m *machine, dir, conflist string) *daemon {
	GinkgoHelper()
	c := launchContainerd(m, dir, conflist)
	c.ready()
	return c
}

// launchContainerd starts containerd, where there may be no plugin yet; its programs are those in dir, or in PATH
// where that is empty.
func launchContainerd(m *machine, dir, conflist string) *daemon {
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

// kubelet asks a runtime for pods over CRI, as kubelet does.
type kubelet struct {
	cri.RuntimeServiceClient
	logs   string // a directory
	cgroup string // parent of the pods'
}

func newKubelet(socket string, m *machine) *kubelet {
	conn := nstest.Must(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))
	DeferCleanup(conn.Close)
	return &kubelet{RuntimeServiceClient: cri.NewRuntimeServiceClient(conn), logs: m.dir + "/log", cgroup: m.cgroup}
}

// ask makes a call of CRI, which has two minutes.
func ask[Q, A any](call func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(2*time.Minute))
	defer cancel()
	return call(ctx, request)
}

// condition is the runtime's opinion of NetworkReady or RuntimeReady.
func (k *kubelet) condition(kind string) (bool, string, error) {
	answer, err := ask(k.Status, &cri.StatusRequest{})
	if err != nil {
		return false, "", err
	}
	for _, c := range answer.Status.Conditions {
		if c.Type == kind {
			return c.Status, c.Message, nil
		}
	}
	return false, "", fmt.Errorf("no condition %s", kind)
}

// network reads NetworkReady as one text, which is "ready" when it is true.
func (k *kubelet) network() string {
	switch ready, message, err := k.condition("NetworkReady"); {
	case err != nil:
		return err.Error()
	case ready:
		return "ready"
	default:
		return "not ready: " + message
	}
}

// read are the network configurations as the runtime has read them.
func (k *kubelet) read() ([]string, error) {
	answer, err := ask(k.Status, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return nil, err
	}
	var info struct {
		Networks []struct{ Config struct{ Source string } }
	}
	err = json.Unmarshal([]byte(answer.Info["cniconfig"]), &info)
	var sources []string
	for _, n := range info.Networks {
		sources = append(sources, n.Config.Source)
	}
	return sources, err
}

func (k *kubelet) sandbox(name string, ports ...*cri.PortMapping) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: "uid-" + name, Namespace: "default"},
		Hostname:     name,
		LogDirectory: k.logs,
		DnsConfig:    &cri.DNSConfig{Servers: []string{"192.0.2.53"}},
		PortMappings: ports,
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: k.cgroup, SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER}}},
	}
}

func (k *kubelet) run(name string, ports ...*cri.PortMapping) (string, error) {
	answer, err := ask(k.RunPodSandbox, &cri.RunPodSandboxRequest{Config: k.sandbox(name, ports...)})
	if err != nil {
		return "", err
	}
	return answer.PodSandboxId, nil
}

func (k *kubelet) stop(id string) error {
	_, err := ask(k.StopPodSandbox, &cri.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

func (k *kubelet) remove(id string) error {
	_, err := ask(k.RemovePodSandbox, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

func (k *kubelet) all() []string {
	GinkgoHelper()
	answer := nstest.Must(ask(k.ListPodSandbox, &cri.ListPodSandboxRequest{}))
	var ids []string
	for _, s := range answer.Items {
		ids = append(ids, s.Id)
	}
	return ids
}

func (k *kubelet) start(name string, ports ...*cri.PortMapping) (string, pods.Pod) {
	GinkgoHelper()
	id := nstest.Must(k.run(name, ports...))
	return id, k.find(id)
}

func (k *kubelet) find(id string) pods.Pod {
	GinkgoHelper()
	answer := nstest.Must(ask(k.PodSandboxStatus, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true}))
	_, rest, found := strings.Cut(answer.Info["info"], `"type":"network","path":"`)
	Expect(found).To(BeTrue(), answer.Info["info"])
	path, _, _ := strings.Cut(rest, `"`)
	addrs := []string{answer.Status.Network.Ip}
	for _, ip := range answer.Status.Network.AdditionalIps {
		addrs = append(addrs, ip.Ip)
	}
	// The runtime's way to it may lead through a link.
	return pods.At(strings.Replace(path, "/var/run/", "/run/", 1), addrs...)
}

func (k *kubelet) end(ids ...string) {
	GinkgoHelper()
	for _, id := range ids {
		Expect(k.stop(id)).To(Succeed())
		Expect(k.remove(id)).To(Succeed())
	}
}

func tcp(host, container int32) *cri.PortMapping {
	return &cri.PortMapping{Protocol: cri.Protocol_TCP, HostPort: host, ContainerPort: container}
}

func udp(host, container int32) *cri.PortMapping {
	return &cri.PortMapping{Protocol: cri.Protocol_UDP, HostPort: host, ContainerPort: container}
}

func on(address string, p *cri.PortMapping) *cri.PortMapping {
	p.HostIp = address
	return p
}
