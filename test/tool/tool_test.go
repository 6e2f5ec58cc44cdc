// Package tool_test runs hawser, the node's tool, on throw-away nodes on which libcni, which is below all runtimes,
// attaches containers.
package tool_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTool(t *testing.T) { nstest.RunSpecs(t, "hawser, the node's tool") }

// machine is a node: a host with plugins in /opt/cni/bin and a network list.
type machine struct {
	*nstest.Host
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// usual is a network of bridge, portmap and firewall. The reference takes it too.
const usual = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "firewall"}]}`

// newMachine makes a node with the plugins of a directory, and a list.
func newMachine(plugins, list string) *machine {
	GinkgoHelper()
	m := &machine{Host: nstest.NewHost()}
	m.Cmd("sh", "-ec", `mkdir -p /etc/cni/net.d /opt/cni/bin; mount -t tmpfs none /etc/cni/net.d
		mount --bind "$1" /opt/cni/bin
		for dir in /etc/containerd /etc/crio /var/log/hawser; do
			[ ! -d $dir ] || mount -t tmpfs none $dir
		done`, "node", plugins)
	m.write("/etc/cni/net.d/10-pods.conflist", list)
	m.cni = libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, "/var/lib/cni", nil)
	m.list = nstest.Must(libcni.NetworkConfFromBytes([]byte(list)))
	return m
}

// ours is a directory with the plugins of the list.
func ours() string {
	GinkgoHelper()
	for _, plugin := range []string{"bridge", "portmap", "firewall"} {
		nstest.Build(plugin)
	}
	return filepath.Dir(nstest.Build("host-local"))
}

func (m *machine) write(file, content string) {
	GinkgoHelper()
	m.Do(func() { Expect(os.WriteFile(file, []byte(content), 0o644)).To(Succeed()) })
}

// pod is a container that libcni attaches.
type pod struct {
	*nstest.Host
	rt *libcni.RuntimeConf
}

func newPod(id, name string, ports ...map[string]any) *pod {
	GinkgoHelper()
	netns := nstest.NewNetns()
	return &pod{netns, &libcni.RuntimeConf{ContainerID: id, NetNS: netns.Path, IfName: "eth0",
		Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}},
		CapabilityArgs: map[string]any{"portMappings": ports}}}
}

func hostPort(host, container int) map[string]any {
	return map[string]any{"hostPort": host, "containerPort": container, "protocol": "tcp"}
}

func (m *machine) add(p *pod) (err error) {
	m.Do(func() { _, err = m.cni.AddNetworkList(context.Background(), m.list, p.rt) })
	return err
}

func (m *machine) del(p *pod) (err error) {
	m.Do(func() { err = m.cni.DelNetworkList(context.Background(), m.list, p.rt) })
	return err
}

func (m *machine) up(p *pod) *pod {
	GinkgoHelper()
	Expect(m.add(p)).To(Succeed())
	return p
}

// download is bytes that somebody gets through a host port, without a pause.
type download struct {
	got    atomic.Int64
	failed atomic.Pointer[error]
}

// downloads has a program in the container send to who connects to a port of it, and somebody get that by an address.
func (p *pod) downloads(port string, by *nstest.Host, address string) *download {
	GinkgoHelper()
	const rate, window = 8 << 20, 64 << 10 // bytes a second, and bytes that may be under way
	var listener net.Listener
	p.Do(func() { listener = nstest.Must(net.Listen("tcp4", port)) })
	DeferCleanup(listener.Close)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		raw := nstest.Must(conn.(*net.TCPConn).SyscallConn())
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate)
		})
		for block := make([]byte, window); err == nil; {
			_, err = conn.Write(block)
		}
	}()
	var conn net.Conn
	by.Do(func() { conn = nstest.Must(net.Dial("tcp4", address)) })
	DeferCleanup(conn.Close)
	Expect(conn.(*net.TCPConn).SetReadBuffer(window)).To(Succeed())
	d := &download{}
	go func() {
		for block := make([]byte, window); ; {
			n, err := conn.Read(block)
			if d.got.Add(int64(n)); err != nil {
				d.failed.Store(&err)
				return
			}
		}
	}()
	d.flows()
	return d
}

// flows waits for more bytes than were under way.
func (d *download) flows() {
	GinkgoHelper()
	was := d.got.Load()
	Eventually(func(g Gomega) {
		g.Expect(d.failed.Load()).To(BeNil())
		g.Expect(d.got.Load()).To(BeNumerically(">", was+1<<20))
	}).Should(Succeed())
}

// hawser runs the tool on the node.
func (m *machine) hawser(args ...string) nstest.Output {
	GinkgoHelper()
	return m.Run(nstest.Program{Path: nstest.Build("hawser"), Args: args})
}

// says is what the tool prints when it succeeds.
func (m *machine) says(args ...string) string {
	GinkgoHelper()
	out := m.hawser(args...)
	Expect(out.Exit).To(BeZero(), "%s%s", out.Stdout, out.Stderr)
	Expect(out.Stderr).To(BeEmpty())
	return out.Stdout
}

// asks decodes what the tool prints with --json.
func asks[T any](m *machine, args ...string) (v T) {
	GinkgoHelper()
	Expect(json.Unmarshal([]byte(m.says(append(args, "--json")...)), &v)).To(Succeed())
	return v
}

var _ = Describe("hawser", Label("tool-ls"), func() {
	fails := func(m *machine, script string) nstest.Output {
		GinkgoHelper()
		out := m.Run(nstest.Program{Path: "sh", Args: []string{"-c", `"$0" ` + script, nstest.Build("hawser")}})
		Expect(out.Exit).To(Equal(1), script)
		return out
	}

	It("refuses what it does not know", func() {
		m := newMachine(ours(), usual)
		for _, args := range []string{"bogus", "help bogus", "completion bogus"} {
			Expect(fails(m, args).Stderr).To(HavePrefix(`hawser: unknown command "bogus" for "hawser`))
		}
	})

	It("says why it fails in JSON, too", func() {
		m := newMachine(ours(), usual)
		for _, args := range []string{"gc --older -1s", "explain nobody", "test nobody", "why last",
			"watch --every 1ms", "trace http", "reapply nobody --bogus"} {
			var said struct{ Error string }
			out := fails(m, strings.Replace(args, " ", " --json ", 1))
			Expect(json.Unmarshal([]byte(out.Stdout), &said)).To(Succeed(), args)
			Expect(out.Stderr).To(HavePrefix("hawser: " + strings.Split(said.Error, "\n")[0]))
		}
	})

	It("says when it needs root", func() {
		nstest.Need("realroot") // another user exists
		nstest.NeedProgram("setpriv")
		m := newMachine(ours(), usual)
		m.Cmd("cp", nstest.Build("hawser"), "/run/tool")
		for user, says := range map[string]string{"65534": "\nhawser: this command needs root\n", "0": ""} {
			out := m.Run(nstest.Program{Path: "setpriv", Args: []string{"--reuid", user, "--clear-groups",
				"/run/tool", "gc"}})
			Expect(out.Stderr).To(HaveSuffix(says))
		}
	})

	It("fails when its output cannot be written", func() {
		m := newMachine(ours(), usual)
		for _, command := range []string{"ls", "explain", "doctor", "gc", "test", "reapply", "check", "ls --json"} {
			Expect(fails(m, command+" >/dev/full").Stderr).To(ContainSubstring("no space left on device"), command)
		}
	})

	It("ends no command halfway when no process reads its output", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1c1", "web-0", hostPort(8080, 80)))
		for _, command := range []string{"reapply", "gc --yes", "diags /etc/cni/net.d/diags.tar", "ls", "watch"} {
			reader, writer, err := os.Pipe()
			Expect(err).NotTo(HaveOccurred())
			Expect(reader.Close()).To(Succeed())
			m.Cmd("nft", "flush", "ruleset")
			cmd := exec.Command(nstest.Build("hawser"), strings.Fields(command)...)
			var stderr strings.Builder
			cmd.Stdout, cmd.Stderr = writer, &stderr
			m.Do(func() { _ = cmd.Run() })
			Expect(writer.Close()).To(Succeed())
			Expect([]any{cmd.ProcessState.ExitCode(), stderr.String()}).To(Equal([]any{141, ""}), command)
		}
		Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
	})

	It("completes no names of files where it takes none", func() {
		m := newMachine(ours(), usual)
		Expect(m.hawser("__complete", "why", "").Stdout).To(Equal(":4\n"))
		Expect(m.hawser("__complete", "check", "").Stdout).To(Equal(":0\n"))
	})
})
