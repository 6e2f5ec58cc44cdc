package runtimes_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// cnitool is the CNI project's own, on a machine.
type cnitool struct {
	*machine
	netconf string
}

func newCnitool(plugins, conflist string) *cnitool {
	GinkgoHelper()
	nstest.NeedProgram("cnitool")
	m := newMachine(plugins)
	c := &cnitool{m, filepath.Join(m.dir, "net.d")}
	Expect(os.Mkdir(c.netconf, 0o755)).To(Succeed())
	c.configure(conflist)
	return c
}

func (c *cnitool) configure(conflist string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(c.netconf, "pods.conflist"), []byte(conflist), 0o644)).To(Succeed())
}

// mapping is one of the convention's portMappings.
type mapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// published are those of the pod that serves.
var published = []mapping{{8080, 80, "tcp", ""}, {8080, 80, "udp", ""}, {8081, 80, "tcp", pods.HostAddr},
	{8081, 80, "tcp", pods.HostAddr6}}

func (c *cnitool) call(verb string, pod pods.Pod, ports ...mapping) (string, error) {
	GinkgoHelper()
	out := c.Run(nstest.Program{Path: "cnitool", Args: []string{verb, "pods", pod.Path}, Env: []string{
		"CNI_PATH=" + c.plugins, "NETCONFPATH=" + c.netconf,
		"CAP_ARGS=" + string(encode(object{"portMappings": ports}))}})
	GinkgoWriter.Print(out.Stderr)
	if out.Exit != 0 {
		return "", errors.New(out.Stderr)
	}
	return out.Stdout, nil
}

func (c *cnitool) try(verb string, pod pods.Pod, ports ...mapping) error {
	GinkgoHelper()
	_, err := c.call(verb, pod, ports...)
	return err
}

// add attaches a new pod, in which lo is up and a server answers.
func (c *cnitool) add(ports ...mapping) (pods.Pod, error) {
	GinkgoHelper()
	pod := pods.At(nstest.NewNetns().Path)
	pod.Cmd("ip", "link", "set", "lo", "up")
	out, err := c.call("add", pod, ports...)
	if err != nil {
		return pod, err
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	Expect(json.Unmarshal([]byte(out), &result)).To(Succeed())
	var addrs []string
	for _, ip := range result.IPs {
		addrs = append(addrs, ip.Address.Addr().String())
	}
	return pods.At(pod.Path, addrs...).Serve(), nil
}

func (c *cnitool) addTwo() (client, server pods.Pod) {
	GinkgoHelper()
	client = nstest.Must(c.add())
	server = nstest.Must(c.add(published...))
	return client, server
}

var _ = Describe("cnitool", Label("more-runtimes"), func() {
	told("cnitool 1.3.1", func(s story, plugins string) {
		n := network
		n.IPv6 = true
		c := newCnitool(plugins, n.Conflist())
		s.step("GC ends every attachment that libcni remembers", func() {
			pod := nstest.Must(c.add(published...))
			Expect(c.try("gc", pod)).To(Succeed())
			Expect(pod.Cmd("ip", "-br", "link")).NotTo(ContainSubstring("eth0"))
			pods.ExpectNothingLeft(c.Host)
		})
		var client, server pods.Pod
		s.step("ADD: addresses, sysctl, traffic, host ports on TCP, UDP and one address", func() {
			client, server = c.addTwo()
			client.ExpectUp()
			server.ExpectUp()
			c.traffic("8080", "8081").Expect(client, server)
		})
		s.step("STATUS and CHECK", func() {
			Expect(c.try("status", client)).To(Succeed())
			Expect(c.try("check", client)).To(Succeed())
			Expect(c.try("check", server, published...)).To(Succeed())
		})
		s.step("CHECK sees that a route is gone", func() {
			client.Cmd("ip", "route", "del", "default")
			err := c.try("check", client)
			client.Cmd("ip", "route", "add", "default", "via", "10.88.0.1", "dev", "eth0")
			Expect(err).To(HaveOccurred())
		})
		s.step("ADD of a taken host port fails and names the port", func() {
			greedy, err := c.add(published[0])
			Expect(c.try("del", greedy, published[0])).To(Succeed())
			Expect(err).To(MatchError(ContainSubstring("8080")))
		})
		s.step("a second ADD of a live attachment fails and harms nothing", func() {
			Expect(c.try("add", server, published...)).NotTo(Succeed())
			server.ExpectUp()
			c.traffic("8080", "8081").Expect(client, server)
		})
		s.step("DEL, twice, and without its namespace", func() {
			Expect(c.try("del", client)).To(Succeed())
			Expect(c.try("del", client)).To(Succeed())
			c.Cmd("umount", server.Path)
			c.Cmd("rm", server.Path)
			Expect(c.try("del", server, published...)).To(Succeed())
			Expect(c.try("del", server, published...)).To(Succeed())
		})
		s.step("nothing is left", func() { pods.ExpectNothingLeft(c.Host) })
	})
})

var _ = It("cnitool attaches a namespace by the commands of docs/runtimes.md", Label("more-runtimes"), func() {
	nstest.NeedProgram("busybox")
	nstest.NeedProgram("curl")
	c := newCnitool("", network.Conflist())
	page := func(name ...string) string {
		return string(nstest.Must(os.ReadFile(filepath.Join(append([]string{nstest.Root()}, name...)...))))
	}
	conflist := regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(page("README.md"))
	commands := regexp.MustCompile(`(?m)^    go install \S+/cnitool@.*\n((?:    .*\n)+)`).
		FindStringSubmatch(page("docs", "runtimes.md"))
	Expect(append(conflist, commands...)).To(HaveLen(4))
	c.Cmd("sh", "-ec", `mount -t tmpfs tmpfs /etc; mount -t tmpfs tmpfs /opt; mkdir -p /etc/cni/net.d /opt/cni
		printf %s "$1" >/etc/cni/net.d/10-net.conflist; ln -s "$2" /opt/cni/bin`, "-", conflist[1], c.plugins)
	Expect(c.Cmd("bash", "-ec", commands[1])).To(ContainSubstring("404 Not Found"), "the server has no page")
	c.Cmd("ip", "netns", "del", "web")
	pods.ExpectNothingLeft(c.Host)
})

// second is a network that multus attaches as net1.
const second = `{"cniVersion": "1.0.0", "name": "second", "plugins": [
  {"type": "bridge", "bridge": "cni1", "isGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "sbr"}]}`

// newMultus returns cnitool with a network whose only plugin is multus, which delegates to both networks.
func newMultus(plugins string) *cnitool {
	GinkgoHelper()
	nstest.NeedProgram("multus")
	n := network
	n.IPv6, n.Versions = true, ""
	c := newCnitool(plugins, "{}")
	Expect(os.Symlink(nstest.Must(exec.LookPath("multus")), filepath.Join(c.plugins, "multus"))).To(Succeed())
	c.configure(string(encode(object{"cniVersion": "1.0.0", "name": "pods", "plugins": []object{{
		"type": "multus", "binDir": c.plugins, "cniDir": filepath.Join(c.dir, "multus"), "logToStderr": true,
		"capabilities": object{"portMappings": true},
		"delegates":    []json.RawMessage{json.RawMessage(n.Conflist()), json.RawMessage(second)}}}})))
	return c
}

var _ = Describe("multus", Label("more-runtimes"), func() {
	told("multus 4.2.4", func(s story, plugins string) {
		c := newMultus(plugins)
		var client, server pods.Pod
		s.step("ADD: two networks, traffic on both, host ports on TCP, UDP and one address", func() {
			client, server = c.addTwo()
			client.ExpectUp()
			server.ExpectUp()
			c.traffic("8080", "8081").Expect(client, server)
			Expect(client.Cmd("ip", "-4", "-br", "addr", "show", "net1")).To(ContainSubstring("10.99.0.2/24"))
			client.Cmd("ping", "-c1", "-w40", "-I", "10.99.0.2", "10.99.0.3")
		})
		s.step("CHECK", func() {
			Expect(c.try("check", client)).To(Succeed())
			Expect(c.try("check", server, published...)).To(Succeed())
		})
		s.step("DEL, twice", func() {
			for _, pod := range []pods.Pod{client, client, server, server} {
				Expect(c.try("del", pod, published...)).To(Succeed())
			}
		})
		s.step("nothing is left", func() { pods.ExpectNothingLeft(c.Host) })
	})
})
