package hostile_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = DescribeTable("the clock jumps between calls, so that files are of other times", Label("kernel", "clock"), func(
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
	Entry("to when we write times that the kernel does not", "1985-10-26 01:21:00"),
)

var _ = DescribeTable("the umask that we are started with", Label("kernel", "modes"), func(umask string) {
	n := NewNode()
	n.Before = "umask " + umask
	entries := Usual("iptables")
	if umask != "0" {
		entries = Usual("")
	}
	n.Up(NewPod("one"), entries)
	Expect(n.Cmd("sh", "-c", "find /run/hawser /run/cni /var/lib/cni -perm /022")).To(BeEmpty(),
		"what others may write")
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

var _ = Describe("a thousand open descriptors", Label("kernel", "descriptors"), func() {
	It("are handed on to no program that we run", func() {
		nstest.Need("iptables")
		n := NewNode()
		n.Before = "ulimit -n 4096\nfor i in {1..1000}; do exec {fd}</dev/null; done"
		// IPAM and iptables say how many they have.
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

var _ = Describe("standard streams that are closed, full or garbage", Label("kernel", "streams"), func() {
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
		Step{Plugin: "sbr"},
		Step{Plugin: "bandwidth", Keys: Object{"egressRate": 8000000, "egressBurst": 800000}},
		Step{Plugin: "ptp", Keys: lent},
		Step{Plugin: "static", Keys: Object{"ipam": Object{"type": "static",
			"addresses": []Object{{"address": "10.89.0.5/24"}}}}},
		Step{Plugin: "host-local", Keys: lent}, Step{Plugin: "dhcp", Keys: Object{"ipam": Object{"type": "dhcp"}}})
	// Nobody but their caller gives addresses back.
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
		It("are an error of "+plugin+" where they are needed, after which nothing is left", func() {
			nstest.Need(needs[plugin]...)
			n, p := NewNode(), NewPod("one")
			Uplink(n.Host)
			IP(n.Host, "link add d0 type veth peer name d0p")
			// What all attachments share is there.
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
					Expect(a.Stdout+a.Stderr).To(MatchRegexp(`standard (in|out)put|no valid JSON`), streams.before)
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

// lxc runs portmap (descriptor 3, for its directory may be closed to others) as root of a user namespace that
// was made by the same call as the network namespace, as LXC makes its containers: nobody owns the files below
// /proc/net.
const lxc = `
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
! cat /proc/net/ip_tables_names 2>/dev/null || { echo can be read; exit 1; }
ip netns add pod
export CNI_CONTAINERID=one CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0
net='{"cniVersion":"1.0.0","name":"net","type":"portmap",
"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},
"prevResult":{"interfaces":[{"name":"eth0","sandbox":"/run/netns/pod"}],
"ips":[{"address":"10.1.0.2/24","interface":0}]}}'
each() { for verb in ADD CHECK DEL; do CNI_COMMAND=$verb /proc/self/fd/3 <<<"$net"; done; }
each
# A kernel without x_tables, or one that does not give them to this namespace.
for program in iptables-legacy-save ip6tables-legacy-save; do
	printf '#!/bin/sh\nexit 1\n' >/run/$program
	chmod +x /run/$program
done
PATH=/run:$PATH each`

var _ = Describe("a container of LXC as host", Label("kernel"), func() {
	It("has its ports published, though its root may not read which x_tables there are", Label("lxc"), func() {
		nstest.Need("nft-inet-nat", "iptables-legacy")
		portmap := nstest.Must(os.Open(nstest.Build("portmap")))
		defer portmap.Close()
		as := []string{"--reuid=65534", "--regid=65534", "--clear-groups",
			"unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc"}
		nstest.NeedOK("user namespaces for others than root", exec.Command("setpriv", append(as, "true")...).Run())
		cmd := exec.Command("setpriv", append(as, "bash", "-euc", lxc)...)
		cmd.Dir, cmd.ExtraFiles = "/", []*os.File{portmap}
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	})
})
