package tool_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// replaces changes the list of the node.
func (g gcNode) replaces(old, with string) {
	GinkgoHelper()
	text := strings.Replace(string(g.list.Bytes), old, with, 1)
	Expect(text).NotTo(BeEquivalentTo(g.list.Bytes))
	g.list = nstest.Must(libcni.NetworkConfFromBytes([]byte(text)))
}

// wrap puts a shell script in the place of a plugin, whose file is $real in the script.
func (g gcNode) wrap(plugin, script string) {
	GinkgoHelper()
	file, moved := filepath.Join(g.plugins, plugin), filepath.Join(g.bin, plugin)
	Expect(os.WriteFile(moved, nstest.Must(os.ReadFile(file)), 0o755)).To(Succeed())
	Expect(os.Remove(file)).To(Succeed())
	Expect(os.WriteFile(file, []byte("#!/bin/sh\nreal="+moved+"\n"+script+"\n"), 0o755)).To(Succeed())
}

// gate is a shell command that waits until the spec opens the gate; reached waits for the first one that waits there.
func (g gcNode) gate() (command string, reached, open func()) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	g.Cmd("mkfifo", dir+"/reached", dir+"/go")
	return fmt.Sprintf("[ -e %s/open ] || { echo >%[1]s/reached; read line <%[1]s/go; }", dir),
		func() { g.Cmd("timeout", "60", "sh", "-c", "read line <"+dir+"/reached") },
		func() { g.Cmd("timeout", "60", "sh", "-c", "touch "+dir+"/open; echo >"+dir+"/go") }
}

// watchesFor starts watch, and returns a function that flushes all rules and waits until watch has restored those of a
// pod with a host port. The rules are flushed before watch starts, too, so that its first pass has ended. If a flush
// comes during a pass, watch may report shared chains as another pod's.
func (g gcNode) watchesFor(live *pod) (flush func()) {
	GinkgoHelper()
	deleteRules := func() { g.Cmd("nft", "delete", "table", "inet", "hawser") }
	deleteRules()
	said := g.watches()
	restored := func() int {
		return strings.Count(said(), fmt.Sprintf("restored: network \"pods\", container %q", live.rt.ContainerID))
	}
	const each = 3 // bridge, portmap and firewall
	Eventually(restored).Should(Equal(each))
	return func() {
		GinkgoHelper()
		was := restored()
		deleteRules()
		Eventually(restored).Should(BeNumerically(">=", was+each))
	}
}

var _ = Describe("an attachment whose DEL has begun", Label("tool-ending"), func() {
	rules := func(g gcNode) string { return g.Cmd("nft", "list", "ruleset") }
	isLeft := Or(ContainSubstring("8080"), ContainSubstring(" ended "))

	DescribeTable("is not restored during a long DEL, and nothing outlives it", func(ipam string) {
		g := newGCNode(ours(), "10.77.5")
		outside := nstest.NewOutside(g.Host)
		g.replaces(`"subnet"`, `"rangeStart": "10.77.5.2", "rangeEnd": "10.77.5.3", "subnet"`)
		wait, reached, open := g.gate()
		g.wrap("host-local", `[ $CNI_COMMAND != DEL ] || { `+wait+`; }; exec $real`)
		if ipam != "host-local" {
			g.Cmd("mv", g.plugins+"/host-local", g.plugins+"/"+ipam)
			g.replaces("host-local", ipam)
		}
		gone := g.up(newPod("ended", "web-0", hostPort(8080, 80)))
		live := g.up(newPod("lives", "web-1", hostPort(9090, 80)))
		flush := g.watchesFor(live)
		flush()
		Expect(rules(g)).To(isLeft, "it lives")
		end := make(chan error, 1)
		go func() { end <- g.del(gone) }()
		reached()
		flush()
		Expect(rules(g)).NotTo(isLeft)
		Expect(g.hawser("reapply", "ended").Stdout).NotTo(ContainSubstring(": restored"))
		Expect(rules(g)).NotTo(isLeft)
		open()
		Expect(<-end).To(Succeed())
		Expect(g.hawser("ls", "--json").Stdout).NotTo(ContainSubstring("ended"))
		next := g.up(newPod("next", "web-2"))
		Expect(next.Cmd("ip", "-4", "addr", "show", "eth0")).To(ContainSubstring("10.77.5.2/"), "that of the first")
		next.Serve("tcp4", ":80")
		flush()
		Expect(rules(g)).NotTo(isLeft)
		_, err := outside.AskWithin(nstest.Patience(300e6), "tcp4", "192.0.2.1:8080")
		Expect(err).To(HaveOccurred(), "it published nothing")
	},
		Entry("after its link was deleted", "host-local"),
		Entry("before its link is deleted, by an IPAM plugin that needs it", "dhcp-like"))

	It("leaves its host port to a replacement while its DEL keeps failing", func() {
		g := newGCNode(ours(), "10.77.6")
		g.Cmd("cp", nstest.Build("tuning"), g.plugins)
		g.wrap("tuning", `[ $CNI_COMMAND != DEL ] || { echo '{"code": 5, "msg": "no answer"}'; exit 1; }
			exec $real`)
		g.replaces(`{"type": "portmap"`, `{"type": "tuning"}, {"type": "portmap"`) // whose DEL comes first
		gone := g.up(newPod("ended", "web-0", hostPort(8080, 80)))
		live := g.up(newPod("lives", "web-1", hostPort(9090, 80)))
		flush := g.watchesFor(live)
		for range 2 {
			Expect(g.del(gone)).To(MatchError(ContainSubstring("no answer")))
			flush()
			Expect(g.hawser("reapply", "ended").Stdout).NotTo(ContainSubstring("portmap: restored"))
		}
		Expect(g.add(newPod("next", "web-0", hostPort(8080, 80)))).To(Succeed())
		flush() // restored maybe by a pass that began before the replacement was attached
		Eventually(rules).WithArguments(g).Should(MatchRegexp(`tcp \. 8080 comment "[0-9a-f]+ pods next eth0"`))
	})
})

var _ = Describe("settings and limits", Label("tool-ending"), func() {
	It("are restored while the container is attached, but not after their DEL", func() {
		g := newGCNode(ours(), "10.77.4")
		g.Cmd("cp", nstest.Build("tuning"), nstest.Build("bandwidth"), g.plugins)
		g.replaces(`{"type": "firewall"}`, `{"type": "tuning", "sysctl": {"net.ipv4.ip_default_ttl": "77"}},
			{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000,
			"egressBurst": 8000000}`)
		p := g.up(newPod("c1c1", "web-0"))
		shape := func() string { return g.Cmd("sh", "-c", "tc qdisc show | grep tbf | cut -d: -f2-") }
		shaped, links := shape(), g.Cmd("ip", "-br", "link")
		ttl := func() string { return p.Cmd("cat", "/proc/sys/net/ipv4/ip_default_ttl") }
		damage := func() {
			p.Cmd("sh", "-c", "echo 64 >/proc/sys/net/ipv4/ip_default_ttl")
			g.Cmd("sh", "-c", "tc qdisc del dev $(basename /sys/class/net/veth*) root")
		}
		damage()
		Expect(g.says("reapply")).To(And(ContainSubstring("tuning: restored"),
			ContainSubstring("bandwidth: restored")))
		Expect(ttl()).To(Equal("77\n"))
		Expect(shape()).To(Equal(shaped))
		Expect(g.Cmd("ip", "-br", "link")).To(Equal(links))

		chain := &libcni.NetworkConfigList{Name: "pods", CNIVersion: "1.0.0", Plugins: g.list.Plugins[1:]}
		const file = "/var/lib/cni/results/pods-c1c1-eth0"
		g.Cmd("cp", "-p", file, "/run/cached")
		g.Do(func() { Expect(g.cni.DelNetworkList(context.Background(), chain, p.rt)).To(Succeed()) })
		g.Cmd("cp", "-p", "/run/cached", file)
		was := g.Files("/run", "/var/lib/cni")
		Expect(g.hawser("reapply").Exit).To(Equal(1))
		Expect(ttl()).To(Equal("64\n"))
		Expect(g.Cmd("sh", "-c", "ip -br link show type ifb")).To(BeEmpty())
		Expect(g.Files("/run", "/var/lib/cni")).To(Equal(was))
	})
})

var _ = Describe("a repair of rules", Label("tool-ending"), func() {
	// onIPTables is a node with a pod whose rules in iptables are damaged, and what was there before.
	onIPTables := func(subnet string) (g gcNode, saved func() string) {
		g = newGCNode(ours(), subnet)
		g.replaces(`"type": "portmap"`, `"type": "portmap", "backend": "iptables"`)
		g.replaces(`"type": "firewall"`, `"type": "firewall", "backend": "iptables"`)
		g.up(newPod("owner", "web-0", hostPort(8080, 80)))
		return g, func() string { return g.Cmd("sh", "-c", "iptables -t nat -S; iptables -S") }
	}
	// before has the tool, and plugins that it calls, run a command before iptables gets rules with a text.
	before := func(g gcNode, text, command string) (env []string) {
		g.program("iptables-restore", fmt.Sprintf(`input=$(cat); case "$input" in *%s*) %s;; esac
			printf '%%s\n' "$input" | exec %s "$@"`, text, command, nstest.Must(exec.LookPath("iptables-restore"))))
		return []string{"PATH=" + g.bin + ":" + os.Getenv("PATH")}
	}
	const damage = `iptables -t nat -D $(iptables -t nat -S | grep -e --to-destination | cut -d" " -f2-)
		iptables -D $(iptables -S | grep -e "-s 10.77.* -j ACCEPT" | cut -d" " -f2-)`

	It("gives another ADD no time to claim a host port", func() {
		g, saved := onIPTables("10.77.7")
		whole := saved()
		wait, reached, open := g.gate()
		g.wrap("portmap", `$real; code=$?; [ $CNI_COMMAND != DEL ] || { `+wait+`; }; exit $code`)
		env := before(g, "--to-destination", wait)
		g.Cmd("sh", "-c", damage)
		again := g.Start(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"reapply"}, Env: env})
		reached()
		added := make(chan error, 1)
		go func() { added <- g.add(newPod("thief", "web-1", hostPort(8080, 80))) }()
		Eventually(func() bool { return len(added) > 0 || strings.Contains(g.Cmd("cat", "/proc/locks"), "->") }).Should(
			BeTrue(), "the other one is done, or waits")
		open()
		Expect(again.Wait()).To(Succeed())
		Expect(<-added).To(MatchError(ContainSubstring("held")))
		Expect(saved()).To(Equal(whole))
	})

	It("is completed when a signal ends the tool", func() {
		g, saved := onIPTables("10.77.9")
		whole := saved()
		wait, reached, open := g.gate()
		g.Cmd("sh", "-c", damage)
		again := g.Start(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"reapply"},
			Env: before(g, "-A*--to-destination", wait)})
		reached()
		Expect(again.Process.Signal(syscall.SIGTERM)).To(Succeed())
		open()
		_ = again.Wait()
		Expect(strings.Contains(saved(), "--to-destination")).To(BeTrue(), "%s\nwas:\n%s", saved(), whole)
	})

	It("changes nothing if it fails", func() {
		for _, added := range []string{"--to-destination", "-s 10.77.8.2/32 -j ACCEPT"} {
			g, saved := onIPTables("10.77.8")
			g.Cmd("sh", "-c", damage)
			was := saved() + g.Files("/run/hawser/portmap", "/run/hawser/firewall")
			out := g.Run(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"reapply"},
				Env: before(g, "-A*"+strings.ReplaceAll(added, " ", "*"), "exit 4")})
			Expect(out.Exit).To(Equal(1), out.Stdout)
			g.Cmd("sh", "-c", damage+" || true") // what another plugin restored
			Expect(saved() + g.Files("/run/hawser/portmap", "/run/hawser/firewall")).To(Equal(was))
		}
	})
})

var _ = Describe("a missing rule", Label("tool-ending"), func() {
	flush := func(m *machine) { m.Cmd("nft", "delete", "table", "inet", "hawser") }

	It("is restored for a container whose runtime has taken the addresses from the interface, as gVisor does", func() {
		m := newMachine(ours(), usual)
		p := m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		whole := m.rules()
		p.Cmd("ip", "addr", "flush", "dev", "eth0", "scope", "global")
		flush(m)
		m.hawser("reapply")
		Expect(m.rules()).To(Equal(whole))
	})

	It("is not restored, but explained, if an address or the record is missing, too", func() {
		m := newMachine(ours(), usual)
		p := m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		p.Cmd("ip", "addr", "add", "198.51.100.1/24", "dev", "eth0")
		p.Cmd("sh", "-c", "ip addr del $(ip -o -4 addr show dev eth0 scope global | awk '{print $4; exit}') dev eth0")
		flush(m)
		Expect(m.hawser("reapply").Stdout).To(MatchRegexp(
			`host ports: not restored: interface "eth0": does not have the address [0-9.]+; restart the container`))
		m.Cmd("sh", "-c", "rm /run/hawser/portmap/*.json")
		Expect(m.hawser("reapply").Stdout).To(ContainSubstring("host ports: not restored: it has no record"))
	})
})
