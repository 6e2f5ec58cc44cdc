// Package attack_test runs attacks against the plugins, as programs on a host, that have succeeded against similar
// plugins. docs/reliability.md lists them.
package attack_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestAttack(t *testing.T) { nstest.RunSpecs(t, "attacks on the plugins") }

// preload is a text that the dynamic linker, in /etc/ld.so.preload, would read as a library for each program.
const preload = " /tmp/evil.so \n/tmp/evil.so\n"

// everyCommand calls a plugin with a configuration that it refuses and that contains a tenant's text, and with one that
// it does not refuse. It returns the output.
func everyCommand(n *World, log string) (said string) {
	GinkgoHelper()
	for _, keys := range []Object{{"mode": preload, "mtu": "x"}, {}} {
		conf := Merge(Object{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "m0", "log": log,
			"cni.dev/valid-attachments": []any{}}, keys)
		for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
			a := n.Invoke("macvlan", Call{Command: command, Netns: "/run/nowhere", Conf: conf})
			said += a.Stdout + a.Stderr
		}
	}
	return said
}

var _ = Describe("the log that a configuration names", func() {
	var n *World
	BeforeEach(func() {
		n = NewNode()
		n.Cmd("bash", "-ec", `for dir in /etc /var/log; do mount -t tmpfs -o mode=755 tmpfs $dir; done
			umask 022; echo '* * * * * root id' >/etc/crontab; : >/etc/ld.so.preload; chmod 600 /etc/ld.so.preload`)
	})
	files := func() string { return n.Files("/etc", "/var/log") }

	DescribeTable("is in no place that it chooses, even if the call is refused:", Label("log-path"), func(log string) {
		before := files()
		said := everyCommand(n, log)
		Expect(files()).To(Equal(before))
		Expect(said).To(ContainSubstring("log: "))
	},
		Entry(nil, "/etc/ld.so.preload"), Entry(nil, "/etc/new"), Entry(nil, "/var/log/new"),
		Entry(nil, "/var/log/hawser/../../../etc/new"), Entry(nil, "../../../etc/ld.so.preload"), Entry(nil, ".."),
		Entry(nil, "."), Entry(nil, "a/b"), Entry(nil, "./a"), Entry(nil, "a\n"), Entry(nil, ".hidden"),
		Entry(nil, "a\x00b"), Entry(nil, " a"),
	)

	DescribeTable("is a file of a plugin, in a private directory of root:", Label("log-path"), func(plant string) {
		n.Cmd("bash", "-ec", "umask 077; mkdir /var/log/hawser; cd /var/log/hawser; "+plant)
		before := files()
		Expect(everyCommand(n, "a.log")).To(ContainSubstring("the call is not in the log"))
		Expect(files()).To(Equal(before))
	},
		Entry("no symbolic link", "ln -s /etc/ld.so.preload a.log"),
		Entry("no dangling symbolic link", "ln -s /etc/new a.log"),
		Entry("no hard link", "mount --bind /etc .; cd /var/log/hawser; ln ld.so.preload a.log"),
		Entry("no file of another program", `echo '# comment' >a.log`),
		Entry("no JSON file of another program", `echo '{"log":"x"}' >a.log`),
		Entry("no compressed file", "echo x | gzip >a.log"),
		Entry("no file that other users may write", `: >a.log; chmod 622 a.log`),
		Entry("no file of another user", `: >a.log; chown 1:1 a.log`),
		Entry("no pipe", "mkfifo a.log"), Entry("no directory", "mkdir a.log"),
		Entry("not behind a link", "cd ..; rmdir hawser; ln -s /etc hawser"),
		Entry("not in a directory that other users may write", "chmod 1777 ."),
		Entry("not in a directory of another user", "chown 1:1 ."),
		Entry("not if the administrator put a file there", "cd ..; rmdir hawser; touch hawser"),
	)

	It("has one line for each call, whatever its text contains", func() {
		n.Env = []string{"HAWSER_LOG=/var/log/all"}
		everyCommand(n, "/etc/ld.so.preload")
		n.Env = nil
		everyCommand(n, "a.log")
		for _, log := range []string{"/var/log/all", "/var/log/hawser/a.log"} {
			out := n.Cmd("jq", "-s", "-r", `map(select(.plugin == "macvlan" and .verb)) | length`, log)
			Expect(out).To(Equal("10\n"), log)
			Expect(n.Cmd("wc", "-l", log)).To(HavePrefix("10 "))
		}
		modes := map[string]os.FileMode{"/var/log/hawser": os.ModeDir | 0o700, "/var/log/hawser/a.log": 0o600}
		for path, mode := range modes {
			n.Do(func() {
				st := nstest.Must(os.Stat(path))
				Expect(st.Mode()).To(Equal(mode), path)
			})
		}
	})
})

// secret is a secret that a runtime passes to plugins in unknown keys, such as the token of a service account.
const secret = "s3cr3t-t0ken"

// withSecrets puts the secret into each object of a configuration, under a key that no plugin reads.
func withSecrets(keys Object) Object {
	out := Object{"token": secret, "kubernetes": Object{"token": secret}}
	for k, v := range keys {
		if inner, ok := v.(Object); ok && k != "sysctl" {
			v = withSecrets(inner)
		}
		out[k] = v
	}
	return out
}

// logging puts programs into PATH that log their arguments before they run the real ones, and returns the log.
func logging(programs ...string) string {
	dir := GinkgoT().TempDir()
	log := filepath.Join(dir, "log")
	for _, name := range programs {
		script := "#!/bin/sh\necho \"$0 $*\" >>" + log + "\nPATH=${PATH#*:}\nexec " + name + " \"$@\"\n"
		Expect(os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755)).To(Succeed())
	}
	GinkgoT().Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return log
}

// Like CVE-2026-41184 and CVE-2026-41185.
var _ = Describe("a secret in unknown keys or CNI_ARGS", Label("kernel", "secrets"), func() {
	It("is not in a message, file, rule or command line", func() {
		nstest.Need("iptables")
		log := logging("iptables", "iptables-restore", "ip6tables", "ip6tables-restore", "nft")
		n := NewNode()
		calls := filepath.Join(GinkgoT().TempDir(), "calls")
		n.Env = []string{"HAWSER_LOG=" + calls}
		said := ""
		entries := Usual("iptables")
		for i := range entries {
			entries[i].Keys = withSecrets(entries[i].Keys)
		}
		p := NewPod("one")
		p.Args = "IgnoreUnknown=1;K8S_POD_TOKEN=" + secret
		broken := func(key string, value any) List {
			return entries.Only("bridge").With("bridge", Object{key: value})
		}
		try := func(command string, entries List) {
			GinkgoHelper()
			a := n.Chain(command, p, entries)
			said += a.Stdout + a.Stderr
		}
		spans := calls + ".otlp" // collectors send them to other hosts
		n.Env = []string{"HAWSER_LOG=" + spans, "BAGGAGE=token=" + secret}
		try("CHECK", entries)
		try("ADD", broken("vlan", 5000))
		try("ADD", broken("ipam", Object{"type": "dhcp", "daemonSocketPath": "/nowhere", "token": secret}))
		Expect(string(nstest.Must(os.ReadFile(spans)))).To(And(ContainSubstring("roll-back"),
			Not(ContainSubstring(secret))))
		n.Env = []string{"HAWSER_LOG=" + calls}
		try("ADD", broken("mtu", "x"))
		try("ADD", broken("vlan", 5000))
		try("ADD", broken("ipam", Object{"type": "host-local", "token": secret}))
		try("ADD", broken("bridge", Object{"token": secret}))
		try("ADD", broken("prevResult", Object{"token": secret, "ips": []any{Object{"address": "x"}}}))
		for _, args := range []string{"K8S_POD_TOKEN=" + secret, "IP=x;TOKEN=" + secret, secret, "=" + secret,
			"IgnoreUnknown=" + secret} {
			c := *p
			c.Args = args
			a := n.Chain("ADD", &c, entries)
			said += a.Stdout + a.Stderr
			Expect(a.Code).To(Equal(1), args)
		}
		n.Up(p, entries)
		said += string(p.Result)
		Expect(n.Own()+n.Snapshot("links", "nftables", "iptables-legacy")).NotTo(ContainSubstring(secret),
			"on the host")
		for _, command := range []string{"ADD", "CHECK", "STATUS", "GC", "DEL", "DEL"} {
			try(command, entries)
		}
		Expect(said).NotTo(ContainSubstring(secret))
		commands := nstest.Must(os.ReadFile(log))
		lines := nstest.Must(os.ReadFile(calls))
		Expect(strings.Count(string(lines), "\n")).To(BeNumerically(">", 20), "the spec proves nothing")
		Expect(string(lines)).NotTo(ContainSubstring(secret))
		Expect(strings.Count(string(commands), "\n")).To(BeNumerically(">", 8), "the spec proves nothing")
		Expect(string(commands)).NotTo(ContainSubstring(secret))
	})
})

// chosen returns a list whose author wants to write texts into files of a directory.
func chosen(dir string) List {
	words := Object{"name": preload, "comment": preload, preload: preload}
	return List{
		{Plugin: "bridge", Keys: Merge(words, Object{"bridge": "cni0", "ipam": Merge(words, Object{
			"type": "host-local", "dataDir": dir, "ranges": []any{[]any{Object{"subnet": "10.88.0.0/24"}},
				[]any{Object{"subnet": "fd00:88::/64"}}}})})},
		{Plugin: "tuning", Keys: Object{"dataDir": dir + "/" + "cron.d", "mtu": 1400, "dummy": preload,
			"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}},
	}
}

var _ = Describe("a path in a configuration", func() {
	It("gets only files with the plugins' own names and texts", Label("kernel", "data-path"), func() {
		n, p := NewNode(), NewPod("one")
		p.Network = "cron.d"
		n.Cmd("bash", "-ec", `mount -t tmpfs -o mode=755 tmpfs /etc; umask 022; mkdir /etc/cron.d; cd /etc/cron.d
			for f in jobs one_eth1.json 10.88.0.2 last_reserved_ip.9; do echo '* * * * * root id' >$f; done`)
		before := n.Files("/etc")
		list := chosen("/etc")
		for i := range list {
			delete(list[i].Keys, "name")
		}
		n.Up(p, list)
		added := n.Files("/etc")
		for line := range strings.Lines(before) {
			Expect(added).To(ContainSubstring(line))
			added = strings.Replace(added, line, "", 1)
		}
		Expect(added).To(MatchRegexp(`(?s)10\.88\.0\.3.*fd00:88::2.*one_eth0\.json`), "the spec proves nothing")
		for line := range strings.Lines(added) {
			Expect(line).To(MatchRegexp(`^/etc/(\.hawser drwx------` + // the index of leases
				`|\.hawser/cron\.d -rw------- ".*"` +
				`|cron\.d/one_eth0\.json -rw------- .*` + // tuning's backup
				`|cron\.d/lock -rwxr-x--- ""` +
				`|cron\.d/last_reserved_ip\.[01] -rw------- "(10\.88\.0\.3|fd00:88::2)"` +
				`|cron\.d/(10\.88\.0\.3|fd00:88::2) -rw------- "one\\r\\neth0")` + "\n$"))
		}
		Expect(added).NotTo(ContainSubstring("evil"))
		n.Must("DEL", p, list)
	})

	DescribeTable("is not read if it is not a regular file, and no secret is printed:", Label("resolv-conf"), func(
		path string,
	) {
		n := NewNode()
		n.Cmd("bash", "-ec", `mount -t tmpfs -o mode=755 tmpfs /etc; cd /etc; mkfifo fifo; truncate -s 1T sparse
			echo 'root:$6$secret:1::' >shadow; ln -s /dev/zero link`)
		for _, command := range []string{"ADD", "STATUS"} {
			c := Call{Command: command, Netns: "/run/nowhere", Conf: Object{"cniVersion": "1.1.0", "name": "net",
				"type": "x", "ipam": Object{"type": "host-local", "subnet": "10.88.0.0/24", "resolvConf": path}}}
			a := Ran(n.Run(c.Program(n, "timeout", "20", nstest.Build("host-local"))))
			Expect(a.Verdict(command)).To(Succeed(), "%d: %s%s", a.Code, a.Stdout, a.Stderr)
			Expect(a.Stdout + a.Stderr).NotTo(ContainSubstring("secret"))
			if path != "/etc/shadow" && path != "/proc/kmsg" {
				Expect(a.Stdout).To(ContainSubstring("ipam.resolvConf: read " + path + ": not a regular file"))
			}
		}
		n.Cmd("rm", "-rf", "/var/lib/cni/networks/net")
	},
		Entry("a device", "/dev/zero"), Entry("a link to a device", "/etc/link"), Entry("a terminal", "/dev/tty"),
		Entry("a pipe", "/etc/fifo"), Entry("a file larger than memory", "/etc/sparse"), Entry("a directory", "/etc"),
		Entry("a file that blocks", "/proc/kmsg"), Entry("a file with a secret", "/etc/shadow"),
	)
})

var _ = Describe("an ipam.type that is a path (CVE-2021-20206)", Label("ipam-path"), func() {
	It("starts nothing, whatever the command", func() {
		n, p := NewNode(), NewPod("one")
		top := GinkgoT().TempDir()
		mark := filepath.Join(top, "was-here")
		n.Dir = filepath.Join(top, "bin")
		for _, dir := range []string{n.Dir, filepath.Join(n.Dir, "sub")} {
			Expect(os.Mkdir(dir, 0o755)).To(Succeed())
		}
		for _, program := range []string{"evil", "bin/sub/evil", "bin/evil", "bin/a\\b"} {
			Expect(os.WriteFile(filepath.Join(top, program), []byte("#!/bin/sh\ntouch "+mark+"\n"),
				0o755)).To(Succeed())
		}
		run := func(plugin, command, ipam string) Answer {
			GinkgoHelper()
			return n.Invoke(plugin, Call{Command: command, Netns: p.Netns,
				Conf: Object{"cniVersion": "1.1.0", "name": "net", "type": plugin, "cni.dev/valid-attachments": []any{},
					"prevResult": Object{"cniVersion": "1.1.0"}, "ipam": Object{"type": ipam}}})
		}
		before := n.Snapshot("links", "nftables")
		for _, plugin := range []string{"bridge", "ptp"} {
			for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
				for _, ipam := range []string{"../evil", filepath.Join(top, "evil"), "sub/evil", "./evil", ".", "..",
					"a\\b", "../bin/evil", "evil\x00"} {
					a := run(plugin, command, ipam)
					_, err := os.Stat(mark)
					Expect(os.IsNotExist(err)).To(BeTrue(), "%s %s %q", plugin, command, ipam)
					if command == "ADD" {
						Expect(a.Failed(7)).To(ContainSubstring("is not a plugin name"))
					}
				}
			}
		}
		Expect(n.Snapshot("links", "nftables")).To(Equal(before))
		run("bridge", "ADD", "evil")
		Expect(mark).To(BeAnExistingFile(), "the spec proves nothing")
	})
})

// shared is a directory that any user may write, with the directories of the plugins' state.
const shared = "/run/shared"

// originals is the directory of tuning's records for a dataDir in shared.
var originals = "/run/hawser/tuning/" + cni.Digest(shared+"/tuning", 16)

func sharedList() List {
	ipam := Merge(HostLocal("10.88.0.0/24", "fd00:88::/64"), Object{"dataDir": shared + "/ipam"})
	return append(Usual("").With("bridge", Object{"ipam": ipam}).With("tuning", Object{"dataDir": shared + "/tuning"}),
		Step{Plugin: "sbr"}, Step{Plugin: "bandwidth", Keys: Object{"egressRate": 8000000, "egressBurst": 800000}})
}

// victims creates files and a directory of another program.
const victims = `umask 022; mkdir -p /run/others /run/shared; chmod 1777 /run/shared; cd /run/others
printf 'one\r\neth0' >lease; printf 'one\r\neth0' >10.88.0.2
echo '{"mtu":1400,"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1"}}' >backup
printf 10.88.0.19 >last; head -c 20000 /dev/zero >zeros; touch lock; `

// refused is part of ADD's error; if it is empty, no call fails.
var _ = DescribeTable("no call writes through a link in the place", Label("kernel", "planted-link", "slow"), func(
	plant, refused string,
) {
	n, p := NewNode(), NewPod("one")
	n.Spoiled = refused != ""
	hash := cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"}.Hash()
	n.Cmd("bash", "-ec", victims+"mkdir -p /run/shared/ipam/{.hawser,net} /run/shared/tuning/.hawser "+
		"/run/hawser/{portmap,masq,sbr} "+originals+"; "+strings.ReplaceAll(plant, "HASH", hash))
	before := n.Files("/run/others", "/etc/passwd")
	entries := sharedList().Valid()
	for i, command := range []string{"ADD", "CHECK", "STATUS", "DEL", "ADD", "GC"} {
		a := n.Chain(command, p, entries)
		Expect(n.Files("/run/others", "/etc/passwd")).To(Equal(before), command)
		switch {
		case refused == "":
			Expect(a.Code).To(BeZero(), "%s: %s", command, a.Stdout)
		case i == 0:
			Expect(a.Code).NotTo(BeZero(), command)
			Expect(a.Stdout).To(ContainSubstring(refused))
		case a.Code != 0 && (command == "DEL" || command == "GC"): // CHECK may fail for other reasons
			Expect(a.Stdout).To(ContainSubstring(refused), command)
		}
	}
},
	Entry("of a lease, symbolic", "ln -s ../../../others/lease /run/shared/ipam/net/10.88.0.2", ""),
	Entry("of a lease, hard", "ln lease /run/shared/ipam/net/10.88.0.2", ""),
	Entry("of all leases, symbolic",
		"for i in {2..254}; do ln -s /run/others/lease /run/shared/ipam/net/10.88.0.$i; done",
		"10.88.0.254: 253 leases"),
	Entry("of the last address, symbolic", "ln -s /run/others/last /run/shared/ipam/net/last_reserved_ip.0", ""),
	Entry("of the last address, hard", "ln last /run/shared/ipam/net/last_reserved_ip.0", ""),
	Entry("of the lock of the leases, symbolic, dangling", "ln -s /run/others/new /run/shared/ipam/net/lock",
		"lock /run/shared/ipam/net/lock: too many levels"),
	Entry("of the lock of the leases, hard", "ln lock /run/shared/ipam/net/lock", ""),
	Entry("of the network's directory", "rmdir /run/shared/ipam/net; ln -s /run/others /run/shared/ipam/net",
		"open /run/shared/ipam/net: not a directory"),
	Entry("of the directory of the indexes",
		"rmdir /run/shared/ipam/.hawser; ln -s /run/others /run/shared/ipam/.hawser", ""),
	Entry("of the index, symbolic", "ln -s /run/others/zeros /run/shared/ipam/.hawser/net", ""),
	Entry("of the index, hard", "ln zeros /run/shared/ipam/.hawser/net", ""),
	Entry("of the backup file, symbolic", "ln -s /run/others/backup /run/shared/tuning/one_eth0.json", ""),
	Entry("of the backup file, symbolic, dangling", "ln -s /run/others/new /run/shared/tuning/one_eth0.json", ""),
	Entry("of the backup file, hard", "ln backup /run/shared/tuning/one_eth0.json", ""),
	Entry("of the directory in which an earlier release kept the originals",
		"rmdir /run/shared/tuning/.hawser; ln -s /run/others /run/shared/tuning/.hawser", ""),
	Entry("of the directory of the originals", "rmdir "+originals+"; ln -s /run/others "+originals,
		"open "+originals+": not a directory"),
	Entry("of the lock of the originals", "ln -s /run/others/new "+originals+"/lock",
		"lock "+originals+"/lock: too many levels"),
	Entry("of the record of host ports, symbolic", "ln -s /run/others/backup /run/hawser/portmap/HASH.json", ""),
	Entry("of the record of host ports, hard", "ln backup /run/hawser/portmap/HASH.json", ""),
	Entry("of the lock of host ports", "ln -s /run/others/new /run/hawser/portmap/lock",
		"lock /run/hawser/portmap/lock: too many levels"),
	Entry("of the record of routes, symbolic", "ln -s /run/others/backup /run/hawser/sbr/HASH.json", ""),
	Entry("of the record of routes, hard", "ln backup /run/hawser/sbr/HASH.json", ""),
	Entry("of the lock of routes", "ln -s /run/others/new /run/hawser/sbr/lock",
		"lock /run/hawser/sbr/lock: too many levels"),
	Entry("of the lock of the rules", "ln -s /run/others/new /run/hawser/nft.lock",
		"lock /run/hawser/nft.lock: too many levels"),
)

var _ = Describe("a planted file in the lease directory", Label("kernel", "planted-file"), func() {
	It("prevents neither an ADD nor a DEL if it is not a regular file", func() {
		for _, kind := range []string{"mkdir", "mkfifo", "ln -s /nowhere"} {
			n, p := NewNode(), NewPod("one")
			n.Cmd("bash", "-ec", "mkdir -p "+shared+"/ipam/net; cd "+shared+"/ipam/net; "+
				kind+" 10.88.0.2; "+kind+" last_reserved_ip.1 || true")
			a := n.Chain("ADD", p, sharedList())
			if kind != "mkdir" { // no file can take the place of a directory
				Expect(a.Code).To(BeZero(), a.Stdout)
				Expect(p.Addr()).To(Equal("10.88.0.3"))
			}
			n.Must("DEL", p, sharedList())
			Expect(n.Files(shared+"/ipam/net")).NotTo(ContainSubstring("10.88.0.3 "), "a lease")
		}
	})
})

// Names with a meaning for a file system, a shell, iptables-restore, nft or sysctl. The kernel accepts the second list
// for interfaces.
var (
	hostile = []string{"../x", "..", ".", "/x", "a/b", "a/../../x", " ", "a b", "a\nb", "a\r\n-F", "a\tb", "%d",
		"a:b", "a\xffb", strings.Repeat("x/", 200)}
	strangest = []string{"-x", "--help", "$(id)", "`id`", "a;b", "a|b", "a&b", `a"b`, `a'b`, `a\b`, "a#b", "a*b", "ä"}
	// The kernel also accepts these for interfaces. The plugins refuse them, except in DEL.
	unprintable = []string{"a\x7fb", "\x1b[0m"}
)

func refused(n *World, plugin string, c Call, network, name string) {
	GinkgoHelper()
	c.Conf = Object{"cniVersion": "1.1.0", "name": network, "type": plugin, "prevResult": Object{"cniVersion": "1.1.0"},
		"ipam": Object{"type": "host-local", "subnet": "10.88.0.0/24"}}
	a := n.Invoke(plugin, c)
	Expect(a.Code).To(Equal(1), "%s %s %q", plugin, c.Command, name)
	Expect(a.Stdout).To(MatchRegexp(`"code": [47],`), "%s %s %q", plugin, c.Command, name)
}

var _ = Describe("names as long as they may be", Label("kernel", "long-names", "slow"), func() {
	DescribeTable("are served, or refused with nothing left behind", func(backend string, length int, served bool) {
		nstest.NeedBackend(backend)
		n, p := NewNode(), NewPod(strings.Repeat("c", length))
		p.Network = strings.Repeat("n", length)
		n.Must("DEL", n.Up(NewPod("first"), Usual(backend)), Usual(backend))
		before := n.Snapshot("links", "nftables", "iptables-legacy")
		a := n.Chain("ADD", p, Usual(backend))
		Expect(a.Code == 0).To(Equal(served), a.Stdout)
		if served {
			n.Must("CHECK", p, Usual(backend))
		}
		n.Must("DEL", p, Usual(backend))
		Expect(n.Snapshot("links", "nftables", "iptables-legacy")).To(Equal(before))
		Expect(n.Own()).NotTo(Or(ContainSubstring("ccc"), MatchRegexp(`nnn/[0-9]`)))
	},
		Entry("on nftables", "nftables", 240, true), Entry("on iptables", "iptables", 240, true),
		Entry("on nftables, too long for a file", "nftables", 260, false),
		Entry("on iptables, too long for a file", "iptables", 260, false),
	)
})

// interfaces counts interfaces except lo. With unusual names, ip(8) writes invalid JSON.
func interfaces(p *Pod) int {
	GinkgoHelper()
	return strings.Count(p.Cmd("ip", "-o", "link"), "\n") - 1
}

var _ = Describe("a hostile name", Label("kernel", "hostile-names"), func() {
	It("is refused by each plugin and command, for a network, container or interface, without any effect", func() {
		n, p := NewNode(), NewPod("one")
		before, inside := n.State(), p.Snapshot()
		for i, plugin := range nstest.Plugins() {
			networks := slices.Concat(hostile, unprintable, strangest)
			if i > 0 { // all plugins check names with the same code
				networks = networks[:2]
			}
			for _, command := range []string{"ADD", "CHECK", "DEL"} {
				for j, name := range networks {
					refused(n, plugin, Call{Command: command, Netns: p.Netns}, name, name)
					refused(n, plugin, Call{Command: command, Netns: p.Netns, ID: name}, "net", name)
					isNone := j < len(hostile) || command != "DEL" && slices.Contains(unprintable, name)
					if isNone {
						refused(n, plugin, Call{Command: command, Netns: p.Netns, IfName: name}, "net", name)
					}
				}
			}
		}
		Expect(n.State()).To(Equal(before))
		Expect(p.Snapshot()).To(Equal(inside))
	})

	for _, backend := range []string{"nftables", "iptables"} {
		labels := Label()
		if backend == "iptables" {
			labels = Label("slow")
		}
		It("is a usable interface name if the kernel accepts it, on "+backend, labels, func() {
			nstest.NeedBackend(backend)
			n := NewNode()
			first := n.Up(NewPod("first"), Usual(backend))
			n.Must("DEL", first, Usual(backend))
			before := n.Snapshot("nftables", "iptables-legacy")
			var pods []*Pod
			for i, name := range strangest {
				p := NewPod(fmt.Sprintf("c%d", i))
				p.IfName = name
				entries := Usual(backend).Port(8000 + i)
				pods = append(pods, n.Up(p, entries))
				n.Must("CHECK", p, entries)
				Expect(interfaces(p)).To(Equal(1))
			}
			n.Cmd("sh", "-c", "nft list ruleset >/run/saved && nft -c -f /run/saved")
			for _, p := range pods {
				n.Must("DEL", p, Usual(backend))
				Expect(interfaces(p)).To(BeZero())
			}
			Expect(n.Snapshot("nftables", "iptables-legacy")).To(Equal(before))
			Expect(n.Own()).NotTo(MatchRegexp(`"c[0-9]`))
		})
	}
})

func ptpList() List { return List{{Plugin: "ptp", Keys: Object{"ipam": HostLocal("10.89.0.0/24")}}} }

var _ = Describe("a container that advertises itself as router (CVE-2020-10749)", Label("container-router"), func() {
	DescribeTable("gives neither a container nor the host a route,", func(entries List, hostLink func(*Pod) string) {
		n := NewNode()
		n.SetSysctl("net/ipv6/conf/default/accept_ra", "1")
		rogue, victim := NewPod("rogue"), NewPod("victim")
		for _, p := range []*Pod{rogue, victim} {
			n.Up(p, entries)
		}
		LinkLocal(rogue.Host, "eth0")
		host := LinkLocal(n.Host, hostLink(rogue))
		for range 3 {
			rogue.AdvertiseRouter("eth0", "2001:db8:bad::")
		}
		// Answered after the advertisements were received.
		Expect(Ping(rogue.Host, host+"%eth0")).To(BeTrue())
		Expect(n.Snapshot("addresses", "routes") + victim.Snapshot("addresses", "routes")).
			NotTo(Or(ContainSubstring("2001:db8:bad:"), ContainSubstring("protocol=ra")))
	},
		Entry("on a bridge of IPv4 and IPv6", Usual("").Only("bridge"), func(*Pod) string { return "cni0" }),
		Entry("on a bridge with only IPv4",
			List{{Plugin: "bridge", Keys: Object{"bridge": "cni0", "isGateway": true,
				"ipam": Object{"type": "host-local",
					"subnet": "10.88.0.0/24"}}}}, func(*Pod) string { return "cni0" }),
		Entry("on a point to point link", ptpList(), func(p *Pod) string { return p.Decode().Interfaces[0].Name }),
	)
})

var _ = Describe("a container that uses another's MAC address", Label("kernel", "container-mac"), func() {
	It("can send no frame with it if macspoofchk is on, tagged or not", func() {
		nstest.Need("nft-bridge")
		n := NewNode()
		checked := Usual("").Only("bridge").With("bridge", Object{"macspoofchk": true})
		rogue, victim := n.Up(NewPod("rogue"), checked), n.Up(NewPod("victim"), checked)
		third := n.Up(NewPod("third"), checked)
		from, to := rogue.Wiretap("eth0"), third.Wiretap("eth0")
		own, stolen := from.MAC, victim.Wiretap("eth0").MAC
		from.Send(own, nstest.Broadcast, "honest")
		Expect(to.Next()).To(Equal("honest"))
		from.Send(stolen, nstest.Broadcast, "stolen")
		from.SendFrame(append(append(append(net.HardwareAddr{}, nstest.Broadcast...), stolen...), 0x81, 0, 0, 0, 0x88,
			0xb5, 'x'))
		to.Nothing()
		rogue.Cmd("ip", "link", "set", "eth0", "address", stolen.String())
		from.Send(stolen, nstest.Broadcast, "taken")
		to.Nothing()
		Expect(Ping(victim.Host, "10.88.0.1")).To(BeTrue(), "the victim")
	})
})

var _ = Describe("a container that uses another's IP address", Label("kernel", "container-ip"), func() {
	It("does not affect the other one's CHECK, lease and masquerade, not even by its DEL", func() {
		n := NewNode()
		out := nstest.NewOutside(n.Host)
		server := out.Serve("tcp", "192.0.2.2:0")
		bridge := Usual("").Only("bridge")
		rogue, victim := n.Up(NewPod("rogue"), bridge), n.Up(NewPod("victim"), bridge)
		rogue.Cmd("ip", "addr", "add", victim.Addr()+"/32", "dev", "eth0")
		n.Must("CHECK", victim, Usual("").Only("bridge"))
		n.Must("DEL", rogue, Usual("").Only("bridge"))
		seen := nstest.Must(victim.Ask("tcp", server))
		Expect(seen).To(HavePrefix("192.0.2.1:"), "masqueraded")
		n.Must("CHECK", victim, Usual("").Only("bridge"))
		Expect(n.Own()).To(ContainSubstring("/" + victim.Addr() + " "))
	})
})

var _ = Describe("a container that floods", Label("kernel", "flood", "slow"), func() {
	It("does not prevent other attachments", func() {
		n := NewNode()
		flood := n.Up(NewPod("flood"), Usual("").Only("bridge"))
		from := flood.Wiretap("eth0")
		stop, stopped := make(chan struct{}), make(chan int)
		go func() {
			defer GinkgoRecover()
			sent := 0
			defer func() { stopped <- sent }()
			for payload := strings.Repeat("x", 1000); sent < 200000; sent++ {
				select {
				case <-stop:
					return
				default: // all stations receive the frame, and the bridge learns its address
					from.Send(net.HardwareAddr{2, 1, byte(sent >> 16), byte(sent >> 8), byte(sent), 1},
						nstest.Broadcast, payload)
				}
			}
		}()
		for i := range 5 {
			p := n.Up(NewPod(fmt.Sprintf("c%d", i)), Usual("").Only("bridge"))
			Expect(Ping(p.Host, "10.88.0.1")).To(BeTrue())
			n.Must("CHECK", p, Usual("").Only("bridge"))
			n.Must("DEL", p, Usual("").Only("bridge"))
		}
		close(stop)
		Expect(<-stopped).To(BeNumerically(">", 1000), "the spec proves nothing")
		n.Must("DEL", flood, Usual("").Only("bridge"))
	})
})

var _ = Describe("packets to 127.0.0.0/8 (CVE-2020-8558)", Label("kernel", "loopback-packets"), func() {
	for _, backend := range []string{"nftables", "iptables"} {
		It("reach the host's loopback neither from outside nor from a container, with host ports by "+backend, func() {
			nstest.Need("nft-inet-nat")
			nstest.NeedBackend(backend)
			n := NewNode()
			// A machine on the bridge itself, like one behind an uplink.
			outside := nstest.NewHost()
			p := n.Up(NewPod("one"), Usual(backend))
			rogue := n.Up(NewPod("rogue"), Usual(backend).Only("bridge"))
			nstest.Wire(nstest.End{Host: n.Host, Name: "uplink"},
				nstest.End{Host: outside, Name: "eth0", Addrs: []string{"10.88.0.200/24"}})
			n.Cmd("ip", "link", "set", "uplink", "master", "cni0")
			n.Serve("tcp4", "127.0.0.1:9999")
			n.Serve("tcp4", "0.0.0.0:9998")
			for _, h := range []*nstest.Host{outside, rogue.Host, p.Host} {
				// It routes 127.0.0.1 to the host, if it can.
				h.SetSysctl("net/ipv4/conf/all/route_localnet", "1")
				for _, words := range []string{"addr flush dev lo", "rule add pref 1 to 127.0.0.1 lookup 100",
					"rule del pref 0 lookup local",
					"rule add pref 2 lookup local", "route add 127.0.0.1/32 via 10.88.0.1 dev eth0 table 100"} {
					IP(h, "%s", words)
				}
			}
			refusedAll := func() bool {
				GinkgoHelper()
				var reached atomic.Bool
				from := []*nstest.Host{outside, rogue.Host, p.Host}
				nstest.AtOnce(2*len(from), func(i int) {
					args := []string{"-z", "-w1", "127.0.0.1", []string{"9999", "9998"}[i%2]}
					if from[i/2].Run(nstest.Program{Path: "nc", Args: args}).Exit == 0 {
						reached.Store(true)
					}
				})
				return !reached.Load()
			}
			Expect(n.Sysctl("net/ipv4/conf/cni0/route_localnet")).To(Equal("1"))
			Expect(refusedAll()).To(BeTrue())
			n.Cmd("nft", "flush", "chain", "inet", "hawser", "portmap_guard_v2")
			Eventually(refusedAll).Should(BeFalse(), "the spec proves nothing")
		})
	}
})

var _ = Describe("a host port 53 (CVE-2025-67499)", Label("kernel", "port-53"), func() {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, hostIP := range []string{"", "192.0.2.1"} {
			with := fmt.Sprintf("with %s and hostIP %q", backend, hostIP)
			It("receives no query to another name server, "+with, func() {
				nstest.Need("nft-inet-nat")
				nstest.NeedBackend(backend)
				n := NewNode()
				out := nstest.NewOutside(n.Host)
				out.Cmd("ip", "route", "add", "10.88.0.0/24", "via", "192.0.2.1")
				entries := Usual(backend)
				plain := entries.Only("bridge")
				var mappings []Object
				for _, proto := range []string{"tcp", "udp"} {
					mappings = append(mappings, Object{"hostIP": hostIP, "hostPort": 53, "containerPort": 53,
						"protocol": proto})
				}
				entries = entries.With("portmap", Object{"runtimeConfig": Object{"portMappings": mappings}})
				dns := n.Up(NewPod("dns"), entries)
				client, other := n.Up(NewPod("client"), plain), n.Up(NewPod("other"), plain)
				for _, network := range []string{"tcp", "udp"} {
					for _, s := range []struct {
						h  *nstest.Host
						at string
					}{{dns.Host, dns.Addr()}, {other.Host, other.Addr()}, {out, "192.0.2.2"}, {n.Host, "127.0.0.53"}} {
						s.h.Serve(network, s.at+":53")
					}
					for _, ask := range []question{
						{client.Host, "192.0.2.2", "192.0.2.1"},          // only masqueraded
						{client.Host, other.Addr(), client.Addr()},       // a name server in a container
						{dns.Host, "192.0.2.2", "192.0.2.1"},             // a query of the server itself
						{n.Host, "192.0.2.2", "192.0.2.1"},               // a query of the host
						{n.Host, "127.0.0.53", resolverOf[hostIP != ""]}, // the host's own resolver
						{out, other.Addr(), "192.0.2.2"},                 // through the host
						{out, "192.0.2.1", "192.0.2.2"},                  // the host port
					} {
						seen, err := ask.from.Ask(network, ask.to+":53")
						Expect(err).NotTo(HaveOccurred(), "%s %s", network, ask.to)
						Expect(seen).To(HavePrefix(ask.seen+":"), "%s %s", network, ask.to)
					}
				}
			})
		}
	}
})

// question is a query to a server, and the source address that the server sees.
type question struct {
	from     *nstest.Host
	to, seen string
}

// resolverOf has the source that a resolver on another loopback address of the host sees, if there is a hostIP. Without
// one, the host port has all local addresses, and the container receives the query.
var resolverOf = map[bool]string{true: "127.0.0.1", false: "10.88.0.1"}
