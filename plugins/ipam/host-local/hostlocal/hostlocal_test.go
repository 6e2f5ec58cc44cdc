package hostlocal

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestHostLocal(t *testing.T) { nstest.RunSpecs(t, "plugins/ipam/host-local/hostlocal") }

var _ = It("has its schema in docs/schema", func() {
	ExpectPluginSchema(Plugin(), Object{"anyOf": []any{
		HasKey("ipam.subnet", Object{"type": "string"}),
		HasKey("ipam.ranges", Object{"type": "array", "minItems": 1}),
		HasKey("runtimeConfig.ipRanges", Object{"type": "array", "minItems": 1}),
		HasKey("capabilities.ipRanges", Object{"const": true}),
	}})
})

// network is a node with a data directory and a network configuration.
type network struct {
	*World
	dataDir string
	ipam    string // keys of ipam besides type and dataDir, as JSON
	keys    string // keys of the network, as JSON
	version string
}

const slash24 = `"ranges": [[{"subnet": "10.1.2.0/24"}]]`

func newNetwork(ipam string) network {
	GinkgoHelper()
	return networkIn(filepath.Join(GinkgoT().TempDir(), "networks"), ipam)
}

func networkIn(dataDir, ipam string) network {
	GinkgoHelper()
	return network{World: NewWorld(Plugin()), dataDir: dataDir, ipam: ipam, version: "1.1.0"}
}

// tmpfs mounts a file system for the directory of a network. It must be called before the network is created.
func tmpfs(flags uintptr, options string) string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	if err := unix.Mount("none", dir, "tmpfs", flags, options); err != nil {
		Skip("tmpfs: " + err.Error())
	}
	DeferCleanup(unix.Unmount, dir, 0)
	return dir
}

// withKeys returns the network with more keys.
func (n network) withKeys(keys string) network {
	n.keys += keys + ", "
	return n
}

func (n network) call(command, id string) Call {
	ipam := fmt.Sprintf(`{"type": "host-local", "dataDir": %q`, n.dataDir)
	if n.ipam != "" {
		ipam += ", " + n.ipam
	}
	conf := fmt.Sprintf(`{"cniVersion": %q, "name": "net", "type": "bridge", %s"ipam": %s}}`, n.version, n.keys, ipam)
	return Call{Command: command, ID: id, Netns: "/not/looked/at", Conf: conf}
}

// add runs ADDs, which must succeed, and returns the addresses.
func (n network) add(ids ...string) (list []string) {
	GinkgoHelper()
	for _, id := range ids {
		list = append(list, addresses(n.Add(n.call("ADD", id)))...)
	}
	return list
}

func addresses(r Result) (list []string) {
	for _, ip := range r.IPs {
		addr, _, _ := strings.Cut(ip.Address, "/")
		list = append(list, addr)
	}
	return list
}

func (n network) succeeds(command string, ids ...string) {
	GinkgoHelper()
	for _, id := range ids {
		n.Succeeds(n.call(command, id))
	}
}

// fails runs a call, which must fail with the code, and returns the message.
func (n network) fails(command, id string, code uint) string {
	GinkgoHelper()
	message, _, _ := strings.Cut(n.Fails(n.call(command, id), code), "\n")
	return message
}

// gc runs a GC in which the eth0 of each of the containers is valid.
func (n network) gc(valid ...string) {
	GinkgoHelper()
	list := []Object{}
	for _, id := range valid {
		list = append(list, Object{"containerID": id, "ifname": "eth0"})
	}
	n.withKeys(`"cni.dev/valid-attachments": `+Text(list)).succeeds("GC", "")
}

// dice is a source of random numbers with its seed.
func dice() (*rand.Rand, uint64) {
	seed := uint64(GinkgoRandomSeed())
	return rand.New(rand.NewPCG(seed, seed)), seed
}

func (n network) dir() string { return filepath.Join(n.dataDir, "net") }

func (n network) path(name string) string { return filepath.Join(n.dir(), name) }

// write creates a file in the lease directory, as another program would.
func (n network) write(name, content string) {
	GinkgoHelper()
	Expect(os.MkdirAll(n.dir(), 0o755)).To(Succeed())
	Expect(os.WriteFile(n.path(name), []byte(content), 0o600)).To(Succeed())
}

// leases returns the content of each file in the directory by its name.
func (n network) leases() map[string]string {
	GinkgoHelper()
	m := map[string]string{}
	list, err := os.ReadDir(n.dir())
	if os.IsNotExist(err) {
		return m
	}
	Expect(err).NotTo(HaveOccurred())
	for _, e := range list {
		if e.Name() == "lock" || strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			continue
		}
		m[e.Name()] = string(nstest.Must(os.ReadFile(n.path(e.Name()))))
	}
	return m
}

// beLeases matches a directory with exactly these leases.
func beLeases(names ...string) OmegaMatcher {
	return WithTransform(func(m map[string]string) []string { return slices.Collect(maps.Keys(m)) }, ConsistOf(names))
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func modTime(path string) time.Time {
	GinkgoHelper()
	return nstest.Must(os.Stat(path)).ModTime()
}

// flock acquires a lock, as another program would.
func flock(path string) (release func()) {
	GinkgoHelper()
	f := nstest.Must(os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o750))
	Expect(unix.Flock(int(f.Fd()), unix.LOCK_EX)).To(Succeed())
	return func() { f.Close() }
}

var update = flag.Bool("update", false, "update the golden files")

var _ = Describe("ADD", func() {
	It("writes the reference's format byte for byte", Label("leases-format"), func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8:1::/64"}]]`)
		Expect(n.add("c1")).To(Equal([]string{"10.1.2.2", "2001:db8:1::2"}))
		var got []string
		for _, e := range nstest.Must(os.ReadDir(n.dir())) {
			content := nstest.Must(os.ReadFile(n.path(e.Name())))
			got = append(got, fmt.Sprintf("%s %s %x", e.Name(), nstest.Must(e.Info()).Mode(), content))
		}
		Expect(got).To(Equal([]string{
			"10.1.2.2 -rw------- 63310d0a65746830",
			"2001:db8:1::2 -rw------- 63310d0a65746830",
			"last_reserved_ip.0 -rw------- 31302e312e322e32",
			"last_reserved_ip.1 -rw------- 323030313a6462383a313a3a32",
			"lock -rwxr-x--- ",
		}))
		Expect(nstest.Must(os.Stat(n.dir())).Mode().Perm()).To(BeEquivalentTo(0o755))
	})

	It("goes around the range, also after a release, and skips reserved addresses", func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/29"}]]`)
		n.write("10.1.2.4", "the printer's")
		var got []string
		for i := range 9 {
			id := fmt.Sprint("c", i)
			got = append(got, n.add(id)...)
			n.succeeds("DEL", id)
		}
		Expect(strings.Join(got, " ")).To(Equal(
			"10.1.2.2 10.1.2.3 10.1.2.5 10.1.2.6 10.1.2.2 10.1.2.3 10.1.2.5 10.1.2.6 10.1.2.2"))
	})

	DescribeTable("answers in the requested version", Label("versions"), func(version string) {
		dns := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
		text := "nameserver 192.0.2.53\nsearch example.org\noptions ndots:2\ndomain example.com\n"
		Expect(os.WriteFile(dns, []byte(text), 0o600)).To(Succeed())
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24", "gateway": "10.1.2.254"}],
			[{"subnet": "2001:db8:1::/64"}]],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.2.9", "mtu": 1400, "advmss": 1300,
				"priority": 5, "table": 100, "scope": 0}, {"dst": "2001:db8::/32", "gw": "2001:db8:1::9"}],
			"resolvConf": "` + dns + `"`)
		n.version = version
		got := n.Add(n.call("ADD", "c1")).Text + "\n"
		golden := filepath.Join("testdata", "add-"+version+".json")
		if *update {
			Expect(os.WriteFile(golden, []byte(got), 0o644)).To(Succeed())
		}
		Expect(got).To(Equal(string(nstest.Must(os.ReadFile(golden)))))
		for _, command := range []string{"CHECK", "STATUS", "DEL"} {
			if version >= cni.Since(command) {
				n.succeeds(command, "c1")
			}
		}
		Expect(n.leases()).To(BeEmpty())
	}, func() (entries []TableEntry) {
		for _, version := range cni.Versions() {
			entries = append(entries, Entry(version, version))
		}
		return entries
	}())

	It("refuses an attachment that has leases, names them, and changes nothing", Label("add-twice"), func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]`)
		n.add("c1")
		before := n.leases()
		for _, again := range []network{
			n,
			n.withKeys(`"runtimeConfig": {"ips": ["10.1.2.77"]}`),
			n.withKeys(`"runtimeConfig": {"ips": ["10.1.2.2"]}`),
			n.withKeys(`"args": {"cni": {"ips": ["10.1.3.77"]}}`),
		} {
			Expect(again.fails("ADD", "c1", cni.CodeExists)).To(ContainSubstring("10.1.2.2, 10.1.3.2"))
			Expect(n.leases()).To(Equal(before))
		}
		n.succeeds("CHECK", "c1")
	})

	It("refuses a container whose ID is the whole content of an old lease", func() {
		n := newNetwork(slash24)
		n.write("10.1.2.9", "c1")
		Expect(n.fails("ADD", "c1", cni.CodeExists)).To(ContainSubstring("10.1.2.9"))
	})

	It("distinguishes the interfaces and the networks of a container", func() {
		n := newNetwork(slash24)
		first, second, other := n.call("ADD", "c1"), n.call("ADD", "c1"), n.call("ADD", "c1")
		second.IfName = "eth1"
		other.Conf = strings.Replace(other.Conf.(string), `"name": "net"`, `"name": "net2"`, 1)
		Expect(addresses(n.Add(first))).To(Equal([]string{"10.1.2.2"}))
		Expect(addresses(n.Add(second))).To(Equal([]string{"10.1.2.3"}))
		Expect(addresses(n.Add(other))).To(Equal([]string{"10.1.2.2"}))
		second.Command = "DEL"
		n.Succeeds(second)
		Expect(n.leases()).To(Equal(map[string]string{"10.1.2.2": "c1\r\neth0"}))
		Expect(os.ReadFile(filepath.Join(n.dataDir, "net2", "10.1.2.2"))).To(BeEquivalentTo("c1\r\neth0"))
	})

	It("releases an address of the first set if a later set is full", Label("add-fails"), func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24"}],
			[{"subnet": "10.1.3.0/29", "rangeStart": "10.1.3.2", "rangeEnd": "10.1.3.4"}]]`)
		n.write("10.1.3.2", "a\r\neth0")
		n.write("10.1.3.3", "a\r\neth0")
		n.write("10.1.3.4", "printer")
		n.write("last_reserved_ip.0", "10.1.2.5")
		before := n.leases()
		Expect(n.fails("ADD", "c1", cni.CodeTryAgain)).To(And(HavePrefix(
			"failed to allocate for range 1: no IP addresses available in range set: 10.1.3.2-10.1.3.4: "+
				"3 leases of 2 owners in "+n.dir()+"; none can be reclaimed: "), HaveSuffix(
			"; hawser gc lists the owners, hawser gc --yes releases leases that no runtime knows")))
		Expect(n.leases()).To(Equal(before))
		Expect(os.ReadFile(n.path("last_reserved_ip.0"))).To(BeEquivalentTo("10.1.2.5"))
	})

	DescribeTable("assigns or refuses requested addresses:", func(args, keys, want string, code uint) {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]]`)
		n.write("10.1.2.66", "a\r\neth7")
		n.write("10.1.2.67", "the printer")
		before := n.leases()
		if keys != "" {
			n = n.withKeys(keys)
		}
		c := n.call("ADD", "c1")
		c.Args = args
		if code == 0 {
			Expect(strings.Join(addresses(n.Add(c)), " ")).To(Equal(want))
			return
		}
		Expect(n.Fails(c, code)).To(HavePrefix(want + "\n"))
		Expect(n.leases()).To(Equal(before))
	},
		Entry("in CNI_ARGS", "IP=10.1.2.44", "", "10.1.2.44 2001:db8::2", uint(0)),
		Entry("in runtimeConfig, for both sets", "", `"runtimeConfig": {"ips": ["2001:DB8::00cc", "10.1.2.44/24"]}`,
			"10.1.2.44 2001:db8::cc", uint(0)),
		Entry("in args", "", `"args": {"cni": {"ips": ["2001:db8::99"]}}`, "10.1.2.2 2001:db8::99", uint(0)),
		Entry("one of a container", "IP=10.1.2.66", "",
			"CNI_ARGS IP: requested IP address 10.1.2.66 is not available in range set 10.1.2.1-10.1.2.254: "+
				`is reserved already for container "a", interface "eth7"`, cni.CodeConflict),
		Entry("one of an administrator, after one for the second set", "",
			`"runtimeConfig": {"ips": ["2001:db8::77", "10.1.2.67"]}`,
			"runtimeConfig.ips[1]: requested IP address 10.1.2.67 is not available in range set "+
				`10.1.2.1-10.1.2.254: is reserved already for "the printer"`, cni.CodeConflict))

	It("uses ranges from the runtime", func() {
		n := newNetwork("").withKeys(`"capabilities": {"ipRanges": true}`)
		sent := n.withKeys(`"runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/16"}]]}`)
		Expect(sent.add("c1")).To(Equal([]string{"10.7.0.2"}))
		Expect(n.fails("ADD", "c2", cni.CodeConfig)).To(ContainSubstring("runtimeConfig.ipRanges"))
		n.succeeds("STATUS", "")
		n.succeeds("DEL", "c1")
		Expect(n.leases()).To(BeEmpty())
	})

	DescribeTable("creates nothing for an invalid configuration:", func(ipam string, code uint) {
		n := newNetwork(ipam)
		n.fails("ADD", "c1", code)
		Expect(n.dataDir).NotTo(BeADirectory())
	},
		Entry("an invalid range", `"ranges": [[{"subnet": "10.1.2.0/33"}]]`, cni.CodeConfig),
		Entry("a missing resolv.conf", slash24+`, "resolvConf": "/none"`, cni.CodeIO),
		Entry("a device as resolv.conf", slash24+`, "resolvConf": "/dev/null"`, cni.CodeIO))
})

var _ = Describe("DEL", func() {
	DescribeTable("succeeds although other keys have changed:", Label("del"), func(ipam, keys string) {
		n := newNetwork(slash24)
		n.add("c1", "c2")
		n.ipam, n.keys = ipam, keys
		n.succeeds("DEL", "c1")
		Expect(n.leases()).To(beLeases("10.1.2.3"))
	},
		Entry("other ranges", `"ranges": [[{"subnet": "192.168.0.0/24"}]]`, ""),
		Entry("invalid ranges", `"ranges": [[{"subnet": "x"}]]`, ""),
		Entry("no ranges", ``, ""),
		Entry("ranges of the wrong type",
			`"ranges": 7, "routes": "x", "resolvConf": {}, "statusOnExhaustion": 1`, ""),
		Entry("a missing resolv.conf", slash24+`, "resolvConf": "/none"`, ""),
		Entry("an invalid prevResult",
			slash24, `"prevResult": {"ips": "x"}, "runtimeConfig": {"ips": 7}, "args": 3, `))

	It("succeeds before ADD and twice, and creates nothing", func() {
		n := newNetwork(slash24)
		n.succeeds("DEL", "c1")
		Expect(n.dataDir).NotTo(BeADirectory())
		Expect(os.MkdirAll(n.dataDir, 0o755)).To(Succeed())
		n.succeeds("DEL", "c1")
		Expect(n.dir()).NotTo(BeADirectory())
		n.add("c1")
		n.succeeds("DEL", "c1", "c1")
		Expect(n.leases()).To(BeEmpty())
	})

	It("removes old leases of the container only if no lease names the interface", func() {
		n := newNetwork(slash24)
		n.write("10.1.2.8", "c1")
		n.write("10.1.2.9", "c1\n")
		n.write("10.1.2.7", "c1\r\neth0")
		n.write("10.1.2.6", "c11")
		n.succeeds("DEL", "c1")
		Expect(n.leases()).To(beLeases("10.1.2.6", "10.1.2.8", "10.1.2.9"))
		n.succeeds("DEL", "c1")
		Expect(n.leases()).To(beLeases("10.1.2.6"))
	})
})

var _ = Describe("CHECK", func() {
	It("finds the lease, and compares it with the result", func() {
		n := newNetwork(slash24)
		n.add("c1", "c2")
		n.succeeds("CHECK", "c1")
		result := func(addr string) network {
			return n.withKeys(`"prevResult": {"cniVersion": "1.1.0", "ips": [
				{"address": "` + addr + `"}, {"address": "192.0.2.1/24"}]}`)
		}
		result("10.1.2.2/24").succeeds("CHECK", "c1")
		for _, addr := range []string{"10.1.2.3", "10.1.2.9"} {
			Expect(result(addr+"/24").fails("CHECK", "c1", cni.CodeDrift)).
				To(ContainSubstring(addr + " is not reserved"))
		}
	})

	It("fails without a lease", func() {
		n := newNetwork(slash24)
		n.fails("CHECK", "c1", cni.CodeDrift)
		Expect(n.dataDir).NotTo(BeADirectory())
		n.add("c1")
		n.fails("CHECK", "c2", cni.CodeDrift)
		n.write("10.1.2.2", "c9\r\neth0") // in place
		n.fails("CHECK", "c1", cni.CodeDrift)
		n.succeeds("CHECK", "c9")
		n.write("10.1.2.44", "old")
		n.succeeds("CHECK", "old")
	})
})

var _ = Describe("GC", func() {
	It("removes leases that belong to no valid attachment, and nothing else", Label("gc"), func() {
		n := newNetwork(slash24)
		n.add("c1", "c2", "c3")
		c2 := n.call("ADD", "c2")
		c2.IfName = "eth1"
		n.Add(c2)
		n.write("10.1.2.50", "")
		n.write("192.168.9.9", "c9\r\neth0") // of a former range
		n.write("2001:db8::9", "c9\r\neth0")
		kept := map[string]string{"10.1.2.51": "reserved", "10.1.2.52": "oldcontainer", "10.1.2.54": "c9\neth0",
			"10.1.2.53": "two words\r\nof an administrator", "10.1.2.55": "c9\r\neth0\r\nmore",
			"NOTES": "c9\r\neth0", "10.1.2.03": "c9\r\neth0"}
		for name, content := range kept {
			n.write(name, content)
		}
		Expect(os.Symlink("10.1.2.51", n.path("10.1.2.56"))).To(Succeed())
		kept["10.1.2.2"], kept["10.1.2.56"] = "c1\r\neth0", "reserved"
		n.withKeys(`"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"},
			{"containerID": "c3", "ifname": "eth1"}]`).succeeds("GC", "")
		Expect(n.leases()).To(Equal(kept))
		Expect(n.path("lock")).To(BeARegularFile())
		Expect(n.path("last_reserved_ip.0")).To(BeARegularFile())
		n.succeeds("CHECK", "c1")
		Expect(n.add("c4")).To(Equal([]string{"10.1.2.6"}))
	})

	It("removes all leases if none is valid, and nothing without a list or a directory", func() {
		n := newNetwork(slash24)
		n.gc()
		Expect(n.dataDir).NotTo(BeADirectory())
		n.add("c1")
		n.Call(n.call("GC", ""))
		Expect(n.leases()).To(HaveLen(1))
		n.ipam = `"ranges": "broken"`
		n.withKeys(`"cni.dev/valid-attachments": null`).succeeds("GC", "")
		Expect(n.leases()).To(BeEmpty())
	})
})

var _ = Describe("STATUS", func() {
	DescribeTable("reports a full range", Label("full-range"), func(withIndex bool) {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/29", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.3"}],
			[{"subnet": "10.1.3.0/24"}]]`)
		take := func(id, address string) {
			if withIndex {
				n.add(id)
			} else {
				n.write(address, id+"\r\neth0")
			}
		}
		take("c1", "10.1.2.2")
		Expect(n.Call(n.call("STATUS", ""))).To(Equal(Answer{}))
		take("c2", "10.1.2.3")
		before := modTime(n.dir())
		message := "range set 0 (10.1.2.2-10.1.2.3): no address is left"
		Expect(n.Call(n.call("STATUS", ""))).To(Equal(Answer{Stderr: "host-local: " + message + "\n"}))
		n.ipam += `, "statusOnExhaustion": "fail"`
		Expect(n.fails("STATUS", "", cni.CodeUnavailable)).To(Equal(message))
		Expect(modTime(n.dir())).To(Equal(before), "STATUS changed something")
	}, Entry("with an index", true), Entry("without one", false))

	It("changes nothing and needs no directory", func() {
		n := newNetwork(slash24)
		n.succeeds("STATUS", "")
		Expect(n.dataDir).NotTo(BeADirectory())
	})

	It("does not wait for the lock", func() {
		n := newNetwork(slash24)
		n.write("lock", "")
		defer flock(n.path("lock"))()
		n.succeeds("STATUS", "")
	})

	It("reports that resolv.conf cannot be read", func() {
		n := newNetwork(slash24 + `, "resolvConf": "/no/such/file"`)
		Expect(n.fails("STATUS", "", cni.CodeUnavailable)).To(ContainSubstring("ipam.resolvConf"))
	})

	It("reports a directory that cannot be written, and an invalid configuration", func() {
		n := networkIn(tmpfs(unix.MS_RDONLY, ""), slash24)
		Expect(n.fails("STATUS", "", cni.CodeUnavailable)).To(ContainSubstring("read-only"))
		n.dataDir += "/deeper"
		n.fails("STATUS", "", cni.CodeUnavailable)
		n.fails("ADD", "c1", cni.CodeIO)
		n.succeeds("DEL", "c1")
		n.ipam = `"ranges": []`
		n.fails("STATUS", "", cni.CodeConfig)
		n.ipam, n.dataDir = slash24, "/dev/null"
		n.fails("STATUS", "", cni.CodeUnavailable)
		Expect(n.fails("ADD", "c1", cni.CodeIO)).To(ContainSubstring("/dev/null"))
		n.succeeds("DEL", "c1") // there is no directory, and so no address
	})
})

var _ = Describe("List", func() {
	It("names the leases until DEL, and changes nothing", func() {
		n := networkIn("/var/lib/cni/networks", slash24)
		n.ExpectHeld(func(id, network string) (Call, []string) {
			c := n.call("ADD", id)
			c.Conf = strings.Replace(c.Conf.(string), `"net"`, `"`+network+`"`, 1)
			return c, []string{"address: " + addresses(n.Add(c))[0]}
		})
	})

	It("includes leases of a configured directory, with and without an owner", func() {
		n := newNetwork(slash24)
		Expect(n.add("one")).To(Equal([]string{"10.1.2.2"}))
		for name, content := range map[string]string{"10.1.2.7": "old", "10.1.2.8": "for a printer", "10.1.2.9": "\x00",
			"010.1.2.10": "x", "notes": "y"} {
			Expect(os.WriteFile(n.path(name), []byte(content), 0o600)).To(Succeed())
		}
		Expect(os.Mkdir(n.path("10.1.2.11"), 0o700)).To(Succeed())
		Expect(Held(n.Holdings(n.call("ADD", "").Conf.(string)))).To(ConsistOf("net one eth0 address: 10.1.2.2",
			"net old  address: 10.1.2.7", "net   address: 10.1.2.9"))
		Expect(n.Holdings("")).To(BeEmpty())
	})
})
