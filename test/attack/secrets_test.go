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

// secret is what runtimes hand to plugins in keys that are not ours: tokens of
// service accounts, passwords of registries.
const secret = "s3cr3t-t0ken"

// withSecrets puts it into every object of a configuration, under a key that no
// plugin of ours reads.
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

// logging puts programs before the real ones that write down how they were
// called, and returns the file.
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
		commands, err := os.ReadFile(log)
		Expect(err).NotTo(HaveOccurred())
		lines, err := os.ReadFile(calls)
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Count(string(lines), "\n")).To(BeNumerically(">", 20), "or the spec shows nothing")
		Expect(string(lines)).NotTo(ContainSubstring(secret))
		Expect(strings.Count(string(commands), "\n")).To(BeNumerically(">", 8), "or the spec shows nothing")
		Expect(string(commands)).NotTo(ContainSubstring(secret))
	})
})
