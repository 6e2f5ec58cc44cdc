package tool_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

// checks returns what hawser check finds in a file or directory.
func (m *machine) checks(args ...string) []finding {
	GinkgoHelper()
	return m.problems("check", args...)
}

// wrong is a list with one thing that is wrong. says is a part of the finding and its advice, or parts that " ... "
// separates.
type wrong struct{ list, severity, key, says string }

// matches checks that the fault is the only finding. Without a severity, the list is right.
func (w wrong) matches(found []finding) {
	GinkgoHelper()
	if w.severity == "" {
		Expect(found).To(BeEmpty(), w.list)
		return
	}
	Expect(found).To(HaveLen(1), w.list)
	f := found[0]
	Expect([]string{f.Severity, f.File, f.Key}).To(Equal([]string{w.severity, listFile, w.key}), w.list)
	Expect(f.What + "; " + f.Advice).To(hasParts(w.says))
}

const (
	bridgeEntry  = `{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}}`
	portmapEntry = `{"type": "portmap", "capabilities": {"portMappings": true}}`
)

func listOf(entries ...string) string {
	return `{"cniVersion": "1.0.0", "name": "pods", "plugins": [` + strings.Join(entries, ", ") + "]}"
}

func wrongs() []wrong {
	return []wrong{
		{usual[:60], "error", "",
			"unexpected end of JSON input (line 2); correct the file: no runtime can use the list"},
		{`[]`, "error", "", "is a JSON array, want an object"},
		{`{"hello": "world"}`, "error", "plugins",
			"it is not a network list; write a list of plugins, or move the file to another directory"},
		{`{"name": "pods", "plugins": []}`, "error", "plugins", "it is not a network list"},
		{listOf(bridgeEntry, `{"type": 5}`), "error", "plugins[1].type", "is a JSON number, want a string"},
		{listOf(bridgeEntry, `{}`), "error", "plugins[1].type", `"" is not a valid plugin name`},
		{listOf(bridgeEntry, `{"type": "a/b"}`), "error", "plugins[1].type", `"a/b" is not a valid plugin name`},
		{strings.Replace(usual, `"pods"`, `"p s"`, 1), "error", "name", `"p s" is not a valid network name; start ` +
			"with a letter or digit and continue with letters, digits, '_', '.' and '-'"},
		{strings.Replace(usual, "1.0.0", "7.0.0", 1), "error", "cniVersion", `"7.0.0" is not supported`},
		{strings.Replace(usual, `"cniVersion": "1.0.0",`, "", 1), "warning", "cniVersion", "is missing"},
		{strings.Replace(usual, `"name"`, `"cniVersions": ["1.0.0", "1.9.0"], "name"`, 1), "warning", "cniVersions[1]",
			`Hawser's plugins do not know version "1.9.0"; use versions of 0.1.0, `},
		{strings.Replace(usual, `"plugins"`, `"Plugins"`, 1), "error", "Plugins",
			"is ignored by runtimes, because case matters here"},
		{strings.Replace(usual, `"name"`, `"disableGC": "no", "name"`, 1), "error", "disableGC",
			"is neither true nor false; write true or false"},

		{strings.Replace(usual, `"ipMasq"`, `"mtu": 7, "ipMasq"`, 1), "error", "plugins[0].mtu", "7 is "},
		{strings.Replace(usual, "10.88.0.0/24", "10.88.0.1/24", 1), "error", "plugins[0].ipam.ranges[0][0].subnet",
			"10.88.0.1/24 has host bits set"},
		{strings.Replace(usual, `"isGateway"`, `"isGatway"`, 1), "warning", "plugins[0].isGatway", "is unknown"},

		{listOf(portmapEntry), "error", "plugins[0].type", "is the first of the list"},
		{listOf(`{"type": "loopback"}`, portmapEntry, bridgeEntry), "error", "plugins[1].type",
			"portmap is before bridge, which creates the interface; move it after bridge"},
		{listOf(bridgeEntry, `{"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24"}]}}`),
			"error", "plugins[1].type",
			"ptp creates an interface, but bridge has already created it; write a list for each"},
		{listOf(bridgeEntry, `{"type": "static", "ipam": {"type": "static"}}`), "error", "plugins[1].type",
			"static creates no interface; write it as ipam.type of a plugin that creates one"},

		{listOf(bridgeEntry, `{"type": "portmap", "capabilities": {"portmappings": true, "portMappings": true}}`),
			"warning", "plugins[1].capabilities.portmappings",
			"is not used by portmap; declare it in the entry of the plugin that uses it; case matters"},
		{listOf(strings.Replace(bridgeEntry, `"ipam"`, `"capabilities": {"bandwidth": true, "ips": true}, "ipam"`, 1)),
			"warning", "plugins[0].capabilities.bandwidth", "is not used by bridge"},
		{listOf(bridgeEntry, `{"type": "portmap"}`), "warning", "plugins[1].capabilities", "not have portMappings"},
		{listOf(bridgeEntry, `{"type": "bandwidth"}`), "warning", "plugins[1].capabilities", "have bandwidth"},
		{listOf(bridgeEntry, `{"type": "portmop"}`), "error", "plugins[1].type", `plugin "portmop" is not in`},
		{strings.Replace(listOf(bridgeEntry), "host-local", "host-lokal", 1), "error", "plugins[0].ipam.type",
			`plugin "host-lokal" is not in`},
	}
}

var _ = Describe("hawser check", Label("tool-check"), func() {
	It("names each error of a list and its place", func() {
		m := newMachine(all(), usual)
		Expect(m.checks()).To(BeEmpty())
		for _, w := range wrongs() {
			m.write(listFile, w.list)
			w.matches(m.checks())
			w.matches(m.checks(listFile))
		}
	})

	It("searches plugins in the directories of the node's runtimes, or without runtimes in all usual ones", func() {
		m, root := newMachine(ours(), usual), GinkgoT().TempDir()
		file := func(name, text string) {
			Expect(os.MkdirAll(filepath.Dir(root+name), 0o755)).To(Succeed())
			Expect(os.WriteFile(root+name, []byte(text), 0o755)).To(Succeed())
		}
		file("/etc/cni/net.d/10-lo.conflist",
			`{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}`)
		file("/usr/lib/cni/loopback", "")
		missing := func() string { return m.hawser("check", "--root", root).Stdout }
		Expect(missing()).To(Equal("nothing is wrong\n"))
		file("/etc/containerd/config.toml", "version = 2\n")
		Expect(missing()).To(ContainSubstring(`plugin "loopback" is not in /opt/cni/bin` + "\n"))
		file("/etc/containerd/conf.d/cri.toml", "[plugins.'io.containerd.cri.v1.runtime'.cni]\n  bin_dir = ''\n"+
			"  bin_dirs = ['/run/bin', '/usr/lib/cni/']\n")
		Expect(missing()).To(Equal("nothing is wrong\n"))
		file("/etc/containerd/conf.d/cri.toml", "[plugins.\"io.containerd.grpc.v1.cri\".cni]\n"+
			"  bin_dir = \"/run/bin\"\n[plugins.'io.containerd.image-verifier.v1.bindir']\n"+
			"  bin_dir = '/usr/lib/cni'\n")
		Expect(missing()).To(ContainSubstring("is not in /run/bin\n"))
		file("/etc/crio/crio.conf.d/10.conf", "[crio.network]\n# plugin_dirs = [\n# \"/a\"]\nplugin_dirs = [\n"+
			"  \"/usr/libexec/cni\",\n  \"/b\",\n]\n")
		Expect(missing()).To(ContainSubstring("is not in /run/bin:/usr/libexec/cni:/b\n"))
		Expect(os.Remove(root + "/etc/crio/crio.conf.d/10.conf")).To(Succeed())
		file("/etc/containerd/config.toml", "disabled_plugins = [\"cri\"]\n")
		Expect(missing()).To(Equal("nothing is wrong\n"), "Docker's")
	})

	It("compares the lists of a directory", func() {
		m := newMachine(ours(), usual)
		m.Cmd("sh", "-ec", second("pods", "10.99.0.0/24"))
		Expect(m.checks()).To(ConsistOf(finding{"warning", "/etc/cni/net.d/20-more.conflist", "name",
			`"pods" is also the name of the network in ` + listFile,
			"rename or remove one of them: runtimes differ in which one they use", ""}))
		m.Cmd("sh", "-ec", second("more", "10.88.0.128/25"))
		overlap := And(HaveField("Severity", "error"), HaveField("Key", "plugins[0].ipam.subnet"),
			HaveField("What", `10.88.0.128/25 overlaps 10.88.0.0/24 of network "pods" in `+listFile))
		Expect(m.checks()).To(ConsistOf(overlap))
		Expect(m.checks("/etc/cni/net.d/20-more.conflist")).To(BeEmpty())
		m.Cmd("sh", "-ec", second("more", `10.99.0.0/24", "ranges": [[{"subnet": "10.88.0.128/25"}]], "x": "`))
		Expect(m.checks()).To(ContainElement(And(HaveField("Severity", "error"),
			HaveField("Key", "plugins[0].ipam.ranges[0][0].subnet"))))
	})

	It("checks the plugins in the directory of the network's name, as the runtime adds them", func() {
		m := newMachine(ours(), usual)
		m.Cmd("sh", "-ec", `mkdir /etc/cni/net.d/pods; echo '{"type": "tuning", "mtu": -1}' >/etc/cni/net.d/pods/a.conf
			echo '{"type": "ptp"}' >/etc/cni/net.d/pods/b.disabled`)
		Expect(m.checks()).To(ConsistOf(And(HaveField("File", "/etc/cni/net.d/pods/a.conf"), HaveField("Key", "mtu"))))
		m.write("/etc/cni/net.d/pods/a.conf", `{"type": 5}`)
		Expect(m.checks()).To(ConsistOf(HaveField("What",
			"/etc/cni/net.d/pods/a.conf: type: is a JSON number, want a string")))
		m.write("/etc/cni/net.d/pods/a.conf", `{"type": "ptp", "ipam": {"type": "dhcp"}}`)
		Expect(m.checks()).To(ContainElement(And(HaveField("File", "/etc/cni/net.d/pods/a.conf"),
			HaveField("Key", "type"),
			HaveField("What", "ptp creates an interface, but bridge has already created it"))))
		m.write(listFile, strings.Replace(usual, `"name"`, `"loadOnlyInlinedPlugins": "True", "name"`, 1))
		Expect(m.checks()).To(BeEmpty())
	})

	It("checks the delegates of multus and flannel", func() {
		m := newMachine(all(), usual)
		m.Cmd("sh", "-ec", "mkdir /run/bin; touch /run/bin/multus /run/bin/flannel; chmod 755 /run/bin/*; "+
			"mkfifo /run/fifo")
		flannel := func(keys string) string { return `{"type": "flannel", "delegate": {` + keys + "}}" }
		multus := func(keys string) string {
			return `{"cniVersion": "0.3.1", "name": "m", "type": "multus", ` + keys + "}"
		}
		for _, w := range []wrong{
			{list: listOf(flannel(`"hairpinMode": true, "isDefaultGateway": true`), portmapEntry)},
			{listOf(flannel(`"mtu": 7`), portmapEntry), "error", "plugins[0].delegate.mtu", "7 is "},
			{listOf(flannel(`"type": "macvlan", "mode": "x"`)), "error", "plugins[0].delegate.mode", `"x" is `},
			{list: multus(`"delegates": [` + usual + `, {"type": "macvlan", "ipam": {"type": "dhcp"}}]`)},
			{multus(`"delegates": [{"type": "bridge", "vlan": 5000}]`), "error", "delegates[0].vlan", "VLAN ID 5000"},
			{multus(`"delegates": [` + listOf(portmapEntry) + "]"), "error", "delegates[0].plugins[0].type", "first"},
			{multus(`"delegates": [{"type": 5}]`), "error", "delegates[0].type", "is a JSON number"},
			{multus(`"delegates": [` + listOf(flannel(`"mtu": 7`)) + "]"), "error",
				"delegates[0].plugins[0].delegate.mtu", "7 is "},
			{multus(`"delegates": {}`), "error", "delegates", "is not a list; write a list of networks"},
			{list: multus(`"clusterNetwork": "/host/run/bin/multus"`)},
			{list: multus(`"clusterNetwork": "pods"`)},
			{list: listOf(`{"type": "flannel", "delegate": null}`)},
			{list: listOf(`{"type": "flannel", "subnetFile": "/run/fifo"}`)},
			{multus(`"clusterNetwork": "/host/etc/none"`), "warning", "clusterNetwork",
				"stat /etc/none: no such file ... ; write the list of that network"},
		} {
			m.write(listFile, w.list)
			w.matches(m.checks("--path", "/opt/cni/bin:/run/bin"))
		}
	})

	It("does not check an ipam that another project's plugin completes", func() {
		m := newMachine(ours(), listOf(`{"type": "calico", "ipam": {"type": "host-local", "subnet": "usePodCidr"}}`,
			portmapEntry))
		m.Cmd("sh", "-ec", "mkdir /run/bin; cp /opt/cni/bin/portmap /run/bin/calico")
		for _, command := range []string{"check", "doctor"} {
			Expect(m.says(command, "--path", "/opt/cni/bin:/run/bin")).To(Equal("nothing is wrong\n"))
		}
	})

	It("names each plugin of Hawser that is not installed", func() {
		m := newMachine(ours(), usual)
		m.Cmd("sh", "-ec", "mkdir /run/bin; touch /run/bin/bridge /run/bin/firewall; chmod 755 /run/bin/bridge")
		inNone := func(key, plugin string) finding {
			return finding{"error", listFile, key, fmt.Sprintf("plugin %q is not in /run/bin", plugin),
				"install it: hawser install --to /run/bin, or correct the name", ""}
		}
		Expect(m.checks("--path", "/run/bin")).To(ConsistOf(
			inNone("plugins[0].ipam.type", "host-local"), inNone("plugins[1].type", "portmap"),
			HaveField("What", `plugin "firewall": /run/bin/firewall is not executable`)))
	})

	It("names the plugins of the reference that a list uses although Hawser is installed", func() {
		m := newMachine(nstest.Newest().Dir(), usual)
		Expect(m.checks()).To(BeEmpty())
		m.Cmd("sh", "-ec", `mkdir /run/bin; cp "$0" /run/bin/`, nstest.Build("hawser"))
		all := m.checks("--path", "/opt/cni/bin:/run/bin")
		for i, key := range []string{"plugins[0].type", "plugins[0].ipam.type", "plugins[1].type", "plugins[2].type"} {
			Expect(all[i]).To(And(HaveField("Severity", "warning"), HaveField("Key", key), HaveField("What",
				HaveSuffix(" is a plugin of the reference, although Hawser is installed in /run/bin"))))
		}
		Expect(all).To(HaveLen(4))
		m.Cmd("sh", "-ec", "echo '#!/bin/sh' >/run/bin/firewall; chmod 755 /run/bin/firewall")
		Expect(m.checks("--path", "/run/bin:/opt/cni/bin")).To(ContainElement(finding{"warning", listFile,
			"plugins[2].type", "/run/bin/firewall is another program, although Hawser is installed in /run/bin",
			"hawser install --force --to /run/bin replaces them; hawser uninstall --to /run/bin removes Hawser", ""}))
	})

	It("does not treat an empty directory as the working directory", func() {
		m := newMachine(ours(), usual)
		there := `cd /opt/cni/bin; exec "$0" check --path :/nowhere`
		o := m.Run(nstest.Program{Path: "sh", Args: []string{"-c", there, nstest.Build("hawser")}})
		Expect(o.Stdout).To(ContainSubstring(`plugin "bridge" is not in :/nowhere`))
	})

	It("accepts lists of other projects, and reports nothing for documented lists", Label("slow"), func() {
		m := newMachine(all(), usual)
		lists := nstest.Must(filepath.Glob(nstest.Root() + "/test/clients/testdata/lists/*.json"))
		Expect(len(lists)).To(BeNumerically(">", 20))
		for _, file := range lists {
			isThere := Not(HaveField("What", ContainSubstring("is not in"))) // theirs are not installed
			Expect(m.checks(file)).NotTo(ContainElement(And(HaveField("Severity", "error"), isThere)), file)
		}
		fence := regexp.MustCompile("(?ms)^```json\n(.*?)^```$")
		seen := 0
		for _, pattern := range []string{"*.md", "docs/*.md", "cmd/*/*.md", "plugins/*/*/*.md"} {
			for _, page := range nstest.Must(filepath.Glob(nstest.Root() + "/" + pattern)) {
				for _, text := range fence.FindAllStringSubmatch(string(nstest.Must(os.ReadFile(page))), -1) {
					if !strings.Contains(text[1], `"type"`) && !strings.Contains(text[1], `"plugins"`) {
						continue // a result, or an error
					}
					m.write(listFile, text[1])
					Expect(m.checks(listFile)).To(BeEmpty(), "%s: %s", page, text[1])
					seen++
				}
			}
		}
		Expect(seen).To(BeNumerically(">", 15))
	})

	It("prints a line and advice for each error, or that a list has none", func() {
		m := newMachine(ours(), usual)
		Expect(m.says("check")).To(Equal("nothing is wrong\n"))
		Expect(m.says("check", listFile)).To(Equal("nothing is wrong\n"))
		odd := strings.Replace(bridgeEntry, `"ipam"`, `"\u001bx": 1, "ipam"`, 1)
		m.write(listFile, listOf(odd, `{"type": "portmap"}`))
		Expect(m.says("check")).To(Equal("warning " + listFile + `: plugins[0]["\x1bx"]: is unknown and ignored` +
			"\nwarning " + listFile + ": plugins[1].capabilities: does not have portMappings: the runtime sends " +
			"none, so portmap does nothing\n    write \"capabilities\": {\"portMappings\": true}\n"))
	})

	It("names a file or directory that has no list, and continues with the others", func() {
		m := newMachine(ours(), usual)
		for where, says := range map[string]string{"/etc/cni": "/etc/cni has no network list: no file ends in " +
			".conflist, .conf or .json", "/run/none": "open /run/none: no such file or directory"} {
			out := m.hawser("check", where)
			Expect(out.Exit).To(Equal(1))
			Expect(out.Stderr).To(HavePrefix("hawser: " + says))
		}
		m.write("/etc/cni/net.d/05-bad.conflist", "x")
		m.write(listFile, listOf(`{"type": "bridge", "vlan": 5000}`))
		m.Cmd("ln", "-s", "/run/none", "/etc/cni/net.d/07-gone.conf")
		out := m.hawser("check")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(And(ContainSubstring("05-bad.conflist: invalid character 'x'"),
			ContainSubstring("VLAN ID 5000")))
		Expect(out.Stderr).To(Equal("hawser: open /etc/cni/net.d/07-gone.conf: no such file or directory\n"))
	})

	It("runs no program, and changes nothing", func() {
		m := newMachine(ours(), usual)
		before := m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")
		var r *trace.Record
		run := trace.Command{Path: nstest.Build("hawser"), Args: []string{"check"}, Env: os.Environ()}
		m.Do(func() { r = nstest.Must(trace.Run(run)) })
		Expect(r.Exit).To(BeZero(), r.Stderr)
		Expect(r.Names()).To(Equal([]string{"hawser"}))
		Expect(r.Programs[0].Messages).To(BeEmpty())
		Expect(m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")).To(Equal(before))
	})
})
