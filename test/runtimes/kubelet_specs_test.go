package runtimes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.yaml.in/yaml/v3"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// node is a machine with containerd and a kubelet that has no API server: it runs the manifests of a directory.
type node struct {
	*daemon
	manifests string
}

// kubeletConfig is for a kubelet that keeps to its machine. The kernel's settings that it wants are there.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: %[1]s
containerRuntimeEndpoint: unix://%[2]s
cgroupDriver: cgroupfs
cgroupRoot: %[3]s
failCgroupV1: false
failSwapOn: false
protectKernelDefaults: true
makeIPTablesUtilChains: false
oomScoreAdj: 0
enableServer: false
authentication: {webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
resolvConf: ""
volumePluginDir: /var/lib/kubelet/volume-plugins
fileCheckFrequency: 1s
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 0%%}
`

// nodeSetup gives a machine the directories that a kubelet writes in, /opt/cni/bin ($1), the cgroup of all pods ($2),
// and the settings of the kernel that a kubelet wants to see; those of the machine of the specs stay.
const nodeSetup = `
for dir in /opt /var/log; do mount -t tmpfs tmpfs $dir; done
mkdir -p /opt/cni/bin
mount --bind "$1" /opt/cni/bin
cd /sys/fs/cgroup
for controller in $([ -e cgroup.controllers ] && echo . || echo *); do mkdir -p "$controller$2"; done
echo "vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000" | while read -r name value; do
	echo "$value" >"/run/${name##*/}"
	mount --bind "/run/${name##*/}" "/proc/sys/$name"
done`

// newNode makes a machine whose plugin directory is /opt/cni/bin, with no plugin in it.
func newNode(conflist string) *node {
	GinkgoHelper()
	nstest.NeedProgram("kubelet")
	m := newMachine("")
	m.bare()
	m.Cmd("sh", "-ec", nodeSetup, "sh", m.plugins, m.cgroup)
	n := &node{manifests: filepath.Join(m.dir, "manifests")}
	Expect(os.Mkdir(n.manifests, 0o755)).To(Succeed())
	n.daemon = launchContainerd(m, built(), conflist)
	return n
}

// startKubelet has what the containers say in the report of a spec that fails.
func (n *node) startKubelet() {
	GinkgoHelper()
	config := filepath.Join(n.dir, "kubelet.yaml")
	content := fmt.Appendf(nil, kubeletConfig, n.manifests, n.socket, n.machine.cgroup)
	Expect(os.WriteFile(config, content, 0o644)).To(Succeed())
	n.Start(nstest.Program{Path: "kubelet", Args: []string{"--config", config, "--hostname-override", "node",
		"--node-ip", pods.HostAddr}})
	DeferCleanup(func() {
		logs := n.Run(nstest.Program{Path: "sh", Args: []string{"-c", "tail -n +1 /var/log/pods/*/*/*.log"}})
		AddReportEntry("what the containers said", logs.Stdout, ReportEntryVisibilityFailureOrVerbose)
	})
}

// static is the manifest of a static pod; an empty one is removed.
func (n *node) static(name, manifest string) {
	GinkgoHelper()
	path := filepath.Join(n.manifests, name+".yaml")
	if manifest == "" {
		Expect(os.Remove(path)).To(Succeed())
		return
	}
	Expect(os.WriteFile(path, []byte(manifest), 0o644)).To(Succeed())
}

// running are the pods whose container runs.
func (n *node) running() map[string]string {
	GinkgoHelper()
	out := map[string]string{}
	answer := nstest.Must(ask(n.ListContainers, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}}))
	for _, c := range answer.Containers {
		out[strings.TrimSuffix(c.Labels["io.kubernetes.pod.name"], "-node")] = c.PodSandboxId
	}
	return out
}

// staticPod is the manifest of the pod in deploy/talos.yaml, with the version.
func staticPod() string {
	GinkgoHelper()
	var patch struct{ Machine struct{ Pods []any } }
	Expect(yaml.Unmarshal(nstest.Must(os.ReadFile("../../deploy/talos.yaml")), &patch)).To(Succeed())
	Expect(patch.Machine.Pods).To(HaveLen(1))
	manifest := nstest.Must(yaml.Marshal(patch.Machine.Pods[0]))
	return strings.ReplaceAll(string(manifest), "localhost/hawser:VERSION", installer())
}

const ordinaryPod = `
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: app, image: "` + image + `"}]}
`

var _ = Describe("a kubelet with containerd 2", Label("image", "all"), func() {
	It("runs the static pod of deploy/, which installs the plugins, and a pod comes up with them", func() {
		archive := installerArchive()
		n := newNode(network.Conflist())
		n.importImage(built(), archive)
		n.startKubelet()
		n.static("pod", ordinaryPod)
		Expect(n.network()).To(HavePrefix("not ready"))
		n.static("hawser", staticPod())
		Eventually(n.running).Should(And(HaveKey("hawser"), HaveKey("pod")))
		n.expectInstalled()
		pod := n.find(n.running()["pod"])
		pod.ExpectUp()

		By("again, over the running node")
		n.static("hawser", "")
		Eventually(n.running).ShouldNot(HaveKey("hawser"))
		Expect(os.Remove(n.plugins + "/bridge")).To(Succeed())
		n.static("hawser", staticPod())
		Eventually(n.running).Should(HaveKey("hawser"))
		Eventually(n.plugins + "/bridge").Should(BeARegularFile())
		n.expectInstalled()
		pod.ExpectUp()

		By("away")
		n.static("hawser", "")
		n.static("pod", "")
		Eventually(n.running).Should(BeEmpty())
		Eventually(func() []string { return pods.Leases(n.Host) }).Should(BeEmpty())
		n.end(n.all()...)
		pods.ExpectNothingLeft(n.Host)
	})
})
