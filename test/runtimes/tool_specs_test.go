package runtimes_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// tooled is a runtime on a machine on which the node's tool looks.
type tooled struct {
	*machine
	env    []string // of the runtime's programs, which the tool runs
	source string   // what the tool calls the runtime
	// start starts a pod; one that serves has the host port 8080, and portmap makes it.
	start func(name string, serves bool) (id string, pod pods.Pod, err error)
	// lose ends a pod while its network cannot be taken down, and has the runtime forget it.
	lose     func(id string)
	ownPorts bool // the runtime publishes ports itself
	nameless bool // and gives CNI no name of a pod
}

// hawser runs the tool with --json, and returns what it says and its exit status.
func hawser[T any](t tooled, args ...string) (answer T, exit int) {
	GinkgoHelper()
	out := t.Run(nstest.Program{Path: nstest.Build("hawser"), Env: t.env, Args: append(args, "--json",
		"--conf", filepath.Join(t.dir, "net.d"), "--path", t.plugins)})
	GinkgoWriter.Printf("hawser %s: %d\n%s%s\n", strings.Join(args, " "), out.Exit, out.Stdout, out.Stderr)
	if out.Exit == 0 || strings.HasPrefix(out.Stdout, "[") || strings.HasPrefix(out.Stdout, "{") {
		Expect(json.Unmarshal([]byte(out.Stdout), &answer)).To(Succeed())
	}
	return answer, out.Exit
}

// without runs something while the node lacks a plugin.
func (m *machine) without(plugin string, do func()) {
	GinkgoHelper()
	file := filepath.Join(m.plugins, plugin)
	Expect(os.Rename(file, file+".away")).To(Succeed())
	defer func() { Expect(os.Rename(file+".away", file)).To(Succeed()) }()
	do()
}

type collected struct {
	Source      string
	Silent      []string
	Attachments []struct {
		ContainerID, Why, Kept string
		Done                   bool
	}
}

// expectTool has the tool look at the runtime's pods, mend one's rules, and remove what the runtime has lost.
func (t tooled) expectTool() {
	GinkgoHelper()
	start := func(name string, serves bool) sandboxed {
		GinkgoHelper()
		id, pod, err := t.start(name, serves)
		Expect(err).NotTo(HaveOccurred())
		return sandboxed{pod, id}
	}
	client, server := start("client", false), start("server", true)
	traffic := func() { t.traffic("8080", "").Expect(client.Pod, server.Pod) }
	port := ContainElement(And(HaveField("Kind", "host port"), HaveField("Value", ContainSubstring("8080"))))
	if t.ownPorts {
		port = Not(ContainElement(HaveField("Kind", "host port")))
		outside := t.outside.Serve("tcp", "192.0.2.2:0")
		traffic = func() {
			for to, seen := range map[string]string{outside: pods.HostAddr, server.Addr + ":80": client.Addr} {
				Eventually(func() (string, error) { return client.Ask("tcp", to) }).Should(HavePrefix(seen + ":"))
			}
		}
	}

	By("ls: the pod, its address and its host port")
	all, exit := hawser[[]struct {
		ContainerID, Pod, Orphan string
		Reference                bool
		Holdings                 []struct{ Kind, Value string }
	}](t, "ls")
	name, unlucky := MatchRegexp("^(default/)?server$"), "unlucky"
	if t.nameless {
		name, unlucky = BeEmpty(), "last"
	}
	Expect(exit).To(BeZero())
	Expect(all).To(ContainElement(And(HaveField("ContainerID", server.id), HaveField("Pod", name),
		HaveField("Orphan", ""), HaveField("Reference", false), HaveField("Holdings", port),
		HaveField("Holdings", ContainElement(And(HaveField("Kind", "address"),
			HaveField("Value", HavePrefix(server.Addr))))))))

	By("doctor: no error")
	found, exit := hawser[[]struct{ ID, Severity, What string }](t, "doctor")
	Expect(found).NotTo(ContainElement(HaveField("Severity", "error")))
	Expect(exit).To(BeZero())

	By("reapply: traffic comes back after all rules were flushed")
	traffic()
	t.Cmd("nft", "flush", "ruleset")
	_, err := t.outside.Ask("tcp", "192.0.2.1:8080")
	Expect(err).To(HaveOccurred())
	_, exit = hawser[[]any](t, "reapply")
	Expect(exit).To(BeZero())
	traffic()

	By("why: the pod that failed is gone, its reason is not")
	t.without("host-local", func() {
		_, _, err := t.start("unlucky", false)
		Expect(err).To(MatchError(ContainSubstring("host-local")))
	})
	reasons, exit := hawser[[]struct{ Pod, Command, Plugin, Msg, Now string }](t, "why", unlucky)
	Expect(exit).To(BeZero())
	Expect(reasons).To(ContainElement(And(HaveField("Command", "ADD"), HaveField("Plugin", "bridge"),
		HaveField("Msg", ContainSubstring(`no plugin "host-local"`)), HaveField("Now", "it has no holdings"))))

	By("gc: the runtime is asked, and what it knows is kept")
	before := t.state()
	asked, exit := hawser[collected](t, "gc", "--older", "0s")
	Expect(exit).To(BeZero())
	Expect(asked.Source).To(ContainSubstring(t.source))
	Expect(asked.Silent).To(BeEmpty())
	Expect(asked.Attachments).To(ContainElements(HaveField("ContainerID", client.id),
		HaveField("ContainerID", server.id)))
	Expect(asked.Attachments).To(HaveEach(HaveField("Kept", HaveSuffix("knows the container"))))
	Expect(t.state()).To(Equal(before))

	By("gc: what the runtime lost goes, and nothing else")
	lost := start("lost", false)
	t.without("portmap", func() {
		t.lose(lost.id)
		Expect(pods.Leases(t.Host)).To(HaveLen(3))
		asked, exit = hawser[collected](t, "gc", "--yes", "--older", "0s")
	})
	Expect(exit).To(BeZero())
	Expect(asked.Attachments).To(ContainElement(HaveField("ContainerID", lost.id)))
	for _, a := range asked.Attachments {
		Expect(a.Done).To(Equal(a.ContainerID == lost.id), a.Why+a.Kept)
	}
	Expect(pods.Leases(t.Host)).To(ConsistOf(client.Addr, server.Addr))
	Expect(t.Files("/var/lib/cni/results", "/var/lib/cni/networks")).NotTo(ContainSubstring(lost.id))
	traffic()
}

// tooled is the daemon, at the socket of its program. In its pods, if they have no process, the spec serves.
func (d *daemon) tooled(socket string, serve bool, env ...string) tooled {
	GinkgoHelper()
	d.Cmd("sh", "-ec", `mkdir -p "${1%/*}"; ln -sfn "$0" "$1"`, d.socket, socket)
	start := func(name string, serves bool) (id string, pod pods.Pod, err error) {
		if serves {
			id, err = d.run(name, tcp(8080, 80), udp(8080, 80))
		} else {
			id, err = d.run(name)
		}
		if err == nil {
			pod = d.find(id)
		}
		if err == nil && serve {
			pod.Serve()
		}
		return id, pod, err
	}
	return tooled{machine: d.machine, env: env, source: socket, start: start, ownPorts: serve}
}

// expectForgotten starts the daemon, which does not get ready while a plugin is missing, without a pod that it had.
func (d *daemon) expectForgotten(id string) {
	GinkgoHelper()
	d.launch()
	Eventually(func() error { _, _, err := d.condition("RuntimeReady"); return err }).Should(Succeed())
	Expect(d.all()).NotTo(ContainElement(id))
}

var _ = Describe("the node's tool", Label("tool-runtimes"), func() {
	DescribeTable("under containerd", func(dir func() string, old bool) {
		c := newContainerd(newMachine(""), dir(), network.Conflist())
		t := c.tooled("/run/containerd/containerd.sock", false, c.program.Env...)
		t.lose = func(id string) {
			Expect(c.stop(id)).NotTo(Succeed())
			ctr := inDir(dir(), "ctr")
			c.Cmd(ctr, "-a", c.socket, "-n", "k8s.io", "containers", "rm", id)
			if !old {
				c.Cmd(ctr, "-a", c.socket, "-n", "k8s.io", "sandboxes", "rm", "-f", id)
			}
			c.crash()
			c.expectForgotten(id)
		}
		t.expectTool()
	},
		Entry("1.6", func() string { return "" }, true),
		Entry("2", built, false))

	It("under CRI-O", Label("all"), func() {
		nstest.NeedProgram("crictl")
		p := newPodman(newMachine(""), network.Conflist())
		c := newCrioOf(p)
		t := c.tooled("/run/crio/crio.sock", true, p.env...)
		t.lose = func(id string) {
			Expect(c.stop(id)).NotTo(Succeed())
			c.crash()
			// A pod whose configuration is gone it removes.
			c.Cmd("sh", "-ec", `rm $(find /var/lib/containers /run/containers -path "*$0/userdata/config.json")`, id)
			c.expectForgotten(id) // its GC fails, too
		}
		t.expectTool()
	})

	It("under podman", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		tooled{machine: p.machine, env: p.env, source: "podman",
			start: func(name string, serves bool) (id string, pod pods.Pod, err error) {
				args := []string{"run", "-d", "--name", name, "--cgroup-parent", p.cgroup, "--network", "pods"}
				if serves {
					args = append(args, "-p", "8080:80/tcp", "-p", "8080:80/udp")
				}
				if id, err = p.try(append(args, image)...); err != nil {
					p.must("rm", "-f", "-t", "0", name)
					return "", pod, err
				}
				return id, p.find(name), nil
			},
			lose: func(id string) {
				_, _ = p.try("rm", "-f", "-t", "0", id)
				Expect(p.must("ps", "-a", "--no-trunc", "-q")).NotTo(ContainSubstring(id))
			}}.expectTool()
	})
})
