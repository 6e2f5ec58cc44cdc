package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// proof states why a line that a page shows as a command, its output or a file is right: the spec that runs or compares
// it, or the reason why none does. The pattern matches the page and the line, separated by a colon.
type proof struct{ pattern, by, reason string }

// proofs has an entry for each line. The first part of by is a directory or a file, the second a text in it.
var proofs = []proof{
	{`^README.md: \./hawser install`, "test/install: by the command of README.md", ""},
	{`^(README|docs/install).md: (podman (load|run) |uninstall --to)`,
		"test/runtimes: by the commands of README.md", ""},
	{`^(README|docs/install).md: mkdir -p /opt/cni/bin( +#|$)`, "test/runtimes: by the commands of README.md", ""},
	{`^README.md: (dpkg|rpm) --install`, "test/release: README.md's lines install the packages", ""},
	{`^README.md: .*/hawser check`, "test/docs: checks the network of README.md", ""},
	{`^README.md: (sed|systemctl) `, "", "changes the containerd of Debian's package"},
	{`^(README|docs/install).md: ln -s `, "test/docs: checks the network of README.md", ""},
	{`^README.md: (nerdctl|curl) `, "test/runtimes: nerdctl", ""},
	{`^README.md: hawser (why|doctor|ls|explain) `, "test/tool: hawser ls", ""},
	{`^README.md: make (demo|test) `, "test/demo: shows", ""},
	{`^docs/install.md: \./hawser install`, "test/install: by the command of docs/install.md", ""},
	{`^docs/install.md: make `, "test/release: puts every plugin under DESTDIR and PREFIX", ""},
	{`^docs/install.md: (echo|ssh-keygen|sha256sum) `, "test/release: by the commands of docs/install.md", ""},
	{`^docs/install.md: chmod `, "test/release: which installs itself", ""},
	{`^docs/install.md: (mkdir|rm -rf|mv) .*/opt/cni`, "test/docs: unpacks a tarball", ""},
	{`^docs/install.md: skopeo `, "", "needs a registry"},
	{`^docs/install.md: /opt/cni/bin/hawser uninstall`, "test/install: uninstall", ""},
	{`^docs/install.md: (nft|for|\$iptables|done|rm -rf /run)`, "test/load: Going back", ""},
	{`^docs/configuration.md: (for|/opt|done|error|warning|leave|did|bridge: )`,
		"test/docs: checks the network of README.md", ""},
	{`^docs/doctor.md: (\$ hawser doctor|error missing|install it:)`, "test/tool: missing-plugin", ""},
	{`^docs/doctor.md: (\[|OriginalName|MACAddressPolicy)`, "scripts/test-managers.sh: OriginalName=veth* cni*", ""},
	{`^docs/kernels.md: (\[|Name=|Unmanaged)`, "scripts/test-managers.sh: Name=veth* cni* bwp*", ""},
	{`^docs/runtimes.md: (version|\[plugins|bin_dirs?|conf_dir)`, "test/runtimes: bin_dirs = [", ""},
	{`^docs/runtimes.md: (\[crio|network_dir|plugin_dirs)`, "test/runtimes: plugin_dirs = [", ""},
	{`^docs/runtimes.md: (\[network\]|network_backend|cni_plugin_dirs|network_config_dir)`,
		"test/runtimes: cni_plugin_dirs = [", ""},
	{`^docs/runtimes.md: (go install|ip netns|export|cnitool|curl)`,
		"test/runtimes: by the commands of docs/runtimes.md", ""},
	{`^docs/tenants.md: `, "test/docs: copies and tries configurations", ""},
	{`^docs/troubleshooting.md: `, "test/tool: prints what docs/troubleshooting.md shows", ""},
	{`^docs/cluster-local.md: `, "", "needs a cluster; test/kube applies the same files"},
	{`^plugins/ipam/cluster-local/README.md: `, "", "needs a cluster"},
	{`^plugins/ipam/dhcp/README.md: (systemctl|dhcp daemon)`,
		"", "a synopsis, with the unit of the packages"},
	{`^plugins/ipam/host-local/README.md: echo`, "test/docs: reserves an address", ""},
	{`^plugins/main/loopback/README.md: CNI_COMMAND`, "test/docs: brings up lo", ""},
	{`^plugins/main/macvlan/README.md: ip `, "test/docs: reaches a container of macvlan", ""},
	{`^plugins/main/ptp/README.md: 10\.1\.0`, "plugins/main/ptp/ptp: scope link", ""},
	{`^plugins/meta/(portmap|firewall)/README.md: (\$ nft|elements)`, "docs/frozen/host.txt: firewall4_v1", ""},
	{`^plugins/meta/firewall/README.md: -A `,
		"plugins/meta/firewall/firewall: CNI firewall plugin admin overrides", ""},
	{`^plugins/meta/bandwidth/README.md: bwp`, "plugins/meta/bandwidth/bandwidth: bwp", ""},
	{`^cmd/hawser/README.md: (HAWSER_TO=\S+ )?\S*hawser `, "test/docs: are the options of the tool", ""},
	{`^cmd/cni-conformance/README.md: `, "test/conformance: cmd/cni-conformance/example", ""},
	{`^(CONTRIBUTING|test/README|docs/(performance|kernels|releasing)).md: `,
		"", "contributors run these on each change"},
}

// commandPages are the pages whose commands are compared.
func commandPages() []string {
	GinkgoHelper()
	list := append(pages(), "test/README.md")
	for _, page := range glob("cmd/*/README.md") {
		list = append(list, nstest.Must(filepath.Rel(root(), page)))
	}
	return slices.DeleteFunc(list, func(page string) bool { return page == "CHANGELOG.md" })
}

// commandLines returns the lines of a page in indented blocks and in blocks of a shell.
func commandLines(page string) (lines []string) {
	GinkgoHelper()
	fence := ""
	for line := range strings.Lines(read(root(page))) {
		trimmed := strings.TrimSpace(line)
		isCode := fence == "" && strings.HasPrefix(line, "    ")
		switch language, isFence := strings.CutPrefix(trimmed, "```"); {
		case isFence && fence == "":
			fence = language + "."
		case isFence:
			fence = ""
		case isCode, slices.Contains([]string{"sh.", "console."}, fence):
			lines = append(lines, trimmed)
		}
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// block returns the commands of a page from the line that begins with first to the end of its block of code.
func block(page, first string) string {
	GinkgoHelper()
	var lines []string
	for line := range strings.Lines(read(root(page))) {
		trimmed := strings.TrimSpace(line)
		isEnd := trimmed == "" || strings.HasPrefix(trimmed, "```")
		if len(lines) > 0 && isEnd {
			break
		}
		if len(lines) > 0 || strings.HasPrefix(trimmed, first) {
			lines = append(lines, trimmed)
		}
	}
	Expect(lines).NotTo(BeEmpty(), "%s: %s", page, first)
	return strings.Join(lines, "\n")
}

var _ = Describe("the commands of the pages", Label("examples"), func() {
	It("are each run by a spec, or have a reason", func() {
		used := map[string]bool{}
		for _, page := range commandPages() {
			for _, line := range commandLines(page) {
				i := slices.IndexFunc(proofs, func(p proof) bool {
					return regexp.MustCompile(p.pattern).MatchString(page + ": " + line)
				})
				Expect(i).NotTo(Equal(-1), "%s: %s", page, line)
				used[proofs[i].pattern] = true
			}
		}
		for _, p := range proofs {
			Expect(used).To(HaveKey(p.pattern), "no line matches")
			Expect(p.by == "").NotTo(Equal(p.reason == ""), p.pattern)
			if p.by != "" {
				place, text, _ := strings.Cut(p.by, ": ")
				Expect(sources(place)).To(ContainSubstring(text), p.by)
			}
		}
	})

	It("checks the network of README.md", func() {
		node := newShell()
		node.write("/etc/cni/net.d/10-net.conflist", examples("README.md")[0].text)
		check, _, _ := strings.Cut(block("README.md", "/opt/cni/bin/hawser check "), "\n")
		Expect(node.sh(check)).To(Equal("nothing is wrong\n"))
		Expect(node.sh(block("docs/configuration.md", "for plugin in "))).NotTo(ContainSubstring("not valid"))
	})

	It("unpacks a tarball", func() {
		node := newShell()
		commands := block("docs/install.md", "mkdir -p /opt/cni/bin /opt/cni/new")
		archive := regexp.MustCompile(`tar -xzf (\S+)`).FindStringSubmatch(commands)
		node.sh("mkdir -p /run/archive/hawser-cni /opt/cni/bin/hawser-cni; cp -L /opt/cni/bin/bridge /run/archive; " +
			"echo new >/run/archive/hawser-cni/README.md; tar -czf /run/" + archive[1] + " -C /run/archive .")
		node.sh("cd /run; " + commands)
		Expect(node.sh("cat /opt/cni/bin/hawser-cni/README.md; ls -d /opt/cni/new || true")).To(Equal("new\n"))
		Expect(node.sh("/opt/cni/bin/bridge --version")).To(HavePrefix("bridge "))
	})

	It("copies and tries configurations of docs/tenants.md", func() {
		nstest.NeedProgram("jq")
		node := newShell()
		texts := map[string]string{}
		for _, m := range labelled.FindAllStringSubmatch(read(root("docs/tenants.md")), -1) {
			texts[m[1]] = m[2]
		}
		node.write("/etc/cni/hawser/policy.json", texts["policy"])
		try := block("docs/tenants.md", "/opt/cni/bin/bridge --check-config")
		for kind, status := range map[string]int{"accepted": 0, "refused": 1} {
			node.write("/run/tenant.conflist", texts[kind])
			Expect(node.try("cd /run; "+try).Exit).To(Equal(status), kind)
		}
		conf := parsed(texts["flannel"]).(object)
		delegate := plugintest.Merge(conf["plugins"].([]any)[0].(object), object{"cniVersion": conf["cniVersion"],
			"name": conf["name"], "runtimeConfig": object{"portMappings": []any{}}})
		node.sh("mkdir -p /var/lib/cni; mount -t tmpfs tmpfs /var/lib/cni; mkdir /var/lib/cni/flannel")
		node.write("/var/lib/cni/flannel/c1", plugintest.Text(delegate))
		node.sh(block("docs/tenants.md", "mkdir -p /etc/cni/hawser/generated"))
		copied := parsed(node.sh("cat /etc/cni/hawser/generated/10-flannel.conflist")).(object)
		entry := copied["plugins"].([]any)[0].(object)
		delete(entry, "name")
		delete(entry, "cniVersion")
		Expect(plugintest.Text(copied)).To(MatchJSON(texts["flannel"]))
	})

	It("reserves an address", func() {
		page, node := "plugins/ipam/host-local/README.md", newShell()
		conf := examples(page)[0].doc
		node.sh("mkdir -p /var/lib/cni; mount -t tmpfs tmpfs /var/lib/cni; mkdir -p /var/lib/cni/networks/pods")
		node.sh(block(page, "echo printer"))
		call := plugintest.Call{Command: "ADD", Netns: plugintest.NewPod("one").Netns, Conf: conf,
			Args: "IgnoreUnknown=1;IP=10.1.0.99"}
		Expect(node.Invoke("bridge", call).Failed(103)).To(ContainSubstring("10.1.0.99"))
		node.sh("rm /var/lib/cni/networks/pods/10.1.0.99")
	})

	It("brings up lo", func() {
		page, node := "plugins/main/loopback/README.md", newShell()
		node.write("/run/lo.conf", examples(page)[1].text)
		node.sh("ip netns add c1")
		DeferCleanup(func() { node.sh("ip netns del c1") })
		Expect(node.sh("cd /run; " + block(page, "CNI_COMMAND="))).To(MatchJSON(examples(page)[2].text))
	})

	It("reaches a container of macvlan", func() {
		nstest.Need("macvlan")
		page, node := "plugins/main/macvlan/README.md", newShell()
		plugintest.Uplink(node.Host)
		pod := plugintest.NewPod("one")
		call := plugintest.Call{Command: "ADD", Netns: pod.Netns, Conf: examples(page)[0].doc}
		Expect(node.Invoke("macvlan", call).Stdout).To(ContainSubstring("10.1.0.2/16"))
		node.sh(block(page, "ip link add hostlan"))
		pod.Serve("tcp", "10.1.0.2:80")
		Eventually(func() (string, error) { return node.Ask("tcp", "10.1.0.2:80") }).Should(HavePrefix("10.1.255.254:"))
		call.Command = "DEL"
		Expect(node.Invoke("macvlan", call).Code).To(BeZero())
	})
})

// sources returns the content of a file, or of the specs in a directory.
func sources(place string) string {
	GinkgoHelper()
	files := []string{root(place)}
	if filepath.Ext(place) == "" {
		files = glob(place + "/*_test.go")
	}
	var all strings.Builder
	for _, file := range files {
		if filepath.Base(file) != "commands_test.go" {
			all.WriteString(read(file))
			continue
		}
		_, specs, _ := strings.Cut(read(file), "\nvar _ = ")
		all.WriteString(specs)
	}
	return all.String()
}

// shell is a node with all plugins and the tool in /opt/cni/bin, and empty /etc and /run.
type shell struct{ *plugintest.World }

func newShell() shell {
	GinkgoHelper()
	s := shell{plugintest.NewNode()}
	s.sh("mount -t tmpfs tmpfs /etc; mount -t tmpfs tmpfs /opt; mkdir -p /opt/cni")
	s.sh("ln -s " + s.Dir + " /opt/cni/all; mkdir /opt/cni/bin; ln -s " + s.Dir + "/* /opt/cni/bin; ln -s " +
		nstest.Build("hawser") + " /opt/cni/bin/hawser")
	return s
}

func (s shell) try(script string) nstest.Output {
	GinkgoHelper()
	return s.Run(nstest.Program{Path: "bash", Args: []string{"-ec", script}, Env: append(os.Environ(), s.Env...)})
}

func (s shell) sh(script string) string {
	GinkgoHelper()
	out := s.try(script)
	Expect(out.Exit).To(BeZero(), "%s: %s%s", script, out.Stdout, out.Stderr)
	return out.Stdout
}

func (s shell) write(file, text string) {
	GinkgoHelper()
	s.Cmd("bash", "-ec", `mkdir -p "$(dirname "$1")"; printf %s "$2" >"$1"`, "-", file, text)
}
