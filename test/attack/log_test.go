// The specs of this directory do to the plugins, as programs on a host, what
// attackers have done to plugins like them. docs/reliability.md lists them.
package attack_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestAttack(t *testing.T) { nstest.RunSpecs(t, "attacks on the plugins") }

// preload is a line that the dynamic linker would read as libraries for every program.
const preload = " /tmp/evil.so \n/tmp/evil.so\n"

// everyCommand has a plugin refuse a configuration whose text a tenant chose, and
// serve one that it does not refuse.
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

	DescribeTable("is in no place that it chooses, also when the call is refused", Label("log-path"), func(log string) {
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

	DescribeTable("is a file that we made, in a directory that is root's alone", Label("log-path"), func(plant string) {
		n.Cmd("bash", "-ec", "umask 077; mkdir /var/log/hawser; cd /var/log/hawser; "+plant)
		before := files()
		Expect(everyCommand(n, "a.log")).To(ContainSubstring("the call is not in the log"))
		Expect(files()).To(Equal(before))
	},
		Entry("no symbolic link", "ln -s /etc/ld.so.preload a.log"),
		Entry("no dangling one", "ln -s /etc/new a.log"),
		Entry("no hard link", "mount --bind /etc .; cd /var/log/hawser; ln ld.so.preload a.log"),
		Entry("no file of another program", `echo '# comment' >a.log`),
		Entry("no file of JSON of another program", `echo '{"log":"x"}' >a.log`),
		Entry("no compressed one", "echo x | gzip >a.log"),
		Entry("no file that others may write to", `: >a.log; chmod 622 a.log`),
		Entry("no file of another user", `: >a.log; chown 1:1 a.log`),
		Entry("no pipe", "mkfifo a.log"), Entry("no directory", "mkdir a.log"),
		Entry("not behind a link", "cd ..; rmdir hawser; ln -s /etc hawser"),
		Entry("not where others may write", "chmod 1777 ."), Entry("not in a directory of others", "chown 1:1 ."),
		Entry("not where the administrator wants none", "cd ..; rmdir hawser; touch hawser"),
	)

	It("is there, with a line of each call, and each line is one whatever is in it", func() {
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

// secret is what runtimes hand to plugins in keys that are not ours: tokens of
// service accounts, passwords of registries.
const secret = "s3cr3t-t0ken"

// withSecrets puts it into every object of a configuration, under a key that no plugin of ours reads.
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

// logging puts programs before the real ones that write down how they were called, and returns the file.
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

// As CVE-2026-41184 and CVE-2026-41185.
var _ = Describe("what a configuration says under keys not ours, and CNI_ARGS", Label("kernel", "secrets"), func() {
	It("is in no message, no file, no rule and on no command line", func() {
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
		try("CHECK", entries)
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
		Expect(strings.Count(string(lines), "\n")).To(BeNumerically(">", 20), "or the spec shows nothing")
		Expect(string(lines)).NotTo(ContainSubstring(secret))
		Expect(strings.Count(string(commands), "\n")).To(BeNumerically(">", 8), "or the spec shows nothing")
		Expect(string(commands)).NotTo(ContainSubstring(secret))
	})
})
