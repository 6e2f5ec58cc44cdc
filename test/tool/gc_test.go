package tool_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

type collection struct {
	Source      string
	Silent      []string
	Attachments []struct {
		ContainerID, Why, Kept, Error string
		Done                          bool
	}
}

// gcNode is a node with plugins of its own directory and runtimes' programs that the spec writes.
type gcNode struct {
	*machine
	plugins, bin string
}

// newGCNode makes one whose addresses nobody else has: a container is known by its address, too.
func newGCNode(plugins, subnet string) gcNode {
	GinkgoHelper()
	g := gcNode{plugins: GinkgoT().TempDir(), bin: GinkgoT().TempDir()}
	for _, name := range []string{"bridge", "portmap", "firewall", "host-local"} {
		Expect(os.WriteFile(filepath.Join(g.plugins, name), nstest.Must(os.ReadFile(filepath.Join(plugins, name))),
			0o755)).To(Succeed())
	}
	g.machine = newMachine(g.plugins, strings.ReplaceAll(usual, "10.88.0", subnet))
	return g
}

// runtime makes a socket of containerd, and a crictl that lists these pods.
func (g gcNode) runtime(ids ...string) {
	GinkgoHelper()
	g.Cmd("sh", "-c", "mkdir -p /run/containerd; touch /run/containerd/containerd.sock")
	items := []map[string]string{}
	for _, id := range ids {
		items = append(items, map[string]string{"id": id})
	}
	pods := string(nstest.Must(json.Marshal(map[string]any{"items": items})))
	g.program("crictl", "echo '"+pods+"'")
	g.program("podman", "echo '[]'")
	g.program("ctr", `case "$*" in *namespaces*) echo k8s.io;; esac`)
}

func (g gcNode) program(name, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(g.bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)).To(Succeed())
}

func (g gcNode) gc(args ...string) (c collection, exit int) {
	GinkgoHelper()
	out := g.Run(nstest.Program{Path: nstest.Build("hawser"), Args: append([]string{"gc", "--json", "--path",
		"/opt/cni/bin"}, args...), Env: []string{"PATH=" + g.bin + ":" + os.Getenv("PATH")}})
	Expect(json.Unmarshal([]byte(out.Stdout), &c)).To(Succeed(), out.Stdout+out.Stderr)
	return c, out.Exit
}

var _ = Describe("hawser gc", Label("tool-gc"), func() {
	lives, gone := strings.Repeat("a", 64), strings.Repeat("b", 64)
	now := []string{"--older", "0s"}

	DescribeTable("removes what is left of a sandbox that no runtime knows, although a chained plugin is missing",
		func(plugins func() string, subnet string) { // containerd#12130: the mounted namespace stays, and the cache
			g := newGCNode(plugins(), subnet)
			g.runtime(lives)
			g.up(newPod(lives, "web-0", hostPort(8080, 80)))
			g.up(newPod(gone, "web-1"))
			full := g.Snapshot() + g.Files("/var/lib/cni")
			c, exit := g.gc(now...)
			Expect(exit).To(BeZero())
			Expect(c.Source).To(ContainSubstring("crictl /run/containerd/containerd.sock"))
			Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone), HaveField("Done", false),
				HaveField("Why", ContainSubstring("no runtime knows")))))
			Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", lives),
				HaveField("Kept", "crictl knows the container"))))
			Expect(g.Snapshot()+g.Files("/var/lib/cni")).To(Equal(full), "it was a dry run")
			c, _ = g.gc("--yes")
			Expect(c.Attachments).To(HaveEach(HaveField("Why", "")), "an ADD may be under way")

			Expect(os.Rename(filepath.Join(g.plugins, "portmap"), filepath.Join(g.bin, "portmap"))).To(Succeed())
			c, exit = g.gc(append(now, "--yes")...)
			Expect(exit).To(Equal(1))
			missing := ContainSubstring(`plugin "portmap" is in none`)
			Expect(c.Attachments).To(ContainElement(HaveField("Error", missing)))
			Expect(g.Files("/var/lib/cni/networks/pods")).NotTo(ContainSubstring(gone), "the address is free")
			Expect(os.Rename(filepath.Join(g.bin, "portmap"), filepath.Join(g.plugins, "portmap"))).To(Succeed())
			c, exit = g.gc(append(now, "--yes")...)
			Expect(exit).To(BeZero())
			Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone), HaveField("Done", true))))
			Expect(g.Files("/var/lib/cni/results")).NotTo(ContainSubstring(gone))
			Expect(g.Files("/var/lib/cni/results")).To(ContainSubstring(lives))
			c, _ = g.gc(append(now, "--yes")...)
			Expect(c.Attachments).To(HaveEach(HaveField("ContainerID", lives)))
		},
		Entry("of ours", ours, "10.101.1"),
		Entry("of the reference", func() string { return nstest.Newest().Dir() }, "10.101.2"))

	It("never takes a container that lives, and takes it once nobody holds its namespace", func() {
		g := newGCNode(ours(), "10.101.3")
		p := g.up(newPod(gone, "web-0", hostPort(8080, 80)))
		held := nstest.Must(os.Open(p.Path))
		DeferCleanup(func() { _ = held.Close() })
		p.Unpin()
		kept := func(why string) {
			GinkgoHelper()
			was := g.Snapshot()
			c, exit := g.gc(append(now, "--yes")...)
			Expect(exit).To(BeZero())
			Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring(why))))
			Expect(g.Snapshot()).To(Equal(was))
		}
		kept("a process uses its namespace")
		g.runtime() // it does not know the container
		kept("a process uses its namespace")
		g.Cmd("sh", "-c", "rm /var/lib/cni/results/*")
		kept("a process uses its namespace")
		g.Cmd("sh", "-c", "rm -r /run/hawser")
		kept("a process uses its namespace")
		Expect(held.Close()).To(Succeed())
		Eventually(func() bool {
			c, _ := g.gc(append(now, "--yes")...)
			return len(c.Attachments) == 0
		}).Should(BeTrue())
		Expect(g.Files("/var/lib/cni/networks/pods")).NotTo(ContainSubstring(gone))
	})

	It("takes no namespace that lives where a runtime gives no answer, or would not know the container", func() {
		g := newGCNode(ours(), "10.101.4")
		g.runtime()
		g.up(newPod("0d6c3b7e-nomad", "web-0"))
		c, _ := g.gc(append(now, "--yes")...)
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("its namespace lives"))))
		g.up(newPod(gone, "web-1"))
		g.program("ctr", "echo broken >&2; exit 1")
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Silent).To(ConsistOf(ContainSubstring("broken")))
		Expect(c.Attachments).To(HaveLen(2))
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("its namespace lives"))))
	})
})
