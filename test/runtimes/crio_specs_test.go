package runtimes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

const crioName = "CRI-O 1.34.0"

// serveTwo is startTwo, and answers in both: CRI-O's pods have no process.
func (d *daemon) serveTwo() (client, server sandboxed) {
	GinkgoHelper()
	client, server = d.startTwo()
	client.Serve()
	server.Serve()
	return client, server
}

// expectTraffic talks to the server and lets the client talk to the outside. The host
// ports are CRI-O's own work: it asks portmap for none.
func (d *daemon) expectTraffic(client, server pods.Pod) {
	GinkgoHelper()
	outside := d.outside.Serve("tcp", "192.0.2.2:0")
	for _, t := range []struct {
		from              *nstest.Host
		network, to, seen string
	}{
		{client.Host, "tcp", outside, pods.HostAddr},
		{client.Host, "tcp", server.Addr + ":80", client.Addr},
		{client.Host, "udp", server.Addr + ":80", client.Addr},
		{d.Host, "tcp", server.Addr + ":80", "10.88.0.1"},
		{d.outside, "tcp", "192.0.2.1:8080", "192.0.2.2"},
		{d.outside, "udp", "192.0.2.1:8080", "192.0.2.2"},
		{d.outside, "tcp", "192.0.2.1:8081", "192.0.2.2"},
	} {
		ask := func() (string, error) { return t.from.Ask(t.network, t.to) }
		Eventually(ask).Should(HavePrefix(t.seen+":"), t.from.Name+" asks "+t.to)
	}
}

// verbs are those that our bridge was called with, in their order.
func (d *daemon) verbs() []string {
	GinkgoHelper()
	data := nstest.Must(os.ReadFile(d.callLog()))
	var verbs []string
	for line := range strings.Lines(string(data)) {
		var call struct{ Plugin, Verb string }
		Expect(json.Unmarshal([]byte(line), &call)).To(Succeed())
		if call.Plugin == "bridge" {
			verbs = append(verbs, call.Verb)
		}
	}
	return verbs
}

// leak attaches a container that CRI-O does not know, as one that was killed does.
// Libcni remembers it, or has forgotten it too.
func (d *daemon) leak(conflist, id string, remembered bool) {
	GinkgoHelper()
	list := nstest.Must(libcni.ConfListFromBytes([]byte(conflist)))
	netns := nstest.NewNetns().Path
	d.Do(func() {
		nstest.Must(libcni.NewCNIConfig([]string{d.plugins}, nil).AddNetworkList(context.Background(), list,
			&libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0", CapabilityArgs: object{
				"portMappings": []mapping{{9000, 80, "tcp", ""}}}}))
	})
	if !remembered {
		d.Cmd("sh", "-ec", "rm /var/lib/cni/results/*"+id+"*")
	}
}

var _ = Describe("CRI-O", Label("all", "more-runtimes", "runtime-killed"), func() {
	told(crioName, func(s story, plugins string) {
		c := newCrio(newMachine(plugins), network.Conflist())
		first, _ := c.start("first") // what pods share is there from now on
		c.end(first)
		if !s.theirs {
			s.step("the calls: VERSION, STATUS and GC at its start; ADD, CHECK; DEL", func() {
				verbs := strings.Join(c.verbs(), " ")
				AddReportEntry("calls of bridge", verbs)
				Expect(verbs).To(MatchRegexp(
					`^(VERSION )*STATUS (VERSION |STATUS )*GC (VERSION )*ADD (VERSION )*CHECK (VERSION )*DEL$`))
			})
		}
		var client, server sandboxed
		s.step("pods: addresses, sysctl, traffic; its own host ports on TCP, UDP and one address", func() {
			client, server = c.serveTwo()
			client.ExpectUp()
			server.ExpectUp()
			c.expectTraffic(client.Pod, server.Pod)
		})
		s.step("a pod with a taken host port fails, and leaves nothing", func() {
			leases := pods.Leases(c.Host)
			_, err := c.run("greedy", tcp(8080, 80))
			Expect(err).To(MatchError(ContainSubstring("8080")))
			Expect(pods.Leases(c.Host)).To(ConsistOf(leases))
		})
		s.step("killed and started again with live pods", func() {
			c.restart()
			Expect(c.all()).To(ConsistOf(client.id, server.id))
			Expect(c.check(network.Conflist(), client.id, client.Pod)).To(Succeed())
			c.expectTraffic(client.Pod, server.Pod)
		})
		s.step("its GC clears a leaked attachment that libcni remembers, and no live one", func() {
			live := pods.Leases(c.Host)
			c.leak(network.Conflist(), "leaked", true)
			c.restart()
			Expect(pods.Leases(c.Host)).To(ConsistOf(live))
			c.expectTraffic(client.Pod, server.Pod)
		})
		s.step("pods are stopped and removed twice, nothing is left", func() {
			for range 2 {
				c.end(client.id, server.id)
			}
			pods.ExpectNothingLeft(c.Host)
		})
		s.step("its GC clears a leaked attachment that libcni has forgotten too", func() {
			c.leak(network.Conflist(), "leaked", false)
			c.restart()
			pods.ExpectNothingLeft(c.Host)
		})
	})

	It("goes from the newest reference to ours under live pods, and back", Label("upgrade"), func() {
		nstest.Need("iptables")
		n := network
		n.Backend = "iptables" // which both know
		c := newCrio(newMachine(nstest.Newest().Dir()), n.Conflist())
		c.backAndForth(crioName, "restart, traffic, CHECK, DEL, nothing left", func(change func()) {
			client, server := c.serveTwo()
			change()
			c.restart()
			c.expectTraffic(client.Pod, server.Pod)
			c.expectChecked(n.Conflist(), client, server)
			c.end(client.id, server.id)
		})
	})
})

// newCrio starts CRI-O with a network. Its pods are namespaces without a process: it
// needs no pause container where the processes of a pod do not see each other.
func newCrio(m *machine, conflist string) *daemon {
	GinkgoHelper()
	return newCrioOf(newPodman(m, conflist))
}

// newCrioOf starts it with the images and networks of podman.
func newCrioOf(p *podman) *daemon {
	GinkgoHelper()
	nstest.NeedProgram("crio", "pinns", "conmon", "runc")
	c := &daemon{machine: p.machine, socket: filepath.Join(p.dir, "crio.sock"), netconf: filepath.Join(p.dir, "net.d")}
	p.write("policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`)
	c.program = nstest.Program{Path: "crio", Args: []string{"--config", p.write("crio.conf", c.crioConfig()),
		"--config-dir", "", "--log-level", "warn"}, Env: []string{"HAWSER_LOG=" + c.callLog()}}
	AddReportEntry("version", c.Cmd("crio", "--version"))
	c.serve()
	c.ready()
	return c
}

// callLog is where our plugins write down their calls.
func (d *daemon) callLog() string { return filepath.Join(d.dir, "calls.log") }

// crioConfig is crio.conf.
func (d *daemon) crioConfig() string {
	path := func(program string) string {
		path := nstest.Must(exec.LookPath(program))
		return path
	}
	return fmt.Sprintf(`[crio]
root = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
log_dir = "%[1]s/log"
version_file = "/run/crio/version"
clean_shutdown_file = ""
internal_wipe = false
[crio.api]
listen = %[2]q
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
apparmor_profile = "unconfined"
pinns_path = %[3]q
namespaces_dir = "/var/run"
hooks_dir = []
drop_infra_ctr = true
enable_criu_support = false
[crio.runtime.runtimes.runc]
runtime_path = %[4]q
runtime_root = "/run/runc"
monitor_path = %[5]q
monitor_cgroup = "pod"
[crio.image]
pause_image = %[6]q
pause_command = "/bin/payload"
signature_policy = "%[1]s/policy.json"
[crio.network]
network_dir = %[7]q
plugin_dirs = [%[8]q]
[crio.nri]
enable_nri = false
`, d.dir, d.socket, path("pinns"), path("runc"), path("conmon"), image, d.netconf, d.plugins)
}
