package faults_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("a lock that another program holds", Label("slow", "kernel", "held-lock"), func() {
	It("is not waited for if it is the xtables lock and the rules are in nftables", func() {
		n := NewNode()
		n.Must("DEL", n.Up(NewPod("first"), Usual("")), Usual(""))
		n.HoldLock("/run/xtables.lock")
		began := time.Now()
		p := n.Up(NewPod("one"), Usual(""))
		n.Must("CHECK", p, Usual(""))
		n.Must("DEL", p, Usual(""))
		n.Must("GC", p, Usual("").Valid())
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(nstest.Hang)))
	})

	DescribeTable("delays ADD and DEL until it is released, if it is the lock", func(backend, lock string) {
		if backend == "iptables" {
			nstest.UseVariant("legacy")
		}
		n := NewNode()
		first := n.Up(NewPod("first"), Usual(backend))
		inode := strings.TrimSpace(n.Cmd("stat", "-c", "%i", lock))
		for _, command := range []string{"ADD", "DEL"} {
			holder := n.HoldLock(lock)
			done := make(chan struct{})
			go func() {
				defer GinkgoRecover()
				defer close(done)
				if command == "ADD" {
					n.Up(NewPod("one"), Usual(backend).Port(8081))
				} else {
					n.Must("DEL", first, Usual(backend))
				}
			}()
			Eventually(func() string { return n.Cmd("cat", "/proc/locks") }).Should(MatchRegexp(`-> FLOCK .*:%s `,
				inode))
			Expect(done).NotTo(BeClosed(), command)
			Expect(holder.Kill()).To(Succeed())
			Eventually(done).Should(BeClosed(), command)
		}
	},
		Entry("of the leases", "", "/var/lib/cni/networks/net/lock"),
		Entry("of the rules", "", "/run/hawser/nft.lock"),
		Entry("of host ports", "", "/run/hawser/portmap/lock"),
		Entry("of tuning's records", "", "/run/hawser/tuning/"+cni.Digest("/run/cni/tuning", 16)+"/lock"),
		Entry("of legacy iptables", "iptables", "/run/xtables.lock"),
	)
})

// churn creates and deletes links, addresses, routes and namespaces with eight programs until the spec ends.
func churn(n *World) {
	GinkgoHelper()
	for i := range 8 {
		lines := []string{fmt.Sprintf("link add churn%d type veth peer name other%d", i, i),
			fmt.Sprintf("addr add 198.18.%d.1/24 dev churn%d", i, i),
			fmt.Sprintf("link set churn%d up", i), fmt.Sprintf("route add 203.0.113.%d dev churn%d", i,
				i), fmt.Sprintf("link del churn%d", i)}
		if i%4 == 3 {
			lines = []string{fmt.Sprintf("netns add churn%d", i),
				fmt.Sprintf("link add churn%d type veth peer name other netns churn%d", i,
					i), fmt.Sprintf("netns del churn%d", i)}
		}
		// A program prints an error for each line that fails because of another program.
		n.Start(nstest.Program{Path: "sh", Args: []string{"-c", "exec ip -force -batch - 2>/dev/null"},
			Stdin: strings.Repeat(strings.Join(lines, "\n")+"\n", 20000)})
	}
}

// links returns the number of links that the host has had.
func links(n *World, probe string) int {
	GinkgoHelper()
	n.Cmd("ip", "link", "add", probe, "type", "bridge")
	defer n.Cmd("ip", "link", "del", probe)
	return Show(n.Host, probe).Index
}

var _ = Describe("links and namespaces that come and go all the time", Label("slow", "kernel", "churn"), func() {
	It("make no ADD or DEL of 500 fail or hang", func() {
		const workers, pods = 4, 250
		list := Usual("").Only("bridge")
		n := NewNode()
		n.Must("DEL", n.Up(NewPod("first"), list), list)
		churn(n)
		Eventually(func() string { return n.Cmd("ip", "-o", "link") }).Should(ContainSubstring("churn"))
		before := links(n, "before")
		var calls, made atomic.Int64
		// The other programs must create as many links as the 500 calls.
		enough := func(probe string) bool { return links(n, probe)-before-2*int(made.Load()) >= 2*pods }
		nstest.AtOnce(workers, func(worker int) {
			call := func(command string, p *Pod) {
				began := time.Now()
				n.Must(command, p, list)
				Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(nstest.Hang)), command)
				calls.Add(1)
			}
			probe := fmt.Sprintf("probe%d", worker)
			for i := worker; i < pods || i < 8*pods && !enough(probe); i += workers {
				p := NewPod(fmt.Sprintf("c%d", i))
				made.Add(1) // two links
				call("ADD", p)
				if i%10 == 0 {
					call("CHECK", p)
				}
				call("DEL", p)
			}
		})
		AddReportEntry("churn", fmt.Sprintf("%d calls, %d links", calls.Load(), links(n, "last")-before))
		Expect(enough("last")).To(BeTrue(), "%d links, and %d containers", links(n, "last")-before, made.Load())
	})
})

var _ = Describe("a host without iptables and nft, with an empty PATH", Label("slow", "kernel", "no-programs"), func() {
	It("serves each call with nftables", func() {
		nstest.Need("nft-inet-nat")
		n := NewNode()
		n.Env = []string{"PATH="}
		first, second := n.Up(NewPod("first"), Usual("")), NewPod("second")
		n.Must("STATUS", second, Usual(""))
		n.Up(second, Usual("").Port(8081))
		n.Must("CHECK", first, Usual(""))
		n.Must("DEL", first, Usual(""))
		n.Must("CHECK", second, Usual("").Port(8081))
		n.Must("GC", second, Usual("").Valid())
	})

	It("makes ADD and STATUS fail if iptables is configured, and nothing is left", func() {
		nstest.Need("nft-inet-nat")
		n := NewNode()
		// Creates the shared objects that a failed ADD may leave.
		n.Must("DEL", n.Up(NewPod("first"), Usual("")), Usual(""))
		attached := n.Up(NewPod("attached"), Usual("").Only("bridge")) // portmap needs an existing address
		before, p := n.Snapshot("links", "nftables", "iptables-legacy"), NewPod("one")
		n.Env = []string{"PATH="}
		for i, e := range Usual("iptables").Only("bridge", "portmap") {
			q := *[]*Pod{p, attached}[i]
			Expect(n.Chain("ADD", &q, List{e}).Stdout).To(ContainSubstring("iptables-restore"), e.Plugin)
			Expect(n.Chain("STATUS", &q, List{e}).Failed(50)).To(ContainSubstring("iptables-restore"), e.Plugin)
			n.Must("DEL", &q, List{e})
		}
		Expect(n.Snapshot("links", "nftables", "iptables-legacy")).To(Equal(before))
		Expect(p.Snapshot("links")).NotTo(ContainSubstring("eth0"))
		n.Env = nil
		n.Must("DEL", attached, Usual("").Only("bridge"))
	})

	It("removes rules of iptables over nf_tables in DEL, except firewall's, which GC removes", func() {
		nstest.Need("iptables-nft")
		n, list := NewNode(), Usual("iptables")
		nstest.UseVariant("nft")
		n.Must("DEL", n.Up(NewPod("first"), list), list)
		before := n.Snapshot("links", "nftables")
		without := func(l List) string {
			p := n.Up(NewPod("one"), l)
			n.Env = []string{"PATH="}
			n.Must("DEL", p, l)
			n.Env = nil
			return n.Snapshot("links", "nftables")
		}
		Expect(without(list.Only("bridge", "portmap", "tuning"))).To(Equal(before))
		Expect(without(list)).To(ContainSubstring("10.88.0."))
		n.Must("GC", NewPod("one"), list.Valid())
		Expect(n.Snapshot("links", "nftables")).To(Equal(before))
	})
})

// reached checks that the pod is reached from outside through its host port, and reaches a server outside.
func reached(n *World, p *Pod, outside *nstest.Host, port string) {
	GinkgoHelper()
	p.Serve("tcp", p.Addr()+":80")
	seen := nstest.Must(outside.Ask("tcp", "192.0.2.1:"+port))
	Expect(seen).To(HavePrefix("192.0.2.2:"))
	seen = nstest.Must(p.Ask("tcp", outside.Serve("tcp", "192.0.2.2:0")))
	Expect(seen).To(HavePrefix("192.0.2.1:"), "masqueraded")
}

// kinds has the backends and the variants of iptables.
var kinds = map[string]struct{ backend, variant string }{
	"nftables": {"", "nft"}, "iptables over nf_tables": {"iptables", "nft"}, "legacy iptables": {"iptables", "legacy"},
}

var _ = DescribeTable("CHECK finds a flush of rules, and all calls work,", Label("slow", "kernel", "reload"), func(
	kind, flush string, works bool,
) {
	k := kinds[kind]
	nstest.UseVariant(k.variant)
	n := NewNode()
	outside := nstest.NewOutside(n.Host)
	entries := Usual(k.backend)
	p := n.Up(NewPod("one"), entries)
	n.Cmd("bash", "-ec", flush)
	a := n.Chain("CHECK", p, entries)
	Expect(a.Code).To(Equal(1), a.Stdout)
	Expect(a.Stdout).To(ContainSubstring(`"code": 101`))
	if works { // as long as FORWARD does not drop
		Expect(a.Stdout).NotTo(ContainSubstring("inet hawser"))
		reached(n, p, outside, "8080")
	}
	if flush == flushIPTables {
		Expect(n.Cmd("nft", "list", "chain", "inet", "hawser", "portmap_guard_v2")).To(ContainSubstring("drop"),
			"containers are kept from the host's loopback")
	}
	// The next ADD restores the shared rules.
	next := n.Up(NewPod("next"), entries.Port(8081))
	n.Must("CHECK", next, entries.Port(8081))
	reached(n, next, outside, "8081")
	n.Cmd("bash", "-ec", flush)
	for _, q := range []*Pod{p, next} {
		n.Must("DEL", q, entries)
		n.Must("DEL", q, entries)
	}
	Expect(Leftovers(n.Host)).To(BeEmpty())
	Expect(n.Sysctl("net/ipv4/conf/cni0/route_localnet")).To(Equal("0"), "its guard does not exist")
},
	Entry("with nftables: nft flush ruleset", "nftables", "nft flush ruleset", false),
	Entry("with nftables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)", "nftables", flushIPTables,
		true),
	Entry("with nftables: the rules of one table", "nftables", "nft flush table inet hawser", false),
	Entry("with iptables over nf_tables: nft flush ruleset", "iptables over nf_tables", "nft flush ruleset", false),
	Entry("with iptables over nf_tables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)",
		"iptables over nf_tables", flushIPTables, false),
	Entry("with iptables over nf_tables: iptables -t nat -F", "iptables over nf_tables", "iptables -t nat -F", false),
	Entry("with legacy iptables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)", "legacy iptables",
		flushIPTables, false),
	Entry("with legacy iptables: nft flush ruleset", "legacy iptables", "nft flush ruleset", false),
)

// flushIPTables empties and removes every chain of the tables that firewalls use.
const flushIPTables = `for p in iptables ip6tables; do
	for t in raw mangle nat filter; do $p -t $t -F; $p -t $t -X; done
done`

var _ = DescribeTable("all calls work with files whose times have jumped", Label("slow", "kernel", "clock"), func(
	to string,
) {
	n := NewNode()
	jump := func() {
		GinkgoHelper()
		n.Cmd("sh", "-ec", "find /run/hawser /run/cni /var/lib/cni -exec touch -h -d '"+to+"' {} +")
	}
	entries := Usual("")
	first, second := n.Up(NewPod("first"), entries), NewPod("second")
	jump()
	n.Must("CHECK", first, entries)
	n.Up(second, entries.Port(8081))
	Expect(second.Addr()).NotTo(Equal(first.Addr()))
	jump()
	n.Must("DEL", first, entries)
	jump()
	n.Must("CHECK", second, entries.Port(8081))
	n.Must("GC", second, entries.Port(8081).Valid(second))
	n.Must("CHECK", second, entries.Port(8081))
	jump()
	n.Must("GC", second, entries.Port(8081).Valid())
	n.Must("DEL", second, entries)
},
	Entry("to the future", "2099-01-01"), Entry("to the past", "1970-01-01"),
	Entry("to a time in between", "1985-10-26 01:21:00"),
)

var _ = DescribeTable("files are private with the umask", Label("slow", "kernel", "modes"), func(umask string) {
	n := NewNode()
	n.Before = "umask " + umask
	entries := Usual("iptables")
	if umask != "0" {
		entries = Usual("")
	}
	n.Up(NewPod("one"), entries)
	Expect(n.Cmd("sh", "-c", "find /run/hawser /run/cni /var/lib/cni -perm /022")).To(BeEmpty(),
		"writable for others")
	private := n.Cmd("sh", "-c", "find /run/hawser /run/cni /var/lib/cni -type f -perm /077 ! -path '*/net/lock'")
	Expect(private).To(BeEmpty(), "files that others may read")
	open := n.Cmd("sh", "-c", "find /run/hawser/* /run/cni/* /var/lib/cni/networks/.hawser -type d -perm /077")
	Expect(open).To(BeEmpty(), "directories")
	if umask == "0" { // as the reference has them
		Expect(n.Cmd("stat", "-c", "%a", "/var/lib/cni/networks/net", "/var/lib/cni/networks/net/lock",
			"/var/lib/cni/networks/net/10.88.0.2")).To(Equal("755\n750\n600\n"))
	}
},
	Entry("0", "0"), Entry("022", "022"), Entry("077", "077"),
)

var _ = Describe("a thousand open descriptors", Label("slow", "kernel", "descriptors"), func() {
	It("are not inherited by programs that a plugin runs", func() {
		nstest.Need("iptables")
		n := NewNode()
		n.Before = "ulimit -n 4096\nfor i in {1..1000}; do exec {fd}</dev/null; done"
		// IPAM and iptables log the number of their descriptors.
		dir := GinkgoT().TempDir()
		log := filepath.Join(dir, "log")
		for name, real := range map[string]string{"host-local": nstest.Build("host-local"), "iptables": "iptables",
			"iptables-restore": "iptables-restore",
			"ip6tables":        "ip6tables", "ip6tables-restore": "ip6tables-restore"} {
			script := "#!/bin/bash\necho " + name + " $(ls /proc/$$/fd | wc -l) >>" + log + "\nPATH=${PATH#*:}\nexec " +
				real + " \"$@\"\n"
			Expect(os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755)).To(Succeed())
		}
		n.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		n.Dir = dir
		p := n.Up(NewPod("one"), Usual("iptables"))
		n.Must("CHECK", p, Usual("iptables"))
		n.Must("DEL", p, Usual("iptables"))
		said := nstest.Must(os.ReadFile(log))
		Expect(strings.Count(string(said), "\n")).To(BeNumerically(">", 5))
		Expect(strings.Split(strings.TrimSpace(string(said)), "\n")).To(HaveEach(MatchRegexp(` [3-6]$`)))
	})
})

var _ = Describe("standard streams that are closed, full or garbage", Label("slow", "kernel", "streams"), func() {
	// These come first in a list, the others after them.
	first := []string{"bridge", "dhcp", "dummy", "host-device", "host-local", "ipvlan", "loopback", "macvlan", "ptp",
		"static", "tap", "vlan"}
	chained := func(plugin string) bool { return !slices.Contains(first, plugin) }
	lent := Object{"ipam": HostLocal("10.89.0.0/24")}
	// own are the keys that each plugin needs to serve an ADD by itself.
	own := append(Usual(""), Step{Plugin: "host-device", Keys: Object{"device": "d0"}},
		Step{Plugin: "macvlan", Keys: Object{"master": "up0"}},
		Step{Plugin: "ipvlan", Keys: Merge(lent, Object{"master": "up0"})},
		Step{Plugin: "vlan", Keys: Object{"master": "up0", "vlanId": 5}},
		Step{Plugin: "dummy", Keys: lent},
		Step{Plugin: "vrf", Keys: Object{"vrfname": "red"}},
		Step{Plugin: "sbr"}, Step{Plugin: "tc-redirect-tap"},
		Step{Plugin: "bandwidth", Keys: Object{"egressRate": 8000000, "egressBurst": 800000}},
		Step{Plugin: "ptp", Keys: lent},
		Step{Plugin: "static", Keys: Object{"ipam": Object{"type": "static",
			"addresses": []Object{{"address": "10.89.0.5/24"}}}}},
		Step{Plugin: "host-local", Keys: lent}, Step{Plugin: "dhcp", Keys: Object{"ipam": Object{"type": "dhcp"}}})
	// Only their caller releases addresses.
	lends := func(plugin string) bool { return plugin == "dhcp" || plugin == "host-local" }
	// needs are the kinds of interfaces that not every kernel has.
	needs := map[string][]string{"ipvlan": {"ipvlan"}, "vlan": {"8021q"}, "dummy": {"dummy"}, "vrf": {"vrf"},
		"macvlan": {"macvlan"}}
	conf := func(plugin string, p *Pod) Object {
		c := Object{"cniVersion": "1.1.0", "name": "net", "type": plugin}
		for _, e := range own.Only(plugin) {
			c = Merge(c, e.Keys)
		}
		if chained(plugin) {
			c["prevResult"] = p.Result
		}
		return c
	}

	for _, plugin := range nstest.Plugins() {
		It("make "+plugin+" fail if it needs them, and nothing is left", func() {
			nstest.Need(needs[plugin]...)
			n, p := NewNode(), NewPod("one")
			Uplink(n.Host)
			IP(n.Host, "link add d0 type veth peer name d0p")
			// Creates the objects that all attachments share.
			warm := Usual("")
			if chained(plugin) && len(warm.Only(plugin)) == 0 {
				warm = append(warm, own.Only(plugin)...)
			}
			n.Must("DEL", n.Up(NewPod("first"), warm), warm)
			if chained(plugin) || plugin == "dhcp" {
				n.Up(p, Usual("").Only("bridge"))
			}
			if plugin == "dhcp" {
				ServeDHCP(n.Host, "cni0", "10.88.0.200,10.88.0.209")
				DHCPDaemon(n.Host, n.Dir)
			}
			state := func() string {
				GinkgoHelper()
				return n.Snapshot("links", "nftables", "iptables-legacy") + p.Snapshot("links") + leases(n)
			}
			was := state()
			for _, streams := range []struct {
				before string
				status int
			}{{"exec <&-", 1}, {"exec <<<'{\"name\": '", 1}, {"exec >&-", 0}, {"exec >/dev/full", 1},
				{"exec <&- >&- 2>&-", 1}, {"exec >&- 2>/dev/full", 0}} {
				n.Before = streams.before
				a := n.Try(plugin, Call{Command: "ADD", Netns: p.Netns, Conf: conf(plugin, p)})
				Expect(a.Code).To(Equal(streams.status), "%s: %s%s", streams.before, a.Stdout, a.Stderr)
				if streams.status != 0 && !strings.Contains(streams.before, "2>") {
					Expect(a.Stdout+a.Stderr).To(MatchRegexp(`standard (in|out)put|invalid JSON`), streams.before)
				}
				if streams.status == 0 || lends(plugin) {
					n.Before = ""
					Expect(n.Invoke(plugin, Call{Command: "DEL", Netns: p.Netns,
						Conf: conf(plugin, p)}).Code).To(BeZero())
				}
				Expect(state()).To(Equal(was), streams.before)
			}
			for _, before := range []string{"exec 2>&-", "exec 2>/dev/full"} {
				n.Before = before
				Expect(n.Invoke(plugin, Call{Command: "ADD", Netns: p.Netns,
					Conf: Merge(conf(plugin, p), Object{"nmae": "x"})}).Code).To(BeZero(), before)
				n.Before = before + " >&-"
				Expect(n.Try(plugin, Call{Command: "DEL", Netns: p.Netns, Conf: conf(plugin, p)}).Code).To(BeZero(),
					before)
			}
			Expect(state()).To(Equal(was))
		})
	}
})

func leases(n *World) string {
	GinkgoHelper()
	return n.Cmd("find", "/var/lib/cni/networks/net", "-name", "*[.:]*", "!", "-name", "last_reserved_ip.*") +
		n.Cmd("sh", "-c", "find /run/hawser -path '*/dhcp/*.json'")
}

// lxc runs portmap as root of a user namespace that was created by the same call as the network namespace, like LXC's
// containers. Its root therefore does not own the files below /proc/net. portmap is descriptor 3, because its directory
// may be closed to other users.
const lxc = `
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
! cat /proc/net/ip_tables_names 2>/dev/null || { echo can be read; exit 1; }
ip netns add pod
ip link add host type veth peer name eth0 netns pod
ip -n pod address add 10.1.0.2/24 dev eth0
export CNI_CONTAINERID=one CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0
net='{"cniVersion":"1.0.0","name":"net","type":"portmap",
"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},
"prevResult":{"interfaces":[{"name":"eth0","sandbox":"/run/netns/pod"}],
"ips":[{"address":"10.1.0.2/24","interface":0}]}}'
each() { for verb in ADD CHECK DEL; do (CNI_COMMAND=$verb exec -a portmap /proc/self/fd/3 <<<"$net"); done; }
each
# A kernel without x_tables, or one that does not give them to this namespace.
for program in iptables-legacy-save ip6tables-legacy-save; do
	printf '#!/bin/sh\nexit 1\n' >/run/$program
	chmod +x /run/$program
done
PATH=/run:$PATH each`

var _ = Describe("a container of LXC as host", Label("slow", "kernel"), func() {
	It("publishes ports, although its root cannot read the list of x_tables", Label("lxc"), func() {
		nstest.Need("nft-inet-nat", "iptables-legacy")
		portmap := nstest.Must(os.Open(nstest.Build("portmap")))
		defer portmap.Close()
		as := []string{"--reuid=65534", "--regid=65534", "--clear-groups",
			"unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc"}
		nstest.NeedOK("user namespaces for users other than root", exec.Command("setpriv", append(as, "true")...).Run())
		cmd := exec.Command("setpriv", append(as, "bash", "-euc", lxc)...)
		cmd.Dir, cmd.ExtraFiles = "/", []*os.File{portmap}
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	})
})
