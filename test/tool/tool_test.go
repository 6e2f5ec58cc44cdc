// Package tool_test runs hawser, the node's tool, on temporary nodes whose containers libcni attaches, as in all
// runtimes.
package tool_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// usual is a network of bridge, portmap and firewall. The reference also accepts it.
const usual = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "firewall"}]}`

// newMachine creates a node with a plugin directory and a list.
func newMachine(plugins, list string) *machine {
	GinkgoHelper()
	m := &machine{Host: nstest.NewHost()}
	m.Do(func() {
		for _, dir := range []string{"/etc/cni/net.d", "/opt/cni/bin"} {
			Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
		}
		Expect(unix.Mount(plugins, "/opt/cni/bin", "", unix.MS_BIND, "")).To(Succeed())
		for _, dir := range []string{"/etc/cni/net.d", "/etc/containerd", "/etc/crio", "/var/log/hawser"} {
			Expect(unix.Mount("none", dir, "tmpfs", 0, "")).To(Or(Succeed(), Equal(unix.ENOENT)), dir)
		}
	})
	m.write("/etc/cni/net.d/10-pods.conflist", list)
	m.cni = libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, "/var/lib/cni", nil)
	m.list = nstest.Must(libcni.NetworkConfFromBytes([]byte(list)))
	return m
}

// ours is a directory with Hawser's plugins for the usual list.
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

// hawser runs the tool on the node.
func (m *machine) hawser(args ...string) nstest.Output {
	GinkgoHelper()
	return m.Run(nstest.Program{Path: nstest.Build("hawser"), Args: args})
}

// starts runs the tool in the background. said returns what it has printed so far.
func (m *machine) starts(args ...string) (cmd *exec.Cmd, said func() string) {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "said")
	cmd = m.Start(nstest.Program{Path: "sh", Args: append([]string{"-c", `exec "$0" "$@" >` + file,
		nstest.Build("hawser")}, args...)})
	Eventually(file).Should(BeAnExistingFile())
	return cmd, func() string { return string(nstest.Must(os.ReadFile(file))) }
}

// problems returns the findings of doctor or check. The exit status is 1 if one of them is an error.
func (m *machine) problems(command string, args ...string) (all []finding) {
	GinkgoHelper()
	out := m.hawser(append([]string{command, "--json"}, args...)...)
	Expect(out.Stderr).To(BeEmpty())
	Expect(json.Unmarshal([]byte(out.Stdout), &all)).To(Succeed(), out.Stdout)
	status := 0
	if slices.ContainsFunc(all, func(f finding) bool { return f.Severity == "error" }) {
		status = 1
	}
	Expect(out.Exit).To(Equal(status), out.Stdout)
	return all
}

// says returns the output of the tool, which must succeed.
func (m *machine) says(args ...string) string {
	GinkgoHelper()
	out := m.hawser(args...)
	Expect(out.Exit).To(BeZero(), "%s%s", out.Stdout, out.Stderr)
	Expect(out.Stderr).To(BeEmpty())
	return out.Stdout
}

// asks decodes the output of the tool with --json.
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

	It("refuses an unknown command", func() {
		m := newMachine(ours(), usual)
		for _, args := range []string{"bogus", "help bogus", "completion bogus"} {
			Expect(fails(m, args).Stderr).To(HavePrefix(`hawser: unknown command "bogus" for "hawser`))
		}
	})

	It("also prints an error as JSON with --json", func() {
		m := newMachine(ours(), usual)
		for _, args := range []string{"gc --older -1s", "explain nobody", "test nobody", "why last",
			"watch --every 1ms", "trace http", "reapply nobody --bogus"} {
			var said struct{ Error string }
			out := fails(m, strings.Replace(args, " ", " --json ", 1))
			Expect(json.Unmarshal([]byte(out.Stdout), &said)).To(Succeed(), args)
			Expect(out.Stderr).To(HavePrefix("hawser: " + strings.Split(said.Error, "\n")[0]))
		}
	})

	It("says that a command needs root", func() {
		nstest.Need("realroot") // another user ID is mapped
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

	It("completes its work when no process reads its output", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1c1", "web-0", hostPort(8080, 80)))
		for _, command := range []string{"reapply", "gc --yes", "diags /etc/cni/net.d/diags.tar", "ls", "watch"} {
			m.Cmd("nft", "flush", "ruleset")
			out := m.RunUnread(nstest.Program{Path: nstest.Build("hawser"), Args: strings.Fields(command)})
			Expect([]any{out.Exit, out.Stderr}).To(Equal([]any{141, ""}), command)
		}
		Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
	})

	It("completes file names only where it accepts files", func() {
		m := newMachine(ours(), usual)
		Expect(m.hawser("__complete", "why", "").Stdout).To(Equal(":4\n"))
		Expect(m.hawser("__complete", "check", "").Stdout).To(Equal(":0\n"))
	})
})

// raw must reach no terminal: escape sequences of C0 and C1, and a character that reverses the text.
const raw = "\x1b[31m\u009b1m\u202eX"

// isRaw reports whether a character must not reach a terminal.
func isRaw(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }

var _ = Describe("what the tool prints", Label("tool-quote"), func() {
	// hostile is a node on which each text of another program contains such characters.
	hostile := func() *machine {
		GinkgoHelper()
		bin := GinkgoT().TempDir()
		for _, name := range []string{"bridge", "portmap", "firewall", "host-local"} {
			file := nstest.Must(os.ReadFile(filepath.Join(ours(), name)))
			Expect(os.WriteFile(filepath.Join(bin, name), file, 0o755)).To(Succeed())
		}
		m := newMachine(bin, strings.ReplaceAll(usual, "10.88.0", "10.101.30"))
		p := m.up(newPod("c1", "web"+raw, hostPort(8080, 80)))
		m.up(newPod("c2", "gone"+raw)).Unpin()
		m.Cmd("ip", "link", "set", "cni0", "name", "b\x1b[31mX")
		m.Cmd("nft", "add table inet admin; "+
			"add chain inet admin no { type filter hook forward priority 5; policy drop; comment \"\x1b[31mX\"; }")
		quoted, _ := json.Marshal("said " + raw)
		m.write("/etc/cni/net.d/20-"+"x\x1b[31mX"+".conflist", `{"cniVersion": "1.0.0", "name": `+string(quoted)+`}`)
		m.write("/etc/cni/net.d/30.conflist", "{"+raw)
		m.write("/var/lib/cni/results/damaged"+raw, "{")
		plugin := "#!/bin/sh\nprintf '%s' '" + `{"cniVersion": "1.0.0", "code": 7, "msg": ` + string(quoted) +
			"}'; exit 1\n"
		Expect(os.WriteFile(filepath.Join(bin, "portmap"), []byte(plugin), 0o755)).To(Succeed())
		m.Do(func() { Expect(os.MkdirAll("/var/log/hawser", 0o755)).To(Succeed()) })
		m.write("/var/log/hawser/x", `{"plugin": `+string(quoted)+`, "verb": `+string(quoted)+`, "ms": 1}`)
		p.Cmd("ip", "link", "set", "eth0", "down")
		Expect(m.add(newPod("c3", "new"+raw))).NotTo(Succeed())
		return m
	}

	It("quotes the text of other programs, and is still valid JSON", func() {
		m := hostile()
		seen := ""
		for _, line := range []string{"ls", "why last", "why c3", "why nobody" + raw, "explain", "explain 8080",
			"explain c1", "doctor", "check", "gc --older 0s", "gc --older 0s --yes", "reapply", "metrics",
			"metrics --check", "test",
			"test " + raw, "trace 8081 --for 10ms", raw, "ls --" + raw, "ls --conf /" + raw} {
			out := m.hawser(strings.Split(line, " ")...)
			seen += out.Stdout + out.Stderr
			at := strings.IndexFunc(out.Stdout+out.Stderr, isRaw)
			Expect(at).To(Equal(-1), "%s: %q", line, out.Stdout+out.Stderr)
			asJSON := m.hawser(append(strings.Split(line, " "), "--json")...)
			Expect(strings.IndexFunc(asJSON.Stdout+asJSON.Stderr, isRaw)).To(Equal(-1), "%s: %q", line, asJSON)
			if asJSON.Stdout != "" {
				Expect(json.Valid([]byte(asJSON.Stdout))).To(BeTrue(), "%s: %s", line, asJSON.Stdout)
			}
		}
		Expect(seen).To(ContainSubstring(`web\u001b[31m\u009b1m\u202eX`))
		Expect(m.hawser("metrics").Stdout).To(ContainSubstring(`plugin="said \\u001b[31m`))
	})

	It("keeps the text of other programs in JSON", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web"+raw+"\U000e0001"))
		Expect(asks[[]struct{ Pod string }](m, "ls")).To(ConsistOf(HaveField("Pod", "shop/web"+raw+"\U000e0001")))
	})
})

// The session of docs/troubleshooting.md comes from this node: web-1 requests the host port of web-0, and another
// program flushes the rules.
var _ = It("prints what docs/troubleshooting.md shows", Label("tool-readme"), func() {
	m := newMachine(ours(), usual)
	m.up(newPod("c0ffee01", "web-0", hostPort(8080, 80)))
	late := newPod("c0ffee02", "web-1", hostPort(8080, 80))
	Expect(m.add(late)).To(HaveOccurred())
	Expect(m.del(late)).To(Succeed())
	page := string(nstest.Must(os.ReadFile(nstest.Root() + "/docs/troubleshooting.md")))
	_, session, _ := strings.Cut(page, "```console\n")
	session, _, _ = strings.Cut(session, "```\n")
	var shown strings.Builder
	for _, line := range strings.Split(session, "\n") {
		command, isCommand := strings.CutPrefix(line, "# ")
		if !isCommand {
			continue
		}
		shown.WriteString(line + "\n")
		out := m.Run(nstest.Program{Path: "/bin/sh", Args: []string{"-c", command},
			Env: append(os.Environ(), "PATH="+binDir()+":"+os.Getenv("PATH"))})
		Expect(out.Stderr).To(BeEmpty())
		shown.WriteString(out.Stdout)
	}
	same := func(text string) string {
		text = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ][0-9:.+Z]+`).ReplaceAllString(text, "DATE")
		text = regexp.MustCompile(`veth[0-9a-f]{8}`).ReplaceAllString(text, "VETH")
		return regexp.MustCompile(`[ \t]+`).ReplaceAllString(text, " ")
	}
	Expect(same(shown.String())).To(Equal(same(session)), shown.String())
})

func binDir() string { return strings.TrimSuffix(nstest.Build("hawser"), "/hawser") }

// readOnly prevents the calling thread, and what it starts, from changing a file system: such calls fail. What netlink
// changes in the kernel is compared instead.
func readOnly() {
	GinkgoHelper()
	for _, mode := range []uint32{unix.O_WRONLY, unix.O_RDWR} {
		nstest.FailCall(unix.SYS_OPENAT, unix.EROFS, nstest.Arg{Number: 2, Value: mode, Mask: unix.O_ACCMODE})
	}
	nstest.FailCall(unix.SYS_OPENAT, unix.EROFS, nstest.Arg{Number: 2, Value: unix.O_CREAT, Mask: unix.O_CREAT})
	for _, call := range []uint32{unix.SYS_OPENAT2, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2,
		unix.SYS_MKDIRAT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN,
		unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT, unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_SETXATTR,
		unix.SYS_FSETXATTR, unix.SYS_MKNODAT, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_FALLOCATE} {
		nstest.FailCall(call, unix.EROFS)
	}
}

// changesNothing runs the tool, and compares the state of the kernel and the node's directories before and after.
func (m *machine) changesNothing(args ...string) nstest.Output {
	GinkgoHelper()
	before := m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")
	out := m.hawser(args...)
	Expect(m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")).To(Equal(before))
	return out
}

// onlyLooks runs the tool with and without write access, and compares.
func (m *machine) onlyLooks(args ...string) {
	GinkgoHelper()
	before := m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")
	free := m.changesNothing(args...)
	out := m.Run(nstest.Program{Path: nstest.Build("hawser"), Args: args, Before: readOnly})
	Expect([]any{out.Exit, out.Stdout, out.Stderr}).To(Equal([]any{free.Exit, free.Stdout, free.Stderr}))
	Expect(m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")).To(Equal(before))
}

var _ = It("a command that only reads works without write access", Label("tool-read-only", "slow"), func() {
	m := newMachine(ours(), usual)
	m.up(newPod("c0ffee01", "web-0", hostPort(8080, 80)))
	late := newPod("c0ffee02", "web-1", hostPort(8080, 80))
	Expect(m.add(late)).To(HaveOccurred())
	for _, lose := range []string{"true", "nft flush ruleset"} {
		m.Cmd("sh", "-c", lose)
		for _, command := range []string{"ls", "ls --orphans", "why web-1", "explain 8080", "explain", "doctor",
			"check", "gc", "metrics", "metrics --check"} {
			m.onlyLooks(strings.Fields(command)...)
		}
	}
})

// Not by onlyLooks: there the tool runs iptables, for which os/exec opens /dev/null for writing.
var _ = It("such a command changes nothing on a node of the reference either", Label("tool-read-only", "slow"), func() {
	nstest.Need("iptables")
	tuned := strings.Replace(usual, `{"type": "firewall"}`, `{"type": "firewall"}, {"type": "tuning", "mtu": 1400},
		{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000}, {"type": "sbr"}`, 1)
	m := newMachine(nstest.Newest().Dir(), tuned)
	m.up(newPod("c0ffee01", "web-0", hostPort(8080, 80)))
	for _, lose := range []string{"true", "iptables -F; iptables -t nat -F; iptables -X; iptables -t nat -X",
		"nft flush ruleset"} {
		m.Cmd("sh", "-c", lose)
		for _, command := range []string{"ls", "explain", "doctor", "gc", "metrics --check"} {
			m.changesNothing(strings.Fields(command)...)
		}
	}
})
