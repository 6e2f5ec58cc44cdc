package runtimes_test

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// runtimeUnderTest is a runtime that crictl and critest can talk to.
type runtimeUnderTest struct {
	*machine
	socket string
	load   func(archive string) // an image into its storage
}

// claimCgroups removes at the end of the spec, after the machine has ended, the cgroup of
// containerd: critest knows no other parent.
func claimCgroups() {
	const parent = "/k8s.io"
	there := nstest.Must(filepath.Glob(cgroups + "/*" + parent))
	if len(there) == 0 {
		DeferCleanup(removeCgroups, parent)
	}
}

// loadBusybox makes the images that critest runs, of a static busybox, under the names
// of those that it would pull.
func (r runtimeUnderTest) loadBusybox() {
	path := nstest.Must(exec.LookPath("busybox"))
	busybox := nstest.Must(os.ReadFile(path))
	files := []any{&tar.Header{Name: "bin/busybox", Mode: 0o755}, busybox,
		&tar.Header{Name: "index.html", Mode: 0o644}, []byte("hello\n")}
	for _, applet := range []string{"cat", "hostname", "sh", "sleep", "top"} {
		files = append(files, &tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox",
			Mode: 0o777}, nil)
	}
	// The usual image for pods would answer on the web server's port.
	pause := []byte("#!/bin/sh\ntrap exit TERM\nwhile :; do sleep 1000 & wait; done\n")
	r.load(pack(r.dir, image, []string{"/bin/sh", "/bin/payload"}, append(slices.Clone(files),
		&tar.Header{Name: "bin/payload", Mode: 0o755}, pause)...))
	r.expectImage(image)
	web := func(port string) []string { return []string{"/bin/sh", "-c", "exec busybox httpd -f -h / -p " + port} }
	for name, entrypoint := range map[string][]string{
		"registry.k8s.io/e2e-test-images/busybox:1.29-2":                           {"/bin/sh"},
		"registry.k8s.io/e2e-test-images/nginx:1.14-2":                             web("80"),
		"gcr.io/k8s-staging-cri-tools/hostnet-nginx-" + runtime.GOARCH + ":latest": web("12003"),
	} {
		r.load(pack(r.dir, name, entrypoint, files...))
		r.expectImage(name)
	}
}

func (r runtimeUnderTest) expectImage(name string) {
	GinkgoHelper()
	Eventually(func() (string, error) { return r.crictl("inspecti", name) }).Should(ContainSubstring(`"/bin/sh"`))
}

func (r runtimeUnderTest) crictl(args ...string) (string, error) {
	GinkgoHelper()
	config := filepath.Join(r.dir, "crictl.yaml")
	Expect(os.WriteFile(config, fmt.Appendf(nil, "runtime-endpoint: unix://%s\n", r.socket), 0o644)).To(Succeed())
	out := r.Run(nstest.Program{Path: "crictl", Args: append([]string{"--config", config}, args...)})
	if out.Exit != 0 {
		return "", fmt.Errorf("crictl %v: %s", args, out.Stderr)
	}
	return out.Stdout, nil
}

func (r runtimeUnderTest) validate() {
	out := r.Run(nstest.Program{Path: "critest", Args: []string{"--runtime-endpoint", "unix://" + r.socket,
		"--ginkgo.focus", "Networking|PodSandbox|portforward", "--ginkgo.no-color"}})
	GinkgoWriter.Print(out.Stdout, out.Stderr)
	Expect(out.Exit).To(BeZero(), out.Stdout)
	Expect(out.Stdout).To(MatchRegexp(`SUCCESS! -- 1[0-9] Passed \| 0 Failed`))
}

var _ = Describe("critest and crictl", Label("all"), func() {
	Describe("against containerd 2", func() {
		validated("containerd 2.4.2", func(plugins string) runtimeUnderTest {
			c := newContainerd(newMachine(plugins), built(), network.Conflist())
			return runtimeUnderTest{c.machine, c.socket, func(archive string) { c.importImage(built(), archive) }}
		})
	})
	Describe("against CRI-O", func() {
		validated(crioName, func(plugins string) runtimeUnderTest {
			p := newPodman(newMachine(plugins), network.Conflist())
			c := newCrioOf(p)
			return runtimeUnderTest{p.machine, c.socket, func(archive string) { p.must("load", "-q", "-i", archive) }}
		})
	})
})

// validated tells the story of critest and crictl with one runtime.
func validated(name string, start func(plugins string) runtimeUnderTest) {
	told("critest, crictl 1.36.0, "+name, func(s story, plugins string) {
		nstest.NeedProgram("crictl", "critest", "busybox")
		claimCgroups()
		r := start(plugins)
		r.loadBusybox()
		if name != crioName { // there pods of critest's need CAP_SYS_RESOURCE of the machine
			s.step("critest: Networking, PodSandbox, portforward", r.validate)
		}
		s.step("crictl: a pod with a host port is run, stopped twice and removed", func() {
			pod := filepath.Join(r.dir, "pod.json")
			Expect(os.WriteFile(pod, encode(object{
				"metadata": object{"name": "web", "namespace": "default", "uid": "1"},
				"linux": object{"cgroup_parent": r.cgroup,
					"security_context": object{"namespace_options": object{"pid": 1}}},
				"port_mappings": []object{{"container_port": 80, "host_port": 8080}}}), 0o644)).To(Succeed())
			id := nstest.Must(r.crictl("runp", pod))
			id = strings.TrimSpace(id)
			Expect(r.crictl("inspectp", id)).To(ContainSubstring(`"ip": "10.88.0.`))
			for _, verb := range []string{"stopp", "stopp", "rmp"} {
				Expect(r.crictl(verb, id)).Error().NotTo(HaveOccurred())
			}
		})
		s.step("nothing is left", func() { pods.ExpectNothingLeft(r.Host) })
	})
}
