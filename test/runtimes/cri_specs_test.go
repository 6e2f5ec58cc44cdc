package runtimes_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/metadata"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// Containerd 1.6 refuses a list whose cniVersion is 1.1.0; newer libraries choose from cniVersions.
var network = pods.Network{Versions: `["0.4.0", "1.0.0", "1.1.0"]`}

// built is the directory of a containerd 2 that the script has built.
func built() string {
	dir := os.Getenv("HAWSER_CONTAINERD")
	if dir == "" {
		Skip("needs containerd 2: HAWSER_CONTAINERD is not set (scripts/test-runtimes.sh builds it)")
	}
	return dir
}

var _ = Describe("containerd 1.6", func() { underContainerd("containerd 1.6.20", func() string { return "" }) })

var _ = Describe("containerd 2", func() { underContainerd("containerd 2.4.2", built) })

// livingPods is the life of two pods under containerd.
func livingPods(s story, plugins, dir string, v6, ptp bool) {
	n := network
	n.IPv6, n.PTP = v6, ptp
	c := newContainerd(newMachine(plugins), dir, n.Conflist())
	first, _ := c.start("first", tcp(8080, 80)) // what pods share is there from now on
	c.end(first)
	before, w := c.state(), c.traffic("8080", "8081")
	w.SeesNeighbours = ptp && !s.theirs
	var client, server sandboxed
	s.step("pods: addresses, sysctl, traffic, host ports on TCP, UDP and one address", func() {
		client, server = c.startTwo()
		client.ExpectUp()
		server.ExpectUp()
		w.Expect(client.Pod, server.Pod)
	})
	s.step("a pod with a taken host port fails, and names the port", func() {
		greedy, err := c.run("greedy", tcp(8080, 80))
		if err == nil {
			c.end(greedy)
		}
		Expect(err).To(MatchError(ContainSubstring("8080")))
		if !s.theirs {
			Expect(err).To(MatchError(ContainSubstring(server.id)), "by whom it is taken")
		}
		server.ExpectUp()
	})
	s.step("killed and started again with live pods", func() {
		c.crash()
		server.ExpectUp()
		c.launch()
		c.ready()
		Expect(c.all()).To(ContainElements(client.id, server.id))
		w.Expect(client.Pod, server.Pod)
	})
	s.step("pods are stopped and removed twice, nothing is left", func() {
		ids := c.all()
		for _, do := range []func(string) error{c.stop, c.stop, c.remove, c.remove} {
			for _, id := range ids {
				Expect(do(id)).To(Succeed())
			}
		}
		pods.ExpectNothingLeft(c.Host)
		if !s.theirs {
			Expect(c.state()).To(Equal(before))
		}
	})
}

func underContainerd(name string, dir func() string) {
	Describe("pods with IPv4 and IPv6", Label("runtimes"), func() {
		told(name, func(s story, plugins string) { livingPods(s, plugins, dir(), true, false) })
	})

	DescribeTable("has pods that live as those, with", Label("runtimes"), func(v6, ptp bool) {
		livingPods(story{client: name + " again"}, "", dir(), v6, ptp)
	},
		Entry("IPv4", false, false),
		Entry("ptp, IPv4 and IPv6", true, true),
	)

	It("attaches pods to two networks at the same time, each with the host ports", func() {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		second := strings.NewReplacer(`"pods"`, `"second"`, "cni0", "cni1", "10.88.0.",
			"10.89.0.").Replace(network.Conflist())
		Expect(os.WriteFile(filepath.Join(c.netconf, "second.conflist"), []byte(second), 0o644)).To(Succeed())
		Eventually(c.read).Should(ContainElement(second))
		const many = 5
		ids := make([]string, many)
		nstest.AtOnce(many, func(i int) {
			var err error
			ids[i], err = c.run(fmt.Sprint("pod", i), tcp(int32(9000+i), 80), udp(int32(9000+i), 80), tcp(0, 81))
			Expect(err).NotTo(HaveOccurred())
		})
		for i, id := range ids {
			pod := c.find(id)
			pod.ExpectUp()
			Expect(pod.Cmd("ip", "-4", "-o", "addr", "show", "dev", "eth1")).To(ContainSubstring(" 10.89.0."))
			// Through whichever network came first. A UDP server that answers from the
			// address of its default route would need that to be the same.
			reach := func() (string, error) { return c.outside.Ask("tcp", fmt.Sprint("192.0.2.1:", 9000+i)) }
			Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		}
		nstest.AtOnce(many, func(i int) { c.end(ids[i]) })
		pods.ExpectNothingLeft(c.Host)
		Expect(c.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.89.0."))
	})

	It("gives addresses and ports of pods from before a reboot to new ones, and deletes the old afterwards", func() {
		n := network
		n.Last = "10.88.0.4"
		c := newContainerd(newMachine(""), dir(), n.Conflist())
		old, _ := c.start("old", tcp(8080, 80))
		c.crash()
		c.reboot()
		c.launch()
		c.ready()
		Expect(c.all()).To(ConsistOf(old))
		id, client := c.start("client")
		_, server := c.start("new", tcp(8080, 80), udp(8080, 80))
		c.traffic("8080", "").Expect(client, server)
		c.end(old)
		c.traffic("8080", "").Expect(client, server)
		Expect(c.stop(id)).To(Succeed())
		_, another := c.start("another")
		another.ExpectUp()
		c.end(c.all()...)
		pods.ExpectNothingLeft(c.Host)
	})

	It("is killed in the middle of ADDs, and GC collects what it forgot", Label("runtime-killed"), func() {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { _, _ = c.run(fmt.Sprint("pod", i), tcp(int32(9000+i), 80)) })
		}
		Eventually(func() []string { return pods.Leases(c.Host) }).ShouldNot(BeEmpty())
		c.crash()
		wg.Wait()
		c.launch()
		c.ready()
		c.end(c.all()...)
		AddReportEntry("addresses that containerd forgot", strings.Join(pods.Leases(c.Host), " "))
		c.collect()
		pods.ExpectNothingLeft(c.Host)
	})
}

var _ = Describe("the node of containerd 2", func() {
	It("passes its trace to ADD and DEL of each plugin, and none to STATUS", Label("runtimes"), func() {
		m := newMachine("")
		log := filepath.Join(m.dir, "calls.log")
		// containerd traces, although its spans reach no collector.
		GinkgoT().Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:4318")
		GinkgoT().Setenv("HAWSER_LOG", log)
		c := newContainerd(m, built(), network.Conflist())
		const trace = "0af7651916cd43dd8448eb211c80319c"
		ctx := metadata.AppendToOutgoingContext(context.Background(), "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
		pod := nstest.Must(c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: c.sandbox("pod")}))
		nstest.Must(c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.PodSandboxId}))
		c.end(pod.PodSandboxId)
		parents := map[string][]string{}
		for line := range strings.Lines(string(nstest.Must(os.ReadFile(log)))) {
			var call struct{ Verb, TraceParent string }
			Expect(json.Unmarshal([]byte(line), &call)).To(Succeed())
			parents[call.Verb] = append(parents[call.Verb], call.TraceParent)
		}
		Expect(parents["ADD"]).To(And(Not(BeEmpty()), HaveEach(HavePrefix("00-"+trace+"-"))))
		Expect(parents["DEL"]).To(ContainElement(HavePrefix("00-" + trace + "-")))
		Expect(parents["STATUS"]).To(And(Not(BeEmpty()), HaveEach(BeEmpty())))
	})

	It("is not ready while a range is full or a bridge's name taken, and says why", func() {
		n := network
		n.Last = "10.88.0.2"
		c := newContainerd(newMachine(""), built(), n.Conflist())
		c.start("only")
		Eventually(c.network).Should(And(HavePrefix("not ready: "), ContainSubstring("10.88.0.2")))
		_, err := c.run("second")
		Expect(err).To(MatchError(ContainSubstring("10.88.0.2")))
		c.end(c.all()...)
		Eventually(c.network).Should(Equal("ready"))

		c.Cmd("ip", "link", "del", "cni0")
		c.Cmd("ip", "link", "add", "cni0", "type", "veth", "peer", "name", "other")
		Eventually(c.network).Should(And(HavePrefix("not ready: "), ContainSubstring(`bridge "cni0"`)))
		c.Cmd("ip", "link", "del", "cni0")
		Eventually(c.network).Should(Equal("ready"))
		pods.ExpectNothingLeft(c.Host)
	})
})

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
	// crictl waits two seconds, of which a busy machine needs more.
	text := fmt.Sprintf("runtime-endpoint: unix://%s\ntimeout: 30\n", r.socket)
	Expect(os.WriteFile(config, []byte(text), 0o644)).To(Succeed())
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
	told("critest, crictl 1.37.0, "+name, func(s story, plugins string) {
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

// image is the name of the one image that every container is of.
const image = "localhost/payload:1"

type object = map[string]any

// compiled is the payload, once in a run.
var compiled = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "payload-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir+"/payload",
		"./payload")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(dir + "/payload")
})

func writeImage(dir string) string {
	GinkgoHelper()
	payload := nstest.Must(compiled())
	return pack(dir, image, []string{"/bin/payload"}, &tar.Header{Name: "bin/payload", Mode: 0o755}, payload)
}

// pack writes an image, an OCI layout that is a docker archive too, as an archive into
// dir, and returns its path. Its files are pairs of a header and a content.
func pack(dir, name string, entrypoint []string, files ...any) string {
	GinkgoHelper()
	layer := archive(append([]any{
		&tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
		&tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
		&tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/:/bin/sh\n"),
		&tar.Header{Name: "proc/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
		&tar.Header{Name: "sys/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
		&tar.Header{Name: "dev/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
	}, files...)...)
	var parts []any
	blob := func(mediaType string, content []byte) object {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		parts = append(parts, &tar.Header{Name: "blobs/sha256/" + sum, Mode: 0o644}, content)
		return object{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(content)}
	}
	path := func(blob object) string { return "blobs/sha256/" + blob["digest"].(string)[len("sha256:"):] }
	l := blob("application/vnd.oci.image.layer.v1.tar", layer)
	c := blob("application/vnd.oci.image.config.v1+json", encode(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": entrypoint, "WorkingDir": "/", "Env": []string{"PATH=/bin"}},
		"rootfs": object{"type": "layers", "diff_ids": []any{l["digest"]}},
	}))
	m := blob("application/vnd.oci.image.manifest.v1+json", encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": c, "layers": []any{l},
	}))
	m["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
	m["annotations"] = object{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	parts = append(parts,
		&tar.Header{Name: "index.json", Mode: 0o644}, encode(object{"schemaVersion": 2, "manifests": []any{m}}),
		&tar.Header{Name: "oci-layout", Mode: 0o644}, encode(object{"imageLayoutVersion": "1.0.0"}),
		&tar.Header{Name: "manifest.json", Mode: 0o644}, encode([]any{object{
			"Config": path(c), "RepoTags": []string{name}, "Layers": []string{path(l)}}}),
	)
	out := filepath.Join(dir, fmt.Sprintf("image-%x.tar", sha256.Sum256([]byte(name))))
	Expect(os.WriteFile(out, archive(parts...), 0o644)).To(Succeed())
	return out
}

func archive(files ...any) []byte {
	GinkgoHelper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		h := files[i].(*tar.Header)
		content, _ := files[i+1].([]byte)
		h.Size = int64(len(content))
		Expect(w.WriteHeader(h)).To(Succeed())
		nstest.Must(w.Write(content))
	}
	Expect(w.Close()).To(Succeed())
	return b.Bytes()
}

func encode(v any) []byte {
	GinkgoHelper()
	data := nstest.Must(json.Marshal(v))
	return data
}
