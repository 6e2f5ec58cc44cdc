package attack_test

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// chosen is a list whose author knows what he wants to say, and where.
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
	It("has files of our names and texts alone put there, and changes none", Label("kernel", "data-path"), func() {
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
		Expect(added).To(MatchRegexp(`(?s)10\.88\.0\.3.*fd00:88::2.*one_eth0\.json`), "or the spec shows nothing")
		for line := range strings.Lines(added) {
			Expect(line).To(MatchRegexp(`^/etc/(\.hawser drwx------` + // the index of leases
				`|\.hawser/cron\.d -rw------- ".*"` +
				`|cron\.d/\.hawser drwx------` + // what tuning found
				`|cron\.d/\.hawser/(lock|[0-9a-f]{16}\.json) .*` +
				`|cron\.d/one_eth0\.json -rw------- .*` +
				`|cron\.d/lock -rwxr-x--- ""` +
				`|cron\.d/last_reserved_ip\.[01] -rw------- "(10\.88\.0\.3|fd00:88::2)"` +
				`|cron\.d/(10\.88\.0\.3|fd00:88::2) -rw------- "one\\r\\neth0")` + "\n$"))
		}
		Expect(added).NotTo(ContainSubstring("evil"))
		n.Must("DEL", p, list)
	})

	DescribeTable("has no device or pipe read, not even opened, and no secret said", Label("resolv-conf"), func(
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
		Entry("without end", "/dev/zero"), Entry("behind a link", "/etc/link"), Entry("a terminal", "/dev/tty"),
		Entry("a pipe", "/etc/fifo"), Entry("larger than memory", "/etc/sparse"), Entry("a directory", "/etc"),
		Entry("that waits", "/proc/kmsg"), Entry("with a secret", "/etc/shadow"),
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
						Expect(a.Failed(7)).To(ContainSubstring("is no plugin name"))
					}
				}
			}
		}
		Expect(n.Snapshot("links", "nftables")).To(Equal(before))
		run("bridge", "ADD", "evil")
		Expect(mark).To(BeAnExistingFile(), "or the spec shows nothing")
	})
})
