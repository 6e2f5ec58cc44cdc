package image_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	butane "github.com/coreos/butane/config"
	"github.com/coreos/butane/config/common"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"sigs.k8s.io/yaml"
)

// strict reads a manifest into the type that Kubernetes' API server has for it; a key that the type does not
// have, or that is there twice, is an error.
func strict[T any](data []byte) (out T) {
	GinkgoHelper()
	Expect(yaml.UnmarshalStrict(data, &out)).To(Succeed())
	return out
}

func daemonSet() apps.DaemonSet {
	GinkgoHelper()
	return strict[apps.DaemonSet](contents("../../deploy/daemonset.yaml"))
}

func watch() apps.DaemonSet {
	GinkgoHelper()
	return strict[apps.DaemonSet](contents("../../deploy/watch.yaml"))
}

// everyValue sets each value of the chart to another one than its default.
const everyValue = `
image: images.example.org/hawser:1.2.3
imagePullSecrets: [{name: secret}]
directory: /var/lib/rancher/k3s/data/cni
only: [macvlan, vlan]
skip: [vlan]
args: [--links=copy, --force]
resources: {requests: null, limits: null}
watch: {enabled: true, args: [--conf=/etc/lists], resources: {requests: null, limits: null}}
`

// loaded is the chart with these values, which helm has looked at.
func loaded(values string) (*helm.Chart, chartutil.Values, error) {
	GinkgoHelper()
	c, err := loader.Load("../../deploy/chart")
	Expect(err).NotTo(HaveOccurred())
	Expect(c.Validate()).To(Succeed())
	all, err := chartutil.ToRenderValues(c, strict[map[string]any]([]byte(values)),
		chartutil.ReleaseOptions{Name: "any", Namespace: "kube-system"}, nil)
	return c, all, err
}

// chart is what helm makes of a template of the chart.
func chart(template, values string) []byte {
	GinkgoHelper()
	c, all, err := loaded(values)
	Expect(err).NotTo(HaveOccurred())
	out, err := engine.Engine{Strict: true}.Render(c, all)
	Expect(err).NotTo(HaveOccurred())
	Expect(out).To(HaveLen(2))
	return []byte(out["hawser/templates/"+template])
}

func rendered(template, values string) apps.DaemonSet {
	GinkgoHelper()
	return strict[apps.DaemonSet](chart(template, values))
}

// talosPod is the static pod of the patch.
func talosPod() core.Pod {
	GinkgoHelper()
	patch := strict[struct {
		Machine struct {
			Pods []core.Pod `json:"pods"`
		} `json:"machine"`
	}](contents("../../deploy/talos.yaml"))
	Expect(patch.Machine.Pods).To(HaveLen(1))
	return patch.Machine.Pods[0]
}

var _ = Describe("the manifests", Label("manifests"), func() {
	It("have a DaemonSet that selects its own pods, on every node, as a file of the image's", func() {
		d := daemonSet()
		Expect(d.TypeMeta.APIVersion + " " + d.TypeMeta.Kind).To(Equal("apps/v1 DaemonSet"))
		Expect(d.Spec.Selector.MatchLabels).To(Equal(d.Spec.Template.Labels))
		pod := d.Spec.Template.Spec
		Expect(pod.Tolerations).To(HaveExactElements(core.Toleration{Operator: core.TolerationOpExists}))
		Expect(pod.InitContainers).To(HaveExactElements(HaveField("Args", []string{"install", "--to",
			"/host/opt/cni/bin"})))
		Expect(pod.Containers).To(HaveExactElements(HaveField("Args", []string{"install", "--to",
			"/host/opt/cni/bin", "--loop"})))
	})

	DescribeTable("may write the plugins' directory and nothing else:", func(of func() core.PodSpec) {
		pod := of()
		Expect(pod.Volumes).To(HaveExactElements(HaveField("HostPath.Path", "/opt/cni/bin")))
		Expect(pod.HostPID || pod.HostIPC).To(BeFalse())
		Expect(pod.HostNetwork).To(BeTrue(), "the first pod of a node has no plugin")
		Expect(*pod.AutomountServiceAccountToken).To(BeFalse())
		Expect(*pod.SecurityContext.RunAsUser).To(BeZero())
		Expect(pod.SecurityContext.SeccompProfile.Type).To(Equal(core.SeccompProfileTypeRuntimeDefault))
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			Expect(c.Command).To(BeEmpty(), "the image has the entrypoint")
			Expect(c.SecurityContext.Privileged).To(BeNil())
			Expect(*c.SecurityContext.AllowPrivilegeEscalation).To(BeFalse())
			Expect(*c.SecurityContext.ReadOnlyRootFilesystem).To(BeTrue())
			Expect(*c.SecurityContext.Capabilities).To(Equal(core.Capabilities{
				Add: []core.Capability{"DAC_OVERRIDE"}, Drop: []core.Capability{"ALL"}}))
			Expect(c.VolumeMounts).To(HaveExactElements(And(HaveField("Name", pod.Volumes[0].Name),
				HaveField("MountPath", "/host/opt/cni/bin"))))
			Expect(c.Resources.Requests).To(And(HaveKey(core.ResourceCPU), HaveKey(core.ResourceMemory)))
			Expect(c.Resources.Limits).To(HaveKey(core.ResourceMemory))
		}
	},
		Entry("the DaemonSet", func() core.PodSpec { return daemonSet().Spec.Template.Spec }),
		Entry("the static pod of Talos", func() core.PodSpec { return talosPod().Spec }),
	)

	It("have watch see and reach what the node's own root could, and no more than it needs", func() {
		d := watch()
		Expect(d.TypeMeta.APIVersion + " " + d.TypeMeta.Kind).To(Equal("apps/v1 DaemonSet"))
		Expect(d.Name).NotTo(Equal(daemonSet().Name))
		Expect(d.Spec.Selector.MatchLabels).To(Equal(d.Spec.Template.Labels))
		Expect(d.Spec.Selector.MatchLabels).NotTo(Equal(daemonSet().Spec.Selector.MatchLabels))
		pod := d.Spec.Template.Spec
		Expect(pod.HostPID && pod.HostNetwork).To(BeTrue())
		Expect(*pod.AutomountServiceAccountToken).To(BeFalse())
		Expect(pod.Tolerations).To(HaveExactElements(core.Toleration{Operator: core.TolerationOpExists}))
		Expect(pod.Volumes).To(HaveExactElements(HaveField("HostPath.Path", "/")))
		Expect(pod.Containers).To(HaveLen(1))
		c := pod.Containers[0]
		Expect(c.Args).To(Equal([]string{"watch", "--yes", "--path=/opt/cni/bin"}))
		Expect(c.Env).To(HaveExactElements(core.EnvVar{Name: "HAWSER_ROOT", Value: c.VolumeMounts[0].MountPath}))
		Expect(c.VolumeMounts).To(HaveExactElements(HaveField("MountPropagation",
			HaveValue(Equal(core.MountPropagationHostToContainer)))))
		Expect(c.SecurityContext.Privileged).To(BeNil())
		Expect(*c.SecurityContext.ReadOnlyRootFilesystem).To(BeTrue())
		Expect(c.SecurityContext.Capabilities.Drop).To(HaveExactElements(core.Capability("ALL")))
		Expect(c.Resources.Requests).To(And(HaveKey(core.ResourceCPU), HaveKey(core.ResourceMemory)))
		Expect(c.Resources.Limits).To(HaveKey(core.ResourceMemory))
	})

	It("have a chart with watch, for who wants it", func() {
		Expect(strings.TrimSpace(string(chart("watch.yaml", "{}")))).To(BeEmpty())
		want := watch()
		Expect(rendered("watch.yaml", "watch: {enabled: true}")).To(Equal(want))
		spec := &want.Spec.Template.Spec
		spec.ImagePullSecrets = []core.LocalObjectReference{{Name: "secret"}}
		c := &spec.Containers[0]
		c.Image, c.Resources = "images.example.org/hawser:1.2.3", core.ResourceRequirements{}
		c.Args = []string{"watch", "--yes", "--path=/var/lib/rancher/k3s/data/cni", "--conf=/etc/lists"}
		Expect(rendered("watch.yaml", everyValue)).To(Equal(want))
	})

	It("have a static pod for Talos that is the DaemonSet's, without what only a scheduler reads", func() {
		pod, want := talosPod(), daemonSet().Spec.Template.Spec
		Expect(pod.APIVersion + " " + pod.Kind).To(Equal("v1 Pod"))
		Expect(pod.Spec.Priority).To(HaveValue(Equal(scheduling.SystemCriticalPriority+1000)),
			"a kubelet does not read the class")
		pod.Spec.Priority = nil // an API server computes it
		want.InitContainers, want.Tolerations, want.NodeSelector = nil, nil, nil
		Expect(pod.Spec).To(Equal(want))
	})

	It("have a patch that Talos takes", func() {
		_, err := configpatcher.LoadPatch(contents("../../deploy/talos.yaml"))
		Expect(err).NotTo(HaveOccurred())
	})

	It("have a chart that is the DaemonSet, for its default values", func() {
		Expect(rendered("daemonset.yaml", "{}")).To(Equal(daemonSet()))
	})

	It("have a chart with values for all that differs between clusters", func() {
		want := daemonSet()
		spec := &want.Spec.Template.Spec
		spec.ImagePullSecrets = []core.LocalObjectReference{{Name: "secret"}}
		spec.Volumes[0].HostPath.Path = "/var/lib/rancher/k3s/data/cni"
		mount := "/host/var/lib/rancher/k3s/data/cni"
		resources := core.ResourceRequirements{}
		for _, c := range []*core.Container{&spec.InitContainers[0], &spec.Containers[0]} {
			c.Image, c.Resources, c.VolumeMounts[0].MountPath = "images.example.org/hawser:1.2.3", resources, mount
			c.Args = []string{"install", "--to", mount, "--only=macvlan,vlan", "--skip=vlan", "--links=copy", "--force"}
		}
		spec.Containers[0].Args = append(spec.Containers[0].Args, "--loop")
		Expect(rendered("daemonset.yaml", everyValue)).To(Equal(want))
	})

	DescribeTable("have a chart that says which value is wrong:", func(values, says string) {
		_, _, err := loaded(values)
		Expect(err).To(MatchError(ContainSubstring(says)))
	},
		Entry("a misspelt key", "direktory: /opt/cni/bin", "direktory"),
		Entry("of watch", "watch: {enable: true}", "enable"),
		Entry("no path", "directory: opt/cni/bin", "directory"),
		Entry("a text for a list", "only: macvlan", "only"))

	It("have a Butane file that Butane takes, and that fetches the extension", func() {
		ignition, report, err := butane.TranslateBytes(contents("../../deploy/flatcar.bu"),
			common.TranslateBytesOptions{})
		Expect(err).NotTo(HaveOccurred(), report.String())
		Expect(report.Entries).To(BeEmpty())
		Expect(string(ignition)).To(ContainSubstring(`"path":"/etc/extensions/hawser.raw"`))
	})

	It("are for Fedora CoreOS too, with the two lines that the Butane file names", func() {
		file := string(contents("../../deploy/flatcar.bu"))
		file = strings.Replace(file, "variant: flatcar\nversion: 1.1.0\n", "variant: fcos\nversion: 1.5.0\n", 1)
		_, report, err := butane.TranslateBytes([]byte(file), common.TranslateBytesOptions{})
		Expect(err).NotTo(HaveOccurred(), report.String())
		Expect(report.Entries).To(BeEmpty())
	})
})

// named is what stands in any manifest, and by what others name it.
type named struct {
	Kind     string      `json:"kind"`
	Metadata objectNames `json:"metadata"`
}

type objectNames struct{ Name, Namespace string }

func (n named) String() string { return n.Kind + " " + n.Metadata.Namespace + "/" + n.Metadata.Name }

var _ = It("the manifests of cluster-local make each account, role and policy that one of them names",
	Label("manifests"), func() {
		made, wanted := map[string]bool{}, map[string]bool{}
		want := func(kind, namespace, name string) { wanted[kind+" "+namespace+"/"+name] = true }
		account := regexp.MustCompile(`system:serviceaccount:([a-z0-9-]+):([a-z0-9-]+)`)
		files, err := filepath.Glob("../../deploy/cluster-local/*.yaml")
		Expect(err).NotTo(HaveOccurred())
		Expect(len(files)).To(BeNumerically(">=", 4))
		for _, file := range files {
			for _, text := range strings.Split(string(contents(file)), "\n---\n") {
				var n named
				Expect(yaml.Unmarshal([]byte(text), &n)).To(Succeed())
				Expect(made).NotTo(HaveKey(n.String()))
				made[n.String()] = true
				for _, found := range account.FindAllStringSubmatch(text, -1) {
					want("ServiceAccount", found[1], found[2])
				}
				switch n.Kind {
				case "DaemonSet":
					d := strict[apps.DaemonSet]([]byte(text))
					want("ServiceAccount", d.Namespace, d.Spec.Template.Spec.ServiceAccountName)
				case "ClusterRoleBinding":
					b := strict[rbac.ClusterRoleBinding]([]byte(text))
					want(b.RoleRef.Kind, "", b.RoleRef.Name)
					for _, s := range b.Subjects {
						if s.Kind == rbac.ServiceAccountKind {
							want(s.Kind, s.Namespace, s.Name)
						}
					}
				case "ClusterRole":
					strict[rbac.ClusterRole]([]byte(text))
				case "ServiceAccount":
					strict[core.ServiceAccount]([]byte(text))
				case "ValidatingAdmissionPolicy":
					strict[admission.ValidatingAdmissionPolicy]([]byte(text))
				case "ValidatingAdmissionPolicyBinding":
					b := strict[admission.ValidatingAdmissionPolicyBinding]([]byte(text))
					want("ValidatingAdmissionPolicy", "", b.Spec.PolicyName)
				default:
					Expect(n.Kind).To(Equal("CustomResourceDefinition"))
				}
			}
		}
		Expect(wanted).NotTo(BeEmpty())
		for name := range wanted {
			Expect(made).To(HaveKey(name))
		}
	})

var _ = Describe("sysext.sh", func() {
	// build makes one as root, or by a command that makes the script somebody else's.
	build := func(dir string, as ...string) string {
		GinkgoHelper()
		Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
		Expect(os.Chmod(dir, 0o777)).To(Succeed())
		Expect(os.WriteFile(dir+"/program", []byte("#!/bin/sh\n"), 0o644)).To(Succeed())
		Expect(os.WriteFile(dir+"/sysext.sh", contents("../../deploy/sysext.sh"), 0o644)).To(Succeed())
		args := append(as, "bash", "sysext.sh", "program", "x86-64", "out.raw")
		run(dir, []string{"SOURCE_DATE_EPOCH=1767323045"}, args[0], args[1:]...)
		return dir + "/out.raw"
	}

	It("makes an extension that adds the program and its service to /usr, and is named as systemd wants", func() {
		tree := GinkgoT().TempDir() + "/tree"
		raw := build(GinkgoT().TempDir())
		run(".", nil, "unsquashfs", "-quiet", "-no-progress", "-dest", tree, raw)
		Expect(strings.Fields(run(tree, nil, "find", ".", "-type", "f", "-printf", "%P=%m\n"))).To(ConsistOf(
			"usr/bin/hawser=755",
			"usr/lib/extension-release.d/extension-release.out=644",
			"usr/lib/systemd/system/hawser-install.service=644",
			"usr/lib/systemd/system/multi-user.target.d/10-hawser-install.conf=644"))
		Expect(contents(tree + "/usr/lib/extension-release.d/extension-release.out")).To(
			BeEquivalentTo("ID=_any\nARCHITECTURE=x86-64\nEXTENSION_RELOAD_MANAGER=1\n"))
		Expect(contents(tree + "/usr/bin/hawser")).To(BeEquivalentTo("#!/bin/sh\n"))
		for line := range strings.Lines(run(".", nil, "unsquashfs", "-lln", raw)) {
			if fields := strings.Fields(line); strings.HasPrefix(fields[len(fields)-1], "squashfs-root") {
				Expect(fields[1]).To(Equal("0/0"), line)
			}
		}
	})

	It("refuses Go's name of an architecture, whose extension systemd would leave out", func() {
		cmd := exec.Command("bash", "../../deploy/sysext.sh", "../../deploy/sysext.sh", "amd64",
			GinkgoT().TempDir()+"/out.raw")
		out, err := cmd.CombinedOutput()
		Expect(err).To(MatchError("exit status 2"))
		Expect(out).To(BeEquivalentTo("sysext.sh: \"amd64\" is not an architecture name of systemd; use one of: " +
			"x86-64 arm64 arm loongarch64 ppc64-le s390x riscv64 mips64-le\n"))
	})

	It("is merged into /usr by systemd-sysext, with a service that systemd understands", func() {
		out := run(".", nil, "unshare", "--mount", "bash", "-euc", `
			mount --make-rshared / # of this namespace: systemd-sysext mounts in another, from where it spreads
			mkdir -p /var/lib/extensions
			mount -t tmpfs none /var/lib/extensions
			mount -t tmpfs none /run
			mkdir /run/systemd
			cp "$1" /var/lib/extensions/
			systemd-sysext merge 2>/run/merge || { cat /run/merge; exit 1; }
			cat /usr/bin/hawser
			systemd-analyze verify /usr/lib/systemd/system/hawser-install.service
			systemd-sysext unmerge 2>/dev/null
			[ ! -e /usr/bin/hawser ]`, "bash", build(GinkgoT().TempDir()))
		Expect(out).To(Equal("#!/bin/sh\n"))
	})

	It("gives the same bytes to somebody else", func() {
		first := build(GinkgoT().TempDir())
		var as []string
		if os.Getuid() == 0 {
			as = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
		}
		other := build(GinkgoT().TempDir(), as...)
		Expect(contents(other)).To(Equal(contents(first)))
	})
})
