package runtimes_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.yaml.in/yaml/v3"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// mounted is the directory in which the image installs.
const mounted = "/host/opt/cni/bin"

// installerArchive returns the image, hawser-VERSION-oci.tar.
func installerArchive() string {
	archive := os.Getenv("HAWSER_IMAGE")
	if archive == "" {
		Skip("needs the image: HAWSER_IMAGE is not set (scripts/test-runtimes.sh makes it)")
	}
	return archive
}

func installerVersion() string {
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(installerArchive()), "hawser-"), "-oci.tar")
}

// installer returns the name of the image.
func installer() string { return "localhost/hawser:" + installerVersion() }

// bare takes the plugins from the machine.
func (m *machine) bare() {
	GinkgoHelper()
	for _, name := range nstest.Must(filepath.Glob(m.plugins + "/*")) {
		Expect(os.RemoveAll(name)).To(Succeed())
	}
}

// expectInstalled looks whether each plugin is there and runs.
func (m *machine) expectInstalled() {
	GinkgoHelper()
	for _, name := range nstest.Plugins() {
		out := m.Run(nstest.Program{Path: filepath.Join(m.plugins, name), Env: []string{"CNI_COMMAND=VERSION"}})
		Expect(out.Stdout).To(ContainSubstring(`"supportedVersions"`), name)
	}
}

var _ = Describe("the image", Label("image"), func() {
	It("installs the plugins under podman, on a bare machine and again, and a container comes up with them", func() {
		archive := installerArchive()
		p := newPodman(newMachine(""), network.Conflist())
		p.bare()
		Expect(p.must("load", "-i", archive)).To(ContainSubstring(installer()))
		for range 2 {
			p.must("run", "--rm", "--network", "host", "--cgroup-parent", p.cgroup, "--read-only", "--cap-drop", "all",
				"--security-opt", "no-new-privileges", "-v", p.plugins+":"+mounted, installer())
			p.expectInstalled()
		}
		p.container("pod", "--network", "pods").ExpectUp()
		p.must("rm", "-f", "-t", "0", "pod")
	})

	It("installs the plugins by the commands of README.md", func() {
		archive := installerArchive()
		page := string(nstest.Must(os.ReadFile(filepath.Join(nstest.Root(), "README.md"))))
		load := regexp.MustCompile(`(?m)^ +podman (load -i) hawser-[\d.]+-oci\.tar$`).FindStringSubmatch(page)
		run := regexp.MustCompile(`(?m)^ +podman run (.*):/host(.*:)[\d.]+$`).FindStringSubmatch(page)
		Expect(append(load, run...)).To(HaveLen(5))
		p := newPodman(newMachine(""), network.Conflist())
		p.bare()
		p.must(append(strings.Fields(load[1]), archive)...)
		options := strings.Replace(run[1], "/opt/cni/bin", p.plugins, 1)
		Expect(options).To(ContainSubstring(p.plugins))
		p.must(append([]string{"run", "--cgroup-parent", p.cgroup},
			strings.Fields(options+":/host"+run[2]+installerVersion())...)...)
		p.expectInstalled()
	})

	DescribeTable("installs the plugins by ctr and as the DaemonSet's pod, and pods come up with them, under",
		func(dir func() string) {
			archive := installerArchive()
			c := newContainerd(newMachine(""), dir(), network.Conflist())
			c.bare()
			_, err := c.run("early")
			Expect(err).To(HaveOccurred(), "a bare machine has no pods")
			c.importImage(dir(), archive)
			c.Cmd(inDir(dir(), "ctr"), "-a", c.socket, "-n", "k8s.io", "run", "--rm", "--net-host", "--read-only",
				"--cgroup", c.machine.cgroup+"/ctr",
				"--mount", "type=bind,src="+c.plugins+",dst="+mounted+",options=rbind:rw", installer(), "ctr")
			c.expectInstalled()

			c.bare()
			first, keep := c.daemonSet("hawser-1")
			Expect(c.exited(first)).To(BeZero())
			c.expectInstalled()
			_, pod := c.start("pod")
			pod.ExpectUp()
			again, _ := c.daemonSet("hawser-2")
			Expect(c.exited(again)).To(BeZero(), "over a node with pods")
			pod.ExpectUp()
			Expect(os.Remove(c.plugins + "/bridge")).To(Succeed())
			Eventually(c.plugins+"/bridge").Should(BeARegularFile(), "the other container keeps the plugins there")
			nstest.Must(ask(c.StopContainer, &cri.StopContainerRequest{ContainerId: keep, Timeout: 60}))
			Expect(c.exited(keep)).To(BeZero())
			c.end(c.all()...)
		},
		Entry("containerd 1.6", func() string { return "" }),
		Entry("containerd 2", built),
	)
})

// daemonSet runs the pod of deploy/daemonset.yaml as a kubelet does, with the plugins' directory of the machine
// instead of /opt/cni/bin: the first container, and the other one when that has ended.
func (d *daemon) daemonSet(name string) (install, keep string) {
	GinkgoHelper()
	type container struct {
		Name string
		Args []string
	}
	var set struct {
		Spec struct {
			Template struct {
				Spec struct {
					InitContainers []container `yaml:"initContainers"`
					Containers     []container
				}
			}
		}
	}
	Expect(yaml.Unmarshal(nstest.Must(os.ReadFile("../../deploy/daemonset.yaml")), &set)).To(Succeed())
	sandbox := d.sandbox(name)
	sandbox.Hostname = "" // the machine's
	sandbox.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	answer := nstest.Must(ask(d.RunPodSandbox, &cri.RunPodSandboxRequest{Config: sandbox}))
	start := func(c container) string {
		made := nstest.Must(ask(d.CreateContainer, &cri.CreateContainerRequest{PodSandboxId: answer.PodSandboxId,
			SandboxConfig: sandbox, Config: d.confined(c.Name, c.Args)}))
		nstest.Must(ask(d.StartContainer, &cri.StartContainerRequest{ContainerId: made.ContainerId}))
		return made.ContainerId
	}
	install = start(set.Spec.Template.Spec.InitContainers[0])
	d.exited(install)
	return install, start(set.Spec.Template.Spec.Containers[0])
}

// confined is a container as the DaemonSet describes both of its own.
func (d *daemon) confined(name string, args []string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: installer()},
		Args:     args,
		LogPath:  name + ".log",
		Mounts:   []*cri.Mount{{ContainerPath: mounted, HostPath: d.plugins}},
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				RunAsUser:      &cri.Int64Value{Value: 0},
				NoNewPrivs:     true,
				ReadonlyRootfs: true,
				Capabilities: &cri.Capability{AddCapabilities: []string{"DAC_OVERRIDE"},
					DropCapabilities: []string{"ALL"}},
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE,
					Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}
}

func (d *daemon) status(container string) *cri.ContainerStatus {
	GinkgoHelper()
	return nstest.Must(ask(d.ContainerStatus, &cri.ContainerStatusRequest{ContainerId: container})).Status
}

// exited waits for the end of a container, and returns its exit status. What it has said is in the report.
func (d *daemon) exited(container string) int32 {
	GinkgoHelper()
	state := func() cri.ContainerState { return d.status(container).State }
	Eventually(state).Should(Equal(cri.ContainerState_CONTAINER_EXITED))
	if logs, err := os.ReadFile(d.status(container).LogPath); err == nil {
		AddReportEntry("install", strings.TrimSpace(string(logs)))
	}
	return d.status(container).ExitCode
}
