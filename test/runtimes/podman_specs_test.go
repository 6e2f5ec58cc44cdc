package runtimes_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// livingContainers is the life of two containers.
func livingContainers(s story, plugins string, v6 bool) {
	p := newPodman(newMachine(plugins), pods.Network{Version: "0.4.0", IPv6: v6}.Conflist())
	p.container("first", "--network", "pods", "-p", "8080:80")
	p.must("rm", "-f", "-t", "0", "first")
	before := slices.Sorted(strings.Lines(p.state()))
	var client, server pods.Pod
	s.step("containers: addresses, sysctl, traffic, host ports on TCP, UDP and one address", func() {
		client = p.container("client", "--network", "pods:ip=10.88.0.77,mac=02:00:00:00:00:aa")
		server = p.container("server", "--network", "pods", "-p", "8080:80/tcp", "-p", "8080:80/udp",
			"-p", "192.0.2.1:8081:80", "-p", "[2001:db8::1]:8081:80", "-p", "127.0.0.1:9000-9001:80-81")
		Expect(client.Addr).To(Equal("10.88.0.77"))
		Expect(client.Cmd("ip", "-br", "link", "show", "eth0")).To(ContainSubstring("02:00:00:00:00:aa"))
		client.ExpectUp()
		server.ExpectUp()
		p.traffic("8080", "8081").Expect(client, server)
		Expect(p.Ask("tcp", "127.0.0.1:9000")).To(HavePrefix("10.88.0.1:"))
		_, err := p.outside.Ask("tcp", "192.0.2.1:9000")
		Expect(err).To(MatchError(ContainSubstring("refused")))
	})
	s.step("a container with a taken host port fails, and names the port", func() {
		_, err := p.try("run", "-d", "--name", "greedy", "--cgroup-parent", p.cgroup, "--network", "pods",
			"-p", "8080:80", image)
		p.must("rm", "-f", "-t", "0", "greedy")
		Expect(err).To(MatchError(ContainSubstring("8080")))
	})
	s.step("network reload after the rules were flushed", func() {
		p.Cmd("nft", "flush", "ruleset")
		p.must("network", "reload", "--all")
		Expect(p.find("client").Addr).To(Equal(client.Addr))
		Expect(p.find("server").Addr).To(Equal(server.Addr))
		client.ExpectUp()
		server.ExpectUp()
		p.traffic("8080", "8081").Expect(client, server)
	})
	s.step("containers are stopped and removed twice, nothing is left", func() {
		for range 2 {
			p.must("stop", "--ignore", "-t", "1", "client", "server")
		}
		for range 2 {
			p.must("rm", "-f", "--ignore", "-t", "0", "client", "server")
		}
		pods.ExpectNothingLeft(p.Host)
		if !s.theirs {
			Expect(slices.Sorted(strings.Lines(p.state()))).To(Equal(before)) // which were made anew, in another order
		}
	})
}

var _ = Describe("podman", func() {
	Describe("containers with IPv4", Label("runtimes"), func() {
		told("podman 4.3.1", func(s story, plugins string) { livingContainers(s, plugins, false) })
	})

	It("has containers that live as those, with IPv4 and IPv6", Label("runtimes"), func() {
		livingContainers(story{client: "podman 4.3.1 again"}, "", true)
	})

	It("publishes a port of a container that joins a second network as long as it is on the first", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		p.create("second", "--subnet", "10.89.0.0/24")
		p.container("one", "--network", "pods", "-p", "8080:80")
		reach := func() (string, error) { return p.outside.Ask("tcp", "192.0.2.1:8080") }
		Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		for range 2 {
			p.must("network", "connect", "second", "one")
			Eventually(reach).Should(HavePrefix("192.0.2.2:"))
			p.must("network", "disconnect", "second", "one")
			Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		}
		p.must("network", "connect", "second", "one")
		p.must("network", "disconnect", "pods", "one")
		_, err := reach()
		Expect(err).To(HaveOccurred())
		p.must("network", "connect", "pods", "one")
		Eventually(reach).Should(HavePrefix("192.0.2.2:"))
		p.must("rm", "-f", "-t", "0", "one")
		pods.ExpectNothingLeft(p.Host)
	})

	It("connects and disconnects live containers, to networks that podman has written", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		p.create("second", "--subnet", "10.89.0.0/24", "--ipv6", "--subnet", "fd00:89::/64")
		p.create("shut", "--internal", "--subnet", "10.90.0.0/24")
		c := p.container("one", "--network", "pods", "-p", "8080:80")
		for range 2 {
			p.must("network", "connect", "--ip", "10.89.0.7", "--mac-address", "02:00:00:00:00:bb", "second", "one")
			Expect(c.Cmd("ip", "-o", "addr", "show", "dev", "eth1")).To(And(ContainSubstring(" 10.89.0.7/24 "),
				ContainSubstring(" fd00:89::")))
			Expect(c.Cmd("ip", "-br", "link", "show", "eth1")).To(ContainSubstring("02:00:00:00:00:bb"))
			p.must("network", "connect", "shut", "one")
			Expect(c.Cmd("ip", "-o", "addr", "show", "dev", "eth2")).To(ContainSubstring(" 10.90.0."))
			p.must("network", "disconnect", "second", "one")
			p.must("network", "disconnect", "shut", "one")
			Expect(c.Cmd("ip", "-br", "link")).NotTo(Or(ContainSubstring("eth1"), ContainSubstring("eth2")))
			c.ExpectUp()
		}
		p.must("rm", "-f", "-t", "0", "one")
		pods.ExpectNothingLeft(p.Host)
	})

	It("keeps containers of the reference plugins alive with ours: reload, stop; and goes back", func() {
		reference := nstest.Debian().Dir()
		nstest.Need("iptables")
		n := pods.Network{Version: "0.4.0", Backend: "iptables"}
		p := newPodman(newMachine(reference), n.Conflist())
		ports := []string{"--network", "pods", "-p", "8080:80/tcp", "-p", "8080:80/udp"}
		client, server := p.container("client", "--network", "pods"), p.container("server", ports...)
		for _, plugins := range []string{"", reference} {
			p.install(plugins)
			p.traffic("8080", "").Expect(client, server)
			p.must("network", "reload", "--all")
			p.traffic("8080", "").Expect(client, server)
			p.must("rm", "-f", "-t", "0", "client", "server")
			pods.ExpectGone(p.Host)
			client, server = p.container("client", "--network", "pods"), p.container("server", ports...)
			p.traffic("8080", "").Expect(client, server)
		}
		p.install("")
		p.must("rm", "-f", "-t", "0", "client", "server")
		p.collect() // records of what the reference has deleted
		pods.ExpectNothingLeft(p.Host)
	})

	It("starts containers from before a reboot again, with their ports and the addresses that they asked for", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		p.container("client", "--network", "pods")
		p.container("server", "--network", "pods:ip=10.88.0.77", "-p", "8080:80/tcp", "-p", "8080:80/udp")
		p.reboot()
		p.must("start", "client", "server")
		server := p.find("server")
		Expect(server.Addr).To(Equal("10.88.0.77"))
		p.traffic("8080", "").Expect(p.find("client"), server)
		Expect(pods.Leases(p.Host)).To(HaveLen(2))
		p.must("rm", "-f", "-t", "0", "client", "server")
		pods.ExpectNothingLeft(p.Host)
	})

	It("is killed in the middle of ADDs, and GC collects what it forgot", func() {
		p := newPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		var running []*exec.Cmd
		for i := range 5 {
			running = append(running, p.Start(nstest.Program{Path: "podman", Env: p.env,
				Args: []string{"run", "-d", "--name", fmt.Sprint("c", i),
					"--cgroup-parent", p.cgroup, "--network", "pods", "-p", fmt.Sprintf("%d:80", 9000+i), image}}))
		}
		lent := func() []string { return pods.Leases(p.Host) }
		Eventually(lent).ShouldNot(BeEmpty())
		for _, cmd := range running {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		pods.Settle(p.plugins)
		_, _ = p.try("rm", "-f", "-a", "-t", "0") // it may find its own storage in use
		AddReportEntry("addresses that podman forgot", strings.Join(pods.Leases(p.Host), " "))
		p.collect()
		pods.ExpectNothingLeft(p.Host)
	})
})

// user is an ordinary one: its number, and its name on the machine.
const user = "5000"

// newUsersPodman is podman as an ordinary user has it: plugins run in a user
// namespace, and in a network namespace that slirp4netns joins to the machine's.
func newUsersPodman(m *machine, conflist string) *podman {
	nstest.NeedProgram("podman", "runc", "newuidmap", "slirp4netns", "setpriv")
	_, err := os.Stat("/dev/net/tun")
	nstest.NeedOK("tun", err)
	Expect(os.Chmod(m.dir, 0o755)).To(Succeed())
	m.Cmd("sh", "-ec", `
		mount -t tmpfs tmpfs /mnt
		mkdir /mnt/upper /mnt/work
		mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
		echo "user:x:$0:$0::$1/home:/bin/sh" >> /etc/passwd
		echo "user:x:$0:" >> /etc/group
		echo "user:100000:65536" | tee /etc/subuid > /etc/subgid
		mknod -m 666 /mnt/tun c 10 200
		mount --bind /mnt/tun /dev/net/tun
		install -d -o "$0" -g "$0" -m 700 /run/user /run/user/"$0" "$1/home"`, user, m.dir)
	p := &podman{machine: m,
		command: []string{"setpriv", "--reuid", user, "--regid", user, "--clear-groups", "podman"},
		env:     []string{"HOME=" + m.dir + "/home", "XDG_RUNTIME_DIR=/run/user/" + user}}
	p.configure(conflist, fmt.Sprintf("[storage]\ndriver = \"vfs\"\nrootless_storage_path = %q\n",
		m.dir+"/home/storage"))
	return p
}

func (p *podman) inside(command string) string {
	GinkgoHelper()
	return p.must("unshare", "--rootless-netns", "bash", "-c", command)
}

func (p *podman) ask(sandbox, address string) func() (string, error) {
	return func() (string, error) {
		host, port, _ := strings.Cut(address, ":")
		return p.try("unshare", "--rootless-netns", "nsenter", "--net="+sandbox, "timeout", "5", "bash", "-c",
			"cat < /dev/tcp/"+host+"/"+port)
	}
}

var _ = Describe("podman of an ordinary user", func() {
	It("has containers with addresses, traffic and host ports; reloads, stops and removes them", func() {
		p := newUsersPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		p.must("run", "-d", "--name", "client", "--network", "pods", image)
		p.must("run", "-d", "--name", "server", "--network", "pods", "-p", "8080:80", image)
		client, server := p.find("client"), p.find("server")
		outside := p.outside.Serve("tcp", "192.0.2.2:0")
		for range 2 {
			Eventually(p.ask(client.Path, server.Addr+":80")).Should(HavePrefix(client.Addr + ":"))
			Eventually(p.ask(client.Path, outside)).Should(HavePrefix("192.0.2.1:"))
			for _, from := range []*nstest.Host{p.outside, p.Host} { // podman's own forwarder
				Eventually(func() error { _, err := from.Ask("tcp", "192.0.2.1:8080"); return err }).Should(Succeed())
			}
			Expect(p.inside("nft list map inet hawser portmap4_v1")).To(ContainSubstring(server.Addr + " . 80"))
			p.must("network", "reload", "--all")
			Expect(p.find("server").Addr).To(Equal(server.Addr))
		}
		there := func() string {
			return p.inside("nft list ruleset; find /var/lib/cni/networks /run/hawser -type f; " +
				"ip -br link show type veth")
		}
		ofServer := []OmegaMatcher{ContainSubstring(server.Addr + " . 80"),
			ContainSubstring(server.Addr + ` comment "`), ContainSubstring("/" + server.Addr + "\n"),
			MatchRegexp(`portmap/\S+\.json`),
			MatchRegexp(`(?s)firewall/\S+\.json.*firewall/\S+\.json`), MatchRegexp("(?s)veth.*\nveth")}
		Expect(there()).To(And(ofServer...))
		for range 2 {
			p.must("stop", "-t", "0", "server")
		}
		p.must("rm", "server")
		Expect(there()).NotTo(Or(ofServer...))
		p.must("rm", "-f", "-t", "0", "client")
		Expect(there()).NotTo(Or(ContainSubstring(client.Addr), ContainSubstring("veth"), ContainSubstring(".json")))
	})
})

// podman is podman on a machine, with CNI as its network backend.
type podman struct {
	*machine
	command []string // podman, and what comes before it
	env     []string
}

const rootStorage = `[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
`

func newPodman(m *machine, conflist string) *podman {
	GinkgoHelper()
	nstest.NeedProgram("podman", "runc")
	p := &podman{machine: m, command: []string{"podman"}}
	p.configure(conflist, rootStorage)
	return p
}

// configure writes podman's configuration, and gives it the image.
func (p *podman) configure(conflist, storage string) {
	GinkgoHelper()
	for _, dir := range []string{"net.d", "tmp"} {
		Expect(os.Mkdir(filepath.Join(p.dir, dir), 0o755)).To(Succeed())
		Expect(os.Chmod(filepath.Join(p.dir, dir), 0o777)).To(Succeed()) // an ordinary user writes there too
	}
	p.write("net.d/pods.conflist", conflist)
	p.env = append(p.env, "TMPDIR="+p.dir+"/tmp", "CONTAINERS_STORAGE_CONF="+p.write("storage.conf", storage),
		"CONTAINERS_CONF="+p.write("containers.conf", fmt.Sprintf(`[containers]
default_ulimits = [%s]
log_driver = "k8s-file"
apparmor_profile = ""
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "cni"
default_network = "pods"
cni_plugin_dirs = [%q]
network_config_dir = %q
`, p.ulimits(), p.plugins, p.dir+"/net.d")))
	p.must("load", "-q", "-i", writeImage(p.dir))
	AddReportEntry("version", p.must("--version"))
}

// ulimits are no higher than ours, which is all that we may give.
func (p *podman) ulimits() string {
	var limits []string
	for name, flag := range map[string]string{"nofile": "-Hn", "nproc": "-Hu"} {
		if limit := strings.TrimSpace(p.Cmd("bash", "-c", "ulimit "+flag)); limit != "unlimited" {
			limits = append(limits, fmt.Sprintf("%q", fmt.Sprintf("%s=%s:%[2]s", name, limit)))
		}
	}
	return strings.Join(limits, ", ")
}

func (p *podman) write(name, content string) string {
	GinkgoHelper()
	path := filepath.Join(p.dir, name)
	Expect(os.WriteFile(path, []byte(content), 0o644)).To(Succeed())
	return path
}

func (p *podman) create(name string, options ...string) {
	GinkgoHelper()
	p.must(append(append([]string{"network", "create"}, options...), name)...)
}

func (p *podman) try(args ...string) (string, error) {
	GinkgoHelper()
	out := p.Run(nstest.Program{Path: p.command[0], Args: append(slices.Clone(p.command[1:]), args...), Env: p.env})
	GinkgoWriter.Print(out.Stderr)
	if out.Exit != 0 {
		return "", fmt.Errorf("podman %s: exit %d: %s", strings.Join(args, " "), out.Exit, out.Stderr)
	}
	return strings.TrimSpace(out.Stdout), nil
}

func (p *podman) must(args ...string) string {
	GinkgoHelper()
	out := nstest.Must(p.try(args...))
	return out
}

func (p *podman) container(name string, options ...string) pods.Pod {
	GinkgoHelper()
	args := append([]string{"run", "-d", "--name", name, "--cgroup-parent", p.cgroup}, options...)
	p.must(append(args, image)...)
	return p.find(name)
}

func (p *podman) find(name string) pods.Pod {
	GinkgoHelper()
	var list []struct {
		NetworkSettings struct {
			SandboxKey string
			Networks   map[string]struct{ IPAddress, GlobalIPv6Address string }
		}
	}
	Expect(json.Unmarshal([]byte(p.must("inspect", name)), &list)).To(Succeed())
	s := list[0].NetworkSettings
	return pods.At(s.SandboxKey, s.Networks["pods"].IPAddress, s.Networks["pods"].GlobalIPv6Address)
}

// buildah is buildah on a machine, with podman's configuration and a static busybox to build images of.
type buildah struct {
	*podman
	context string
}

func newBuildah(plugins string) *buildah {
	nstest.NeedProgram("buildah", "busybox")
	p := *newPodman(newMachine(plugins), pods.Network{Version: "0.4.0"}.Conflist())
	p.command = []string{"buildah"}
	b := &buildah{&p, filepath.Join(p.dir, "context")}
	Expect(os.Mkdir(b.context, 0o755)).To(Succeed())
	path := nstest.Must(exec.LookPath("busybox"))
	busybox := nstest.Must(os.ReadFile(path))
	Expect(os.WriteFile(filepath.Join(b.context, "busybox"), busybox, 0o755)).To(Succeed())
	return b
}

func (b *buildah) arguments(command string) []string {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "Containerfile")
	Expect(os.WriteFile(file, fmt.Appendf(nil, "FROM scratch\nCOPY busybox /bin/busybox\nRUN %s\n",
		encode([]string{"/bin/busybox", "sh", "-ec", command})), 0o644)).To(Succeed())
	return []string{"bud", "--isolation", "oci", "--cgroup-parent", b.cgroup, "--no-cache", "-f", file, b.context}
}

func (b *buildah) build(command string) error {
	GinkgoHelper()
	_, err := b.try(b.arguments(command)...)
	return err
}

var _ = Describe("buildah", Label("more-runtimes", "runtime-killed"), func() {
	told("buildah 1.28.2", func(s story, plugins string) {
		b := newBuildah(plugins)
		_, port, err := net.SplitHostPort(b.outside.Serve("tcp", "192.0.2.2:0"))
		Expect(err).NotTo(HaveOccurred())
		// The server says whom it sees: the host.
		ask := fmt.Sprintf(`/bin/busybox nc 192.0.2.2 %s | /bin/busybox grep -q "^192.0.2.1:"`, port)
		Expect(b.build(ask)).To(Succeed()) // what containers share is there from now on
		before := b.state()

		s.step("a step of a build has an address, and reaches the outside, masqueraded", func() {
			Expect(b.build(ask + " && /bin/busybox ip -4 addr show eth0 | /bin/busybox grep 10.88.0.")).To(Succeed())
		})
		s.step("five builds at once", func() {
			var builds [5][]string
			for i := range builds {
				builds[i] = b.arguments(fmt.Sprint(ask, " && : ", i))
			}
			var errs [len(builds)]error
			nstest.AtOnce(len(builds), func(i int) { _, errs[i] = b.try(builds[i]...) })
			Expect(errs).To(HaveEach(Succeed()))
		})
		s.step("a step that fails", func() { Expect(b.build(ask + " && false")).NotTo(Succeed()) })
		s.step("nothing is left", func() {
			pods.ExpectNothingLeft(b.Host)
			Expect(b.state()).To(Equal(before))
		})
		s.step("killed in a step: GC collects what it forgot", func() {
			killed := b.Start(nstest.Program{Path: "buildah", Env: b.env, Args: b.arguments("/bin/busybox sleep 1000")})
			Eventually(func() []string { return pods.Leases(b.Host) }).ShouldNot(BeEmpty())
			Expect(killed.Process.Kill()).To(Succeed())
			_ = killed.Wait()
			pods.Settle(b.plugins)
			b.collect()
			pods.ExpectNothingLeft(b.Host)
		})
	})
})
