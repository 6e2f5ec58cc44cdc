package tool_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// tester is a node whose lists are tested; behind its uplink is a DNS server.
type tester struct {
	*machine
	plugins string
}

// newTester makes a node with its own plugin directory.
func newTester(plugins, list string) tester {
	GinkgoHelper()
	t := tester{plugins: GinkgoT().TempDir()}
	for _, name := range []string{"bridge", "ptp", "portmap", "firewall", "host-local", "dhcp", "loopback"} {
		place(filepath.Join(plugins, name), t.plugins)
	}
	t.machine = newMachine(t.plugins, list)
	outside := nstest.NewOutside(t.Host)
	outside.Serve("udp4", "192.0.2.2:53")
	t.IP("route add default via 192.0.2.2", "route add default via 2001:db8::2")
	return t
}

// place links a program into a directory, or copies it if the directory is on another file system.
// A spec may rename the file, but must not write to it.
func place(file, dir string) {
	GinkgoHelper()
	name := filepath.Join(dir, filepath.Base(file))
	if os.Link(file, name) != nil {
		Expect(os.WriteFile(name, nstest.Must(os.ReadFile(file)), 0o755)).To(Succeed())
	}
}

// wrap replaces a plugin by a script, which can run the plugin as "$0.real".
func (t tester) wrap(plugin, script string) {
	GinkgoHelper()
	file := filepath.Join(t.plugins, plugin)
	Expect(os.Rename(file, file+".real")).To(Succeed())
	Expect(os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o755)).To(Succeed())
}

// hangs starts hawser test, and returns when firewall's ADD hangs.
func (t tester) hangs() *exec.Cmd {
	GinkgoHelper()
	t.wrap("firewall", `[ "$CNI_COMMAND" = ADD ] || exec "$0.real"; touch /run/hangs; exec sleep 60`)
	cmd := t.Start(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"test"}})
	Eventually(func() string { return t.Files("/run") }).Should(ContainSubstring("/run/hangs"))
	t.Cmd("rm", "/run/hangs")
	return cmd
}

// test runs hawser test and returns the outcome of each step. The exit status must agree with the output.
func (t tester) test(args ...string) map[string]string {
	GinkgoHelper()
	out := t.hawser(append([]string{"test", "--json"}, args...)...)
	var said struct {
		OK    bool
		Steps []struct {
			Step, Status, Why string
			Seconds           float64
		}
	}
	Expect(json.Unmarshal([]byte(out.Stdout), &said)).To(Succeed(), out.Stdout+out.Stderr)
	Expect(out.Stderr).To(BeEmpty())
	Expect(out.Exit == 0).To(Equal(said.OK))
	words := map[string]string{}
	for _, s := range said.Steps {
		words[s.Step] = strings.TrimSuffix(s.Status+": "+s.Why, ": ")
	}
	Expect(words).To(HaveLen(11))
	return words
}

// state is all that a test must leave unchanged, without host-local's counter and its copy of the leases.
func (t tester) state() string {
	GinkgoHelper()
	t.Cmd("sh", "-c", "rm -rf /var/lib/cni/networks/*/last_reserved_ip.* /var/lib/cni/networks/.hawser")
	return t.Snapshot() + t.Files("/run", "/var/lib/cni")
}

const dual = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
   "dns": {"nameservers": ["192.0.2.2", "192.0.2.9"]},
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "firewall"}]}`

const pointToPoint = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.88.0.0/24",
   "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`

func reference() string { return nstest.Newest().Dir() }

func all() string {
	GinkgoHelper()
	for _, plugin := range append(nstest.Plugins(), nstest.Apart) {
		nstest.Build(plugin)
	}
	return ours()
}

// works matches the outcomes on a node without faults.
func works() types.GomegaMatcher {
	ok := Equal("ok")
	return And(HaveKeyWithValue("CHECK", ok), HaveKeyWithValue("gateway", HavePrefix("ok: 10.88.0.1")),
		HaveKeyWithValue("MTU", "ok: 1500"), HaveKeyWithValue("neighbor", "ok: the containers reach each other"),
		HaveKeyWithValue("DEL", ok), HaveKeyWithValue("DEL again", ok), HaveKeyWithValue("leftovers", ok),
		HaveKeyWithValue("host port", MatchRegexp(
			`^ok: host by 192.0.2.1:\d+, neighbor by 192.0.2.1:\d+,.* host by 127.0.0.1:`)))
}

var _ = Describe("hawser test", Label("tool-test"), func() {
	DescribeTable("finds that a list works, and leaves nothing",
		func(plugins func() string, list string, also types.GomegaMatcher) {
			t := newTester(plugins(), list)
			Expect(t.test()).To(And(works(), also))
			was := t.state() // with the bridge and what all containers share
			Expect(t.test("pods")).To(And(works(), also))
			Expect(t.state()).To(Equal(was))
			Expect(t.says("ls")).NotTo(ContainSubstring("pods"))
		},
		Entry("of Hawser", all, dual, both()), Entry("of the reference", Label("slow"), reference, dual, both()),
		Entry("of Hawser: ptp", all, pointToPoint, one()),
		Entry("of the reference: ptp", Label("slow"), reference, pointToPoint, one()))

	type change struct {
		what       string
		do         func(tester)
		step, says string
		waits      bool // the step waits for seconds: make test leaves it out
	}
	changes := []change{
		{"a gateway that does not answer", func(t tester) {
			const subnet = `"subnet": "10.88.0.0/24"`
			t.Cmd("sh", "-c", edit(subnet, subnet+`, "rangeStart": "10.88.0.2", "gateway": "10.88.0.99"`)+
				";"+edit(`"isGateway": true, `, "")+";"+edit("portMappings", "none"))
		}, "gateway", "failed: 10.88.0.99 does not answer ICMP echo, nor ARP or ND", false},
		{"a plugin that is missing", func(t tester) {
			t.Cmd("sh", "-c", edit(`"type": "firewall"`, `"type": "firewell"`))
		}, "ADD", `failed: plugin "firewell" is not in `, false},
		{"a bridge that drops", func(t tester) {
			t.Cmd("nft", "add table bridge admin; "+
				"add chain bridge admin no { type filter hook forward priority 0; policy drop; }")
		}, "neighbor", "failed: the containers do not reach each other: 10.88.0.", true},
		{"packets that are too large", func(t tester) {
			t.Cmd("nft", `add table inet admin; add chain inet admin no { type filter hook input priority 0; };
				add rule inet admin no meta length > 1400 drop`)
		}, "MTU", "failed: 10.88.0.1 does not answer ICMP echo in packets of 1500 bytes, the interface's MTU", true},
		{"a host port that is dropped", func(t tester) {
			t.Cmd("nft", `add table inet admin; add chain inet admin no { type filter hook output priority 0; };
				add rule inet admin no tcp dport 80 drop`)
		}, "host port", "failed: dial tcp 192.0.2.1:", true},
		{"an address that two containers have", func(t tester) {
			t.wrap("host-local", `echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.88.0.7/24"}]}'`)
		}, "second ADD", "failed: both containers have 10.88.0.7", false},
	}
	DescribeTable("names the step that fails, and leaves nothing", func(plugins func() string) {
		t := newTester(plugins(), usual)
		t.test()
		was := t.state()
		for _, c := range changes {
			if c.waits && nstest.Quick() {
				continue
			}
			c.do(t)
			Expect(t.test()).To(And(HaveKeyWithValue(c.step, HavePrefix(c.says)),
				HaveKeyWithValue("leftovers", "ok")), c.what)
			t.write(listFile, usual)
			_ = os.Rename(filepath.Join(t.plugins, "host-local.real"), filepath.Join(t.plugins, "host-local"))
			t.Cmd("sh", "-c", "nft delete table inet admin; nft delete table bridge admin; true")
			Expect(t.state()).To(Equal(was), c.what)
		}
	}, Entry("of Hawser", all), Entry("of the reference", Label("slow"), reference))

	DescribeTable("names what DEL leaves", func(plugins func() string) {
		t := newTester(plugins(), usual)
		t.wrap("host-local", `[ "$CNI_COMMAND" = DEL ] || exec "$0.real"`)
		t.wrap("firewall", `[ "$CNI_COMMAND" = DEL ] && cat || exec "$0.real"`)
		Expect(t.test()).To(And(HaveKeyWithValue("DEL", "ok"), HaveKeyWithValue("leftovers", And(
			HavePrefix("failed: "), ContainSubstring("address 10.88.0.2 (/var/lib/cni/networks/pods/10.88.0.2)"),
			MatchRegexp("firewall 10.88.0.2|rule for 10.88.0.2 in ip filter, chain CNI-FORWARD")))))
	}, Entry("of Hawser", all), Entry("of the reference", Label("slow"), reference))

	It("limits the time of a plugin that hangs, and still runs the others", Label("slow"), func() {
		t := newTester(all(), usual)
		t.test()
		was := t.state()
		t.wrap("firewall", `(while [ -e "$0" ]; do sleep 1; done)`) // the inner process survives, until the spec ends
		began, limit := time.Now(), nstest.Patience(10*time.Second)
		over := "timed out (--timeout " + limit.String() + ")"
		Expect(t.test("--timeout", limit.String())).To(And(
			HaveKeyWithValue("ADD", ContainSubstring("firewall: "+over+": signal: killed")),
			HaveKeyWithValue("gateway", "skipped: "+over),
			HaveKeyWithValue("DEL", ContainSubstring("firewall: timed out after "+(limit/10).String())),
			HaveKeyWithValue("DEL again", "skipped: DEL did not succeed"), HaveKeyWithValue("leftovers", "ok")))
		Expect(time.Since(began)).To(BeNumerically("<", limit*3/2))
		Expect(t.state()).To(Equal(was))
	})

	DescribeTable("removes everything when it is ended", func(signal syscall.Signal) {
		t := newTester(all(), usual)
		t.test()
		was := t.state()
		cmd := t.hangs()
		Expect(cmd.Process.Signal(signal)).To(Succeed())
		_ = cmd.Wait()
		Expect(cmd.ProcessState.ExitCode()).To(Equal(1))
		Expect(t.state()).To(Equal(was))
	}, Entry("by Ctrl-C", Label("slow"), syscall.SIGINT), Entry("by SIGTERM", syscall.SIGTERM))

	It("removes everything when no process reads its output", func() {
		t := newTester(all(), usual)
		t.test()
		was := t.state()
		out := t.RunUnread(nstest.Program{Path: nstest.Build("hawser"), Args: []string{"test"}})
		Expect(out.Exit).To(Equal(1), out.Stderr)
		Expect(t.state()).To(Equal(was))
	})

	It("leaves only what gc removes, and no namespace, when it is killed", func() {
		t := newTester(all(), strings.ReplaceAll(usual, "10.88.0", "10.101.9")) // gc searches the host for it
		t.test()
		was := t.state()
		cmd := t.hangs()
		Expect(cmd.Process.Kill()).To(Succeed())
		_ = cmd.Wait()
		Eventually(func() string { return t.Cmd("ip", "link") }).ShouldNot(ContainSubstring("veth"))
		Expect(t.says("gc", "--yes", "--older", "0s")).To(ContainSubstring("hawser-test-"))
		Expect(t.state()).To(Equal(was))
	})

	It("leaves no record of a failure, and prints the plugin's message", func() {
		t := newTester(all(), strings.Replace(usual, `"ipMasq"`, `"mtu": 7, "ipMasq"`, 1))
		Expect(t.test()).To(HaveKeyWithValue("ADD", ContainSubstring("mtu")))
		Expect(t.hawser("why", "last").Exit).To(Equal(1))
		Expect(t.Cmd("sh", "-c", "ls /run/hawser/failures 2>/dev/null || true")).To(BeEmpty())
	})

	DescribeTable("reports without failing", func(from, to, step, says string) {
		t := newTester(all(), strings.Replace(dual, from, to, 1))
		t.IP("link set ext mtu 1400")
		Expect(t.test("/etc/cni/net.d/10-pods.conflist")).To(HaveKeyWithValue(step, says))
	},
		Entry("no CHECK", `"name"`, `"disableCheck": true, "name"`, "CHECK", "skipped: disableCheck is true"),
		Entry("a version without CHECK", Label("slow"), "1.0.0", "0.3.1", "CHECK",
			"skipped: cniVersion is older than 0.4.0"),
		Entry("isolation", Label("slow"), `"isGateway"`, `"portIsolation": true, "isGateway"`, "neighbor",
			"ok: the containers do not reach each other: 10.88.0.3 does not answer ICMP echo"),
		Entry("a larger MTU", "1.0.0", "1.0.0", "MTU", "ok: 1500, warning: the host's ext has 1400"),
		Entry("no DNS", Label("slow"), `"dns"`, `"sdn"`, "DNS", "skipped: the result has no DNS server"),
		Entry("no host ports", `"portMappings"`, `"bandwidth"`, "host port",
			"skipped: no plugin of the list uses portMappings"))

	DescribeTable("does not fail for packets that a list blocks", func(from, to string) {
		t := newTester(all(), strings.Replace(usual, from, to, 1))
		place(nstest.Build("tc-redirect-tap"), t.plugins)
		Expect(t.test()).NotTo(ContainElement(HavePrefix("failed")))
	},
		Entry("by isolated ports", `"isGateway"`, `"portIsolation": true, "isGateway"`),
		Entry("by a policy", `"type": "firewall"`, `"type": "firewall", "ingressPolicy": "isolated"`),
		Entry("for a virtual machine", `"type": "firewall"`, `"type": "tc-redirect-tap"`))

	It("accepts a gateway that answers only ARP", Label("slow"), func() {
		t := newTester(all(), dual)
		t.Cmd("nft", `add table inet admin; add chain inet admin no { type filter hook input priority 0; };
			add rule inet admin no icmp type echo-request drop; add rule inet admin no icmpv6 type echo-request drop`)
		Expect(t.test()).To(And(
			HaveKeyWithValue("gateway", "ok: 10.88.0.1 by ARP or ND only, fd00:88::1 by ARP or ND only"),
			HaveKeyWithValue("MTU", "ok: 1500, not tested: no gateway answers ICMP echo")))
	})

	DescribeTable("works with dhcp, if its daemon does", func(plugins func() string) {
		t := newTester(plugins(), `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		  {"type": "bridge", "bridge": "cni0", "ipam": {"type": "dhcp"}}]}`)
		Expect(t.test()).To(And(HaveKeyWithValue("ADD", ContainSubstring("dhcp.sock")),
			HaveKeyWithValue("leftovers", "ok")))
		t.IP("addr add 10.88.0.1/24 dev cni0")
		plugintest.DHCPDaemon(t.Host, t.plugins)
		plugintest.ServeDHCP(t.Host, "cni0", "10.88.0.50,10.88.0.60")
		Expect(t.test()).To(And(HaveKeyWithValue("ADD", HavePrefix("ok: 10.88.0.")),
			HaveKeyWithValue("gateway", "ok: 10.88.0.1"), HaveKeyWithValue("leftovers", "ok")))
	}, Entry("of Hawser", all), Entry("of the reference", Label("slow"), reference))

	It("tries a gateway with a link-local address", Label("slow"), func() {
		t := newTester(all(), strings.NewReplacer(`"dst": "::/0"`, `"dst": "::/0", "gw": "fe80::77"`, "nameservers",
			"search").Replace(dual))
		Expect(t.test()).To(HaveKeyWithValue("gateway", ContainSubstring("fe80::77 does not answer")))
		t.IP("addr add fe80::77/64 dev cni0 nodad")
		Expect(t.test()).To(HaveKeyWithValue("gateway", "ok: 10.88.0.1, fe80::77"))
	})

	It("accepts a loopback list", func() {
		t := newTester(all(), `{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}`)
		Expect(t.test()).To(And(HaveKeyWithValue("ADD", HavePrefix("ok: 127.0.0.1")),
			HaveKeyWithValue("second ADD", "skipped: each container has its own loopback"),
			Not(ContainElement(HavePrefix("failed")))))
	})

	It("prints a line for each step, beside another, damaged list", func() {
		t := newTester(all(), usual)
		t.write("/etc/cni/net.d/99-x.conflist", "{")
		Expect(t.says("test", "pods")).To(And(HavePrefix("network pods of /etc/cni/net.d/10-pods.conflist\n"),
			MatchRegexp(`(?m)^ADD +\d\.\d{3}s  ok: 10.88.0.2$`), MatchRegexp(`(?m)^DEL again +\d\.\d{3}s  ok$`)))
	})

	// list returns a list of bridge with these keys after the bridge's name.
	list := func(keys string) string {
		return `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", ` +
			keys + `}]}`
	}
	hostDevice := func(keys string) string {
		return strings.Replace(list(keys), `"bridge", "bridge": "cni0"`, `"host-device"`, 1)
	}
	passthru := func(keys string) string {
		return strings.Replace(hostDevice(keys+`"mode": "passthru"`), "host-device", "macvlan", 1)
	}
	const pool = `"ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}`

	It("refuses, without a change, what a live container, the host or the network may have", func() {
		t := newTester(all(), usual)
		t.IP("link add cold type veth peer name p0", "addr add 10.9.9.9/24 dev cold",
			"link add port type veth peer name p1", "link add br0 type bridge", "link set port master br0",
			"link add warm type veth peer name p2",
			"link set warm address 02:00:00:00:0e:0e", "link set warm up")
		t.SetSysctl("net/ipv6/conf/warm/disable_ipv6", "1")
		t.write("/etc/cni/net.d/20-others.conflist", strings.Replace(usual, "pods", "others", 1))
		was := t.state()
		for _, w := range []struct{ what, list, key, why string }{
			{"addresses of static", list(`"ipam": {"type": "static", "addresses": [{"address": "10.88.0.2/24"}]}`),
				"plugins[0].ipam.addresses: ", "fixed addresses"},
			{"addresses in args", list(`"args": {"cni": {"ips": ["10.88.0.2/24"]}}, "ipam": {"type": "static"}`),
				"plugins[0].args.cni.ips: ", "fixed addresses"},
			{"in runtimeConfig", list(`"runtimeConfig": {"ips": ["10.88.0.2/24"]}, "ipam": {"type": "static"}`),
				"plugins[0].runtimeConfig.ips: ", "fixed addresses"},
			{"a MAC address in args", list(`"args": {"cni": {"mac": "02:00:00:00:00:01"}}, ` + pool),
				`plugins[0].args.cni.mac "02:00:00:00:00:01": `, "fixed MAC address"},
			{"of tuning", strings.Replace(list(pool), `]}`, `, {"type": "tuning", "MAC": "02:00:00:00:00:01"}]}`, 1),
				`plugins[1].MAC "02:00:00:00:00:01": `, "fixed MAC address"},
			{"a client identifier of dhcp", list(`"ipam": {"type": "dhcp", "provide": [
			{"option": "dhcp-client-identifier", "value": "web"}]}`), "plugins[0].ipam.provide[0]: ",
				"fixed client identifier"},
			{"the uplink", hostDevice(`"device": "ext"`), `plugins[0].device "ext": `, "ext has address 192.0.2.1/24"},
			{"a device that is down and has an address", hostDevice(`"device": "cold", ` + pool),
				`plugins[0].device "cold": `, "cold has address 10.9.9.9/24"},
			{"a port", hostDevice(`"device": "port"`), `plugins[0].device "port": `, "is a port of another interface"},
			{"a device that is up, by its MAC", hostDevice(`"hwaddr": "02:00:00:00:0e:0e"`), `plugins[0].hwaddr`,
				"warm is up"},
			{"a device that is not in this namespace", hostDevice(`"pciBusID": "ffff:ff:1f.7"`), `plugins[0].pciBusID`,
				"may be in use elsewhere"},
			{"a device of another project's plugin", strings.Replace(hostDevice(`"deviceID": "ffff:ff:1f.7"`),
				"host-device", "sriov", 1), `plugins[0].deviceID`, "may be in use elsewhere"},
			{"the master of macvlan's passthru", passthru(`"master": "ext", `), `plugins[0].master "ext": `,
				"ext has address"},
			{"the default route's interface as the master", passthru(""), `plugins[0].master "": `, "ext has address"},
			{"the uplink with a plugin of a longer name", strings.Replace(hostDevice(`"device": "ext"`), "host-device",
				"my-host-device", 1), `plugins[0].device "ext": `, "ext has address"},
			{"the uplink in multus", `{"cniVersion": "1.0.0", "name": "pods", "type": "multus", "delegates": [` +
				hostDevice(`"device": "ext"`) + `]}`, `delegates[0].plugins[0].device "ext": `, "ext has address"},
		} {
			t.write(listFile, w.list)
			for _, args := range [][]string{{}, {"pods"}, {listFile}} {
				out := t.hawser(append([]string{"test"}, args...)...)
				Expect([]any{out.Exit, out.Stdout}).To(Equal([]any{1, ""}), w.what)
				Expect(out.Stderr).To(And(HavePrefix("hawser: "+listFile+": "+w.key), ContainSubstring(w.why),
					ContainSubstring("; test a copy of the list ")), w.what)
			}
			Expect(t.state()).To(Equal(was), w.what)
		}
	})

	It("refuses a device with another interface on it", Label("kernel"), func() {
		nstest.Need("8021q")
		t := newTester(all(), hostDevice(`"device": "trunk"`))
		t.IP("link add trunk type veth peer name p0", "link add link trunk name trunk.7 type vlan id 7")
		Expect(t.hawser("test").Stderr).To(ContainSubstring(`plugins[0].device "trunk": `))
		Expect(t.hawser("test").Stderr).To(ContainSubstring("trunk.7 is on trunk"))
	})

	It("reads the lists that multus reads", func() {
		t := newTester(all(), `{"cniVersion": "1.0.0", "name": "pods", "type": "multus", "clusterNetwork": "others"}`)
		others := strings.Replace(hostDevice(`"device": "ext"`), "pods", "others", 1)
		t.write("/etc/cni/net.d/20-others.conflist", others)
		Expect(t.hawser("test").Stderr).To(ContainSubstring(
			`: /etc/cni/net.d/20-others.conflist: plugins[0].device "ext": `))
	})

	It("borrows an idle device, and returns it", func() {
		t := newTester(all(), hostDevice(`"device": "idle", `+pool))
		place(nstest.Build("host-device"), t.plugins)
		t.IP("link add idle type veth peer name p0")
		t.Cmd("sh", "-c", "rm -rf /run/hawser")
		look := func() string { // without the index, which changes
			_, text, _ := strings.Cut(t.Cmd("ip", "link", "show", "idle"), ": ")
			return text
		}
		was := look()
		Expect(t.test()).To(And(HaveKeyWithValue("ADD", HavePrefix("ok: 10.88.0.")), HaveKeyWithValue("DEL", "ok"),
			HaveKeyWithValue("leftovers", "ok")))
		Expect(look()).To(Equal(was))
	})

	DescribeTable("refuses", func(says string, args ...string) {
		m := newMachine(all(), usual)
		out := m.hawser(append([]string{"test"}, args...)...)
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(BeEmpty())
		Expect(out.Stderr).To(ContainSubstring(says))
	},
		Entry("an unknown name", `"shop" is neither a file nor a network in /etc/cni/net.d`, "shop"),
		Entry("a directory without lists", "no network list in /run", "--conf", "/run"),
		Entry("a list without plugins", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ip_forward"),
		Entry("a timeout that is too short", "--timeout: 1ms is too short; pass 1s or more", "--timeout", "1ms"))
})

func both() types.GomegaMatcher {
	return And(HaveKeyWithValue("ADD", MatchRegexp(`^ok: 10\.88\.0\.\d+ fd00:88::\w+$`)),
		HaveKeyWithValue("gateway", "ok: 10.88.0.1, fd00:88::1"),
		HaveKeyWithValue("DNS", "ok: 192.0.2.2 answers, warning: 192.0.2.9 does not answer"),
		HaveKeyWithValue("host port", MatchRegexp(`, host by \[2001:db8::1\]:\d+, neighbor by \[2001:db8::1\]:`)))
}

func one() types.GomegaMatcher {
	return HaveKeyWithValue("DNS", "skipped: the result has no DNS server")
}
