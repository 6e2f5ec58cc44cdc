package tool_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// renamed is the usual list with plugin names of BuildKit and KubeVirt.
func renamed() string {
	return strings.NewReplacer(`"bridge", "bridge"`, `"buildkit-cni-bridge", "bridge"`,
		`"host-local"`, `"buildkit-cni-host-local"`, `"portmap"`, `"cnv-portmap"`,
		`"firewall"`, `"buildkit-cni-firewall"`).Replace(usual)
}

// links returns a directory in which these names are links to the program.
func links(names ...string) string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	Expect(os.Chmod(dir, 0o755)).To(Succeed())
	for _, name := range names {
		Expect(os.Symlink(nstest.Build("hawser"), filepath.Join(dir, name))).To(Succeed())
	}
	return dir
}

var _ = It("no two plugins of Hawser accept the same name", Label("other-name"), func() {
	plugins := append(nstest.Plugins(), nstest.Apart, "whereabouts")
	for _, name := range plugins {
		for _, called := range []string{name, "x-" + name, "x-y-" + name} {
			isOther := func(plugin string) bool { return !cni.IsPlugin(called, plugin) }
			is := slices.DeleteFunc(slices.Clone(plugins), isOther)
			Expect(is).To(Equal([]string{name}), called)
		}
		Expect(cni.IsPlugin("x"+name, name)).To(BeFalse())
		Expect(cni.IsPlugin(name+"-x", name)).To(BeFalse())
	}
})

var _ = Describe("a plugin under a name that ends in the plugin's", Label("other-name"), func() {
	all := []string{"buildkit-cni-bridge", "buildkit-cni-host-local", "cnv-portmap", "buildkit-cni-firewall"}

	It("serves a container, and the tool treats it as the plugin", func() {
		m := newMachine(links(all...), renamed())
		for _, command := range []string{"check", "doctor"} {
			Expect(m.says(command)).To(Equal("nothing is wrong\n"))
		}
		p := newPod("c1", "web-0", hostPort(8080, 80))
		Expect(m.add(p)).To(Succeed())
		Expect(m.check(p)).To(Succeed())
		Expect(m.says("ls")).To(And(ContainSubstring("10.88.0.2"), ContainSubstring("8080")))
		m.Cmd("nft", "flush", "table", "inet", "hawser")
		Expect(m.hawser("doctor").Stdout).To(ContainSubstring("drift"))
		Expect(m.says("reapply", "web-0")).To(ContainSubstring(": restored"))
		Expect(m.says("doctor")).To(Equal("nothing is wrong\n"))
		Expect(m.check(p)).To(Succeed())
		Expect(m.del(p)).To(Succeed())
		Expect(m.says("ls")).NotTo(ContainSubstring("10.88.0.2"))
	})

	It("is checked as the plugin", func() {
		m := newMachine(links(all...), renamed())
		m.write(listFile, strings.NewReplacer(`"ipMasq"`, `"mtu": 7, "ipMasq"`,
			`"capabilities": {"portMappings": true}`, `"snt": true`, "10.88.0.0/24", "10.88.0.1/24").Replace(renamed()))
		Expect(m.checks()).To(ConsistOf(
			And(HaveField("Key", "plugins[0].mtu"), HaveField("Severity", "error")),
			HaveField("Key", "plugins[0].ipam.ranges[0][0].subnet"),
			HaveField("Key", "plugins[1].snt"),
			And(HaveField("Key", "plugins[1].capabilities"), HaveField("What", ContainSubstring("portMappings")))))
		Expect(m.hawser("doctor").Stdout).To(ContainSubstring("refused-list"))
		m.write(listFile, renamed())
		m.Cmd("sh", "-ec", second("more", "10.88.0.128/25"))
		const overlap = "10.88.0.128/25 overlaps 10.88.0.0/24"
		Expect(m.checks()).To(ContainElement(HaveField("What", ContainSubstring(overlap))))
		Expect(m.hawser("doctor").Stdout).To(ContainSubstring(overlap))
	})

	It("can be cluster-local, which is a separate program", func() {
		const lan = "site-cluster-local"
		dir := links("bridge", "portmap", "firewall")
		Expect(os.Symlink(nstest.Build(nstest.Apart), filepath.Join(dir, lan))).To(Succeed())
		m := newMachine(dir, strings.Replace(usual, "host-local", lan, 1))
		a := cni.Attachment{Network: "pods", ContainerID: "c1", IfName: "eth0"}
		for _, command := range []string{"check", "doctor"} {
			Expect(m.says(command)).To(Equal("nothing is wrong\n"))
		}
		m.Cmd("mkdir", "-p", "/var/lib/cni/cluster-local/default")
		m.write("/var/lib/cni/cluster-local/default/"+a.Hash()+".json", `{"network": "pods", "containerID": "c1",
			"ifname": "eth0", "nonce": "N", "held": ["default.10.30.0.7"]}`)
		Expect(m.says("ls")).To(ContainSubstring("10.30.0.7"))
		m.Cmd("rm", "-r", "/var/lib/cni/cluster-local")
		m.Cmd("sh", "-ec", `cp "$1" /opt/cni/bin/new; mv /opt/cni/bin/new /opt/cni/bin/portmap`, "sh",
			filepath.Join(nstest.Newest().Dir(), "portmap"))
		Expect(m.finds()).To(ConsistOf(And(HaveField("ID", "mixed-plugins"), HaveField("What", And(
			ContainSubstring("bridge, firewall: Hawser's plugin"), Not(ContainSubstring(lan)))))))
		m.Cmd("rm", "/opt/cni/bin/"+lan)
		const advice = "copy cluster-local from its own archive (hawser-cluster-local-linux-...) to /opt/cni/bin/" + lan
		Expect(m.finds()[0]).To(And(HaveField("ID", "missing-plugin"), HaveField("Advice", HavePrefix(advice))))
		Expect(m.checks()).To(ContainElement(And(HaveField("Key", "plugins[0].ipam.type"),
			HaveField("Advice", advice+", or correct the name"))))
	})

	It("is reported as an error if the name ends in no plugin's", func() {
		list := strings.Replace(renamed(), "buildkit-cni-bridge", "mybridge", 1)
		m := newMachine(links(append(all, "mybridge")...), list)
		Expect(m.checks()).To(ConsistOf(And(HaveField("Severity", "error"), HaveField("Key", "plugins[0].type"),
			HaveField("What", ContainSubstring(`"mybridge" is not a plugin of /opt/cni/bin/mybridge, which is this `+
				"program")))))
		Expect(m.hawser("doctor").Stdout).To(ContainSubstring(`missing-plugin: ` + listFile +
			`, network "pods": plugin "mybridge" fails: type: "mybridge" is not a plugin of this program, which has b`))
	})

	It("is not checked as the plugin if it is another program", func() {
		dir := links(all[1:]...)
		Expect(os.WriteFile(filepath.Join(dir, "accelerated-bridge"), []byte("#!/bin/sh\n"+
			`echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'`), 0o755)).To(Succeed())
		list := strings.NewReplacer("buildkit-cni-bridge", "accelerated-bridge", `"ipMasq"`, `"vlan": "x", "ipMasq"`)
		m := newMachine(dir, list.Replace(renamed()))
		for _, command := range []string{"check", "doctor"} {
			Expect(m.says(command)).To(Equal("nothing is wrong\n"))
		}
	})
})
