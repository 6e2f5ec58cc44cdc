package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

var update = flag.Bool("update", false, "write the golden files anew")

var _ = Describe("ADD", func() {
	It("writes the reference's format byte for byte", func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8:1::/64"}]]`)
		Expect(n.call(ours(), "ADD", "c1").ok()).To(Equal([]string{"10.1.2.2", "2001:db8:1::2"}))
		list, err := os.ReadDir(n.dir())
		Expect(err).NotTo(HaveOccurred())
		var got []string
		for _, e := range list {
			info, err := e.Info()
			Expect(err).NotTo(HaveOccurred())
			content, err := os.ReadFile(n.path(e.Name()))
			Expect(err).NotTo(HaveOccurred())
			got = append(got, fmt.Sprintf("%s %s %x", e.Name(), info.Mode(), content))
		}
		Expect(got).To(Equal([]string{
			"10.1.2.2 -rw------- 63310d0a65746830",
			"2001:db8:1::2 -rw------- 63310d0a65746830",
			"last_reserved_ip.0 -rw------- 31302e312e322e32",
			"last_reserved_ip.1 -rw------- 323030313a6462383a313a3a32",
			"lock -rwxr-x--- ",
		}))
		info, err := os.Stat(n.dir())
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode().Perm()).To(BeEquivalentTo(0o755))
	})

	It("goes round the range, releases or not, past what is taken", func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/29"}]]`)
		n.write("10.1.2.4", "the printer's")
		var got []string
		for i := range 9 {
			id := fmt.Sprint("c", i)
			got = append(got, n.call(ours(), "ADD", id).ok()...)
			n.call(ours(), "DEL", id).ok()
		}
		Expect(strings.Join(got, " ")).To(Equal("10.1.2.2 10.1.2.3 10.1.2.5 10.1.2.6 10.1.2.2 10.1.2.3 10.1.2.5 10.1.2.6 10.1.2.2"))
	})

	DescribeTable("answers in the version asked for", func(version string) {
		dns := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
		Expect(os.WriteFile(dns, []byte("nameserver 192.0.2.53\nsearch example.org\noptions ndots:2\ndomain example.com\n"), 0o600)).To(Succeed())
		n := newNetwork(fmt.Sprintf(`"ranges": [[{"subnet": "10.1.2.0/24", "gateway": "10.1.2.254"}], [{"subnet": "2001:db8:1::/64"}]],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.2.9", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 100, "scope": 0},
			{"dst": "2001:db8::/32", "gw": "2001:db8:1::9"}], "resolvConf": %q`, dns))
		n.version = version
		a := n.call(ours(), "ADD", "c1").run()
		Expect(a.status).To(BeZero(), a.out)
		golden := filepath.Join("testdata", "add-"+version+".json")
		if *update {
			Expect(os.MkdirAll("testdata", 0o755)).To(Succeed())
			Expect(os.WriteFile(golden, []byte(a.out+"\n"), 0o644)).To(Succeed())
		}
		want, err := os.ReadFile(golden)
		Expect(err).NotTo(HaveOccurred())
		Expect(a.out + "\n").To(Equal(string(want)))
		for _, command := range []string{"CHECK", "STATUS", "DEL"} {
			if cni.Allows(version, command) {
				n.call(ours(), command, "c1").ok()
			}
		}
		Expect(n.leases()).To(BeEmpty())
	}, entriesOf(cni.Versions()))

	It("refuses a second time, names what is held, and harms nothing", func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]`)
		n.call(ours(), "ADD", "c1").ok()
		before := n.leases()
		for _, rest := range []string{``, `"runtimeConfig": {"ips": ["10.1.2.77"]}`, `"runtimeConfig": {"ips": ["10.1.2.2"]}`, `"args": {"cni": {"ips": ["10.1.3.77"]}}`} {
			again := n
			if rest != "" {
				again = n.with(rest)
			}
			Expect(again.call(ours(), "ADD", "c1").refused(cni.CodeExists)).To(ContainSubstring("10.1.2.2, 10.1.3.2"))
			Expect(n.leases()).To(Equal(before))
		}
		n.call(ours(), "CHECK", "c1").ok()
	})

	It("refuses a container that an old file names", func() {
		n := newNetwork(slash24)
		n.write("10.1.2.9", "c1")
		Expect(n.call(ours(), "ADD", "c1").refused(cni.CodeExists)).To(ContainSubstring("10.1.2.9"))
	})

	It("tells the interfaces of a container apart, and its networks", func() {
		n := newNetwork(slash24)
		first, second := n.call(ours(), "ADD", "c1"), n.call(ours(), "ADD", "c1")
		second.ifName = "eth1"
		other := first
		other.conf = strings.Replace(n.conf(), `"name": "net"`, `"name": "net2"`, 1)
		Expect(first.ok()).To(Equal([]string{"10.1.2.2"}))
		Expect(second.ok()).To(Equal([]string{"10.1.2.3"}))
		Expect(other.ok()).To(Equal([]string{"10.1.2.2"}))
		del := second
		del.command = "DEL"
		del.ok()
		Expect(n.leases()).To(Equal(map[string]string{"10.1.2.2": "c1\r\neth0"}))
		Expect(os.ReadFile(filepath.Join(n.dataDir, "net2", "10.1.2.2"))).To(BeEquivalentTo("c1\r\neth0"))
	})

	It("gives back what it took when a later set has nothing left", func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/29", "rangeStart": "10.1.3.2", "rangeEnd": "10.1.3.4"}]]`)
		n.write("10.1.3.2", "a\r\neth0")
		n.write("10.1.3.3", "a\r\neth0")
		n.write("10.1.3.4", "printer")
		before := n.leases()
		Expect(n.call(ours(), "ADD", "c1").refused(cni.CodeTryAgain)).To(Equal(fmt.Sprintf(
			"range set 1 (10.1.3.2-10.1.3.4): no address is left of 3 addresses: files 3, owners 2, in %s", n.dir())))
		Expect(n.leases()).To(Equal(before))
	})

	It("gives back what it took when its answer cannot be written", func() {
		n := newNetwork(slash24)
		cmd := n.call(ours(), "ADD", "c1").cmd()
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		Expect(err).NotTo(HaveOccurred())
		defer full.Close()
		cmd.Stdout = full
		Expect(cmd.Run()).NotTo(Succeed())
		Expect(n.leases()).To(BeEmpty())
	})

	DescribeTable("with addresses asked for", func(ask func(*call), want string, code uint) {
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]]`)
		n.write("10.1.2.66", "a\r\neth7")
		n.write("10.1.2.67", "the printer")
		before := n.leases()
		c := n.call(ours(), "ADD", "c1")
		ask(&c)
		if code == 0 {
			Expect(strings.Join(c.ok(), " ")).To(Equal(want))
			return
		}
		Expect(c.refused(code)).To(Equal(want))
		Expect(n.leases()).To(Equal(before))
	},
		Entry("in CNI_ARGS", func(c *call) { c.args = "IP=10.1.2.44" }, "10.1.2.44 2001:db8::2", uint(0)),
		Entry("in runtimeConfig, for both sets", asking(`"runtimeConfig": {"ips": ["2001:DB8::00cc", "10.1.2.44/24"]}`), "10.1.2.44 2001:db8::cc", uint(0)),
		Entry("in args", asking(`"args": {"cni": {"ips": ["2001:db8::99"]}}`), "10.1.2.2 2001:db8::99", uint(0)),
		Entry("the gateway", asking(`"args": {"cni": {"ips": ["10.1.2.1"]}}`), "args.cni.ips[0]: 10.1.2.1 is the gateway of 10.1.2.0/24", cni.CodeConfig),
		Entry("outside", func(c *call) { c.args = "IP=10.9.9.9" },
			"CNI_ARGS IP: 10.9.9.9 is in none of the ranges (10.1.2.1-10.1.2.254, 2001:db8::1-2001:db8::ffff:ffff:ffff:ffff)", cni.CodeEnvironment),
		Entry("a container's", func(c *call) { c.args = "IP=10.1.2.66" },
			`CNI_ARGS IP: 10.1.2.66 is reserved already for container "a", interface "eth7"`, cni.CodeConflict),
		Entry("an administrator's, for the second set first", asking(`"runtimeConfig": {"ips": ["2001:db8::77", "10.1.2.67"]}`),
			`runtimeConfig.ips[1]: 10.1.2.67 is reserved already for "the printer"`, cni.CodeConflict))

	It("takes ranges from the runtime", func() {
		n := newNetwork("").with(`"capabilities": {"ipRanges": true}, "runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/16"}]]}`)
		Expect(n.call(ours(), "ADD", "c1").ok()).To(Equal([]string{"10.7.0.2"}))
		n.rest = `, "capabilities": {"ipRanges": true}`
		Expect(n.call(ours(), "ADD", "c2").refused(cni.CodeConfig)).To(ContainSubstring("runtimeConfig.ipRanges"))
		n.call(ours(), "STATUS", "").ok()
		n.call(ours(), "DEL", "c1").ok()
		Expect(n.leases()).To(BeEmpty())
	})

	It("makes nothing of a configuration that is wrong", func() {
		for ipam, code := range map[string]uint{
			`"ranges": [[{"subnet": "10.1.2.0/33"}]]`: cni.CodeConfig,
			slash24 + `, "resolvConf": "/none"`:       cni.CodeIO,
		} {
			n := newNetwork(ipam)
			n.call(ours(), "ADD", "c1").refused(code)
			Expect(n.dataDir).NotTo(BeADirectory())
		}
	})
})

func entriesOf(list []string) []TableEntry {
	var entries []TableEntry
	for _, s := range list {
		entries = append(entries, Entry(s, s))
	}
	return entries
}

func asking(rest string) func(*call) {
	return func(c *call) { c.conf = strings.Replace(c.conf, `"ipam"`, rest+`, "ipam"`, 1) }
}

var _ = Describe("DEL", func() {
	DescribeTable("works whatever the rest of the configuration says", func(ipam, rest string) {
		n := newNetwork(slash24)
		n.call(ours(), "ADD", "c1").ok()
		n.call(ours(), "ADD", "c2").ok()
		n.ipam, n.rest = ipam, rest
		n.call(ours(), "DEL", "c1").ok()
		Expect(keys(n.leases())).To(Equal([]string{"10.1.2.3"}))
	},
		Entry("other ranges", `"ranges": [[{"subnet": "192.168.0.0/24"}]]`, ""),
		Entry("bad ranges", `"ranges": [[{"subnet": "x"}]]`, ""),
		Entry("no ranges", ``, ""),
		Entry("ranges of the wrong type", `"ranges": 7, "routes": "x", "resolvConf": {}, "statusOnExhaustion": 1`, ""),
		Entry("a resolvConf that is gone", slash24+`, "resolvConf": "/none"`, ""),
		Entry("a prevResult of nonsense", slash24, `, "prevResult": {"ips": "x"}, "runtimeConfig": {"ips": 7}, "args": 3`))

	It("may come before ADD, twice, and makes nothing", func() {
		n := newNetwork(slash24)
		n.call(ours(), "DEL", "c1").ok()
		Expect(n.dataDir).NotTo(BeADirectory())
		Expect(os.MkdirAll(n.dataDir, 0o755)).To(Succeed())
		n.call(ours(), "DEL", "c1").ok()
		Expect(n.dir()).NotTo(BeADirectory())
		n.call(ours(), "ADD", "c1").ok()
		n.call(ours(), "DEL", "c1").ok()
		n.call(ours(), "DEL", "c1").ok()
		Expect(n.leases()).To(BeEmpty())
	})

	It("takes old files of the container only when none names the interface", func() {
		n := newNetwork(slash24)
		n.write("10.1.2.8", "c1")
		n.write("10.1.2.9", "c1\n")
		n.write("10.1.2.7", "c1\r\neth0")
		n.write("10.1.2.6", "c11")
		n.call(ours(), "DEL", "c1").ok()
		Expect(keys(n.leases())).To(Equal([]string{"10.1.2.6", "10.1.2.8", "10.1.2.9"}))
		n.call(ours(), "DEL", "c1").ok()
		Expect(keys(n.leases())).To(Equal([]string{"10.1.2.6"}))
	})

	It("follows no link out of the data directory", func() {
		outside := GinkgoT().TempDir()
		Expect(os.WriteFile(filepath.Join(outside, "10.1.2.2"), []byte("c1\r\neth0"), 0o600)).To(Succeed())
		n := newNetwork(slash24)
		Expect(os.MkdirAll(n.dataDir, 0o755)).To(Succeed())
		Expect(os.Symlink(outside, n.dir())).To(Succeed())
		Expect(n.call(ours(), "DEL", "c1").refused(cni.CodeIO)).To(ContainSubstring(n.dir()))
		Expect(filepath.Join(outside, "10.1.2.2")).To(BeARegularFile())
	})
})

var _ = Describe("CHECK", func() {
	result := func(addr string) string {
		return fmt.Sprintf(`"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": %q}, {"address": "192.0.2.1/24"}]}`, addr)
	}
	It("finds the lease, and that it is the one of the result", func() {
		n := newNetwork(slash24)
		n.call(ours(), "ADD", "c1").ok()
		n.call(ours(), "ADD", "c2").ok()
		n.call(ours(), "CHECK", "c1").ok()
		n.with(result("10.1.2.2/24")).call(ours(), "CHECK", "c1").ok()
		Expect(n.with(result("10.1.2.3/24")).call(ours(), "CHECK", "c1").refused(cni.CodeDrift)).To(ContainSubstring("10.1.2.3 is not reserved"))
		Expect(n.with(result("10.1.2.9/24")).call(ours(), "CHECK", "c1").refused(cni.CodeDrift)).To(ContainSubstring("10.1.2.9 is not reserved"))
	})

	It("fails without a lease", func() {
		n := newNetwork(slash24)
		n.call(ours(), "CHECK", "c1").refused(cni.CodeDrift)
		Expect(n.dataDir).NotTo(BeADirectory())
		n.call(ours(), "ADD", "c1").ok()
		n.call(ours(), "CHECK", "c2").refused(cni.CodeDrift)
		n.write("10.1.2.2", "c9\r\neth0") // in place
		n.call(ours(), "CHECK", "c1").refused(cni.CodeDrift)
		n.call(ours(), "CHECK", "c9").ok()
		n.write("10.1.2.44", "old")
		n.call(ours(), "CHECK", "old").ok()
	})
})

var _ = Describe("GC", func() {
	It("removes what belongs to no valid attachment, and nothing else", func() {
		n := newNetwork(slash24)
		for _, id := range []string{"c1", "c2", "c3"} {
			n.call(ours(), "ADD", id).ok()
		}
		n.write("10.1.2.50", "")
		n.write("10.1.2.51", "reserved")
		n.write("10.1.2.52", "oldcontainer")
		n.write("10.1.2.53", "two words\r\nof an administrator")
		n.write("10.1.2.54", "c9\neth0")
		n.write("10.1.2.55", "c9\r\neth0\r\nmore")
		n.write("192.168.9.9", "c9\r\neth0") // of a former range
		n.write("2001:db8::9", "c9\r\neth0")
		n.write("NOTES", "c9\r\neth0")
		n.write("10.1.2.03", "c9\r\neth0")
		Expect(os.Symlink("/etc/passwd", n.path("10.1.2.56"))).To(Succeed())
		n = n.with(`"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}, {"containerID": "c2", "ifname": "eth1"}]`)
		n.call(ours(), "GC", "").ok()
		Expect(keys(n.leases())).To(Equal([]string{"10.1.2.03", "10.1.2.2", "10.1.2.51", "10.1.2.52", "10.1.2.53", "10.1.2.54", "10.1.2.55", "10.1.2.56", "NOTES"}))
		Expect(n.path("lock")).To(BeARegularFile())
		Expect(n.path("last_reserved_ip.0")).To(BeARegularFile())
		n.call(ours(), "CHECK", "c1").ok()
		Expect(n.call(ours(), "ADD", "c4").ok()).To(Equal([]string{"10.1.2.5"}))
	})

	It("frees all when none is valid, nothing without a list, and needs no directory", func() {
		n := newNetwork(slash24)
		n.with(`"cni.dev/valid-attachments": []`).call(ours(), "GC", "").ok()
		Expect(n.dataDir).NotTo(BeADirectory())
		n.call(ours(), "ADD", "c1").ok()
		n.call(ours(), "GC", "").ok()
		Expect(n.leases()).To(HaveLen(1))
		n.ipam = `"ranges": "broken"`
		n.with(`"cni.dev/valid-attachments": null`).call(ours(), "GC", "").ok()
		Expect(n.leases()).To(BeEmpty())
	})

	It("recovers half of a hundred", func() {
		n := newNetwork(slash24)
		var valid []string
		for i := range 100 {
			n.write(fmt.Sprintf("10.1.2.%d", i+2), fmt.Sprintf("c%d\r\neth0", i))
			if i%2 == 0 {
				valid = append(valid, fmt.Sprintf(`{"containerID": "c%d", "ifname": "eth0"}`, i))
			}
		}
		n.with(`"cni.dev/valid-attachments": [`+strings.Join(valid, ",")+`]`).call(ours(), "GC", "").ok()
		Expect(n.leases()).To(HaveLen(50))
		for _, content := range n.leases() {
			Expect(content).To(MatchRegexp(`^c\d*[02468]\r\neth0$`))
		}
	})
})

var _ = Describe("STATUS", func() {
	small := `"ranges": [[{"subnet": "10.1.2.0/29", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.3"}], [{"subnet": "10.1.3.0/24"}]]`

	DescribeTable("of a full range", func(withIndex bool) {
		n := newNetwork(small)
		if withIndex {
			n.call(ours(), "ADD", "c1").ok()
		} else {
			n.write("10.1.2.2", "c1\r\neth0")
		}
		Expect(n.call(ours(), "STATUS", "").run()).To(Equal(answer{}))
		if withIndex {
			n.call(ours(), "ADD", "c2").ok()
		} else {
			n.write("10.1.2.3", "c2\r\neth0")
		}
		before := modTime(n.dir())
		a := n.call(ours(), "STATUS", "").run()
		message := "range set 0 (10.1.2.2-10.1.2.3): no address is left of 2 addresses"
		Expect(a).To(Equal(answer{err: "host-local: " + message + "\n"}))
		n.ipam += `, "statusOnExhaustion": "fail"`
		Expect(n.call(ours(), "STATUS", "").refused(cni.CodeUnavailable)).To(Equal(message))
		Expect(modTime(n.dir())).To(Equal(before), "STATUS changed something")
	}, Entry("by the index", true), Entry("without one", false))

	It("changes nothing and needs no directory", func() {
		n := newNetwork(slash24)
		n.call(ours(), "STATUS", "").ok()
		Expect(n.dataDir).NotTo(BeADirectory())
	})

	It("does not wait for the lock", func() {
		n := newNetwork(slash24)
		n.write("lock", "")
		defer flock(n.path("lock"))()
		start := time.Now()
		n.call(ours(), "STATUS", "").ok()
		Expect(time.Since(start)).To(BeNumerically("<", lockWait/2))
	})

	It("says that resolv.conf cannot be read", func() {
		n := newNetwork(slash24)
		n.ipam += `, "resolvConf": "/no/such/file"`
		Expect(n.call(ours(), "STATUS", "").refused(cni.CodeUnavailable)).To(ContainSubstring("ipam.resolvConf"))
	})

	It("says that the directory cannot be written, and the configuration used", func() {
		dir := GinkgoT().TempDir()
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
			Skip("tmpfs: " + err.Error())
		}
		DeferCleanup(unix.Unmount, dir, 0)
		n := newNetwork(slash24)
		n.dataDir = dir
		Expect(n.call(ours(), "STATUS", "").refused(cni.CodeUnavailable)).To(ContainSubstring("read-only"))
		n.dataDir = dir + "/deeper"
		n.call(ours(), "STATUS", "").refused(cni.CodeUnavailable)
		n.call(ours(), "ADD", "c1").refused(cni.CodeIO)
		n.call(ours(), "DEL", "c1").ok()
		n.ipam = `"ranges": []`
		n.call(ours(), "STATUS", "").refused(cni.CodeConfig)
		n.ipam, n.dataDir = slash24, "/dev/null"
		n.call(ours(), "STATUS", "").refused(cni.CodeUnavailable)
		Expect(n.call(ours(), "ADD", "c1").refused(cni.CodeIO)).To(ContainSubstring("/dev/null"))
		n.call(ours(), "DEL", "c1").ok() // there is no directory, and so no address
	})
})

// flock takes a lock as another program would.
func flock(path string) (release func()) {
	GinkgoHelper()
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o750)
	Expect(err).NotTo(HaveOccurred())
	Expect(unix.Flock(int(f.Fd()), unix.LOCK_EX)).To(Succeed())
	return func() { f.Close() }
}
