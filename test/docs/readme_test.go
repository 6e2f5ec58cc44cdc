// Package docs_test holds docs/ and the READMEs to what the plugins do: the schemas to the parsers, the tables
// of keys to the schemas, the examples to a host on which they are run.
package docs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestDocs(t *testing.T) { nstest.RunSpecs(t, "docs: schemas, tables and examples") }

type object = plugintest.Object

func root(name ...string) string {
	return filepath.Join(append([]string{nstest.Root()}, name...)...)
}

func glob(pattern string) []string {
	GinkgoHelper()
	files := nstest.Must(filepath.Glob(root(pattern)))
	Expect(files).NotTo(BeEmpty(), pattern)
	return files
}

func read(file string) string {
	GinkgoHelper()
	data := nstest.Must(os.ReadFile(file))
	return string(data)
}

// compiled are the schemas of this run.
var compiled = map[string]*jsonschema.Schema{}

// schema is docs/schema/NAME.json, compiled; the compiler refuses what is no
// schema of draft 2020-12. Nothing is looked up in the net.
func schema(name string) *jsonschema.Schema {
	GinkgoHelper()
	if s, ok := compiled[name]; ok {
		return s
	}
	c := jsonschema.NewCompiler()
	ids := map[string]string{}
	for _, file := range glob("docs/schema/*.json") {
		doc := nstest.Must(jsonschema.UnmarshalJSON(strings.NewReader(read(file))))
		id, _ := doc.(object)["$id"].(string)
		Expect(id).To(HaveSuffix("/docs/schema/" + filepath.Base(file)))
		Expect(c.AddResource(id, doc)).To(Succeed())
		ids[filepath.Base(file)] = id
	}
	s := nstest.Must(c.Compile(ids[name+".json"]))
	compiled[name] = s
	return s
}

func validate(s *jsonschema.Schema, doc any) error {
	GinkgoHelper()
	plain := nstest.Must(jsonschema.UnmarshalJSON(strings.NewReader(plugintest.Text(doc))))
	return s.Validate(plain)
}

func parsed(text string) (doc any) {
	GinkgoHelper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	Expect(d.Decode(&doc)).To(Succeed(), text)
	return doc
}

// row is one of the tables of keys.
type row struct{ key, kind, missing string }

var quoted = regexp.MustCompile("`([^`]+)`")

// keyRows are the rows of all tables of a page whose first column is "key"; one
// may be about several keys.
func keyRows(page string) (rows []row) {
	GinkgoHelper()
	inside := false
	for line := range strings.Lines(read(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 6 || strings.HasPrefix(cells[1], "-") {
			inside = inside && len(cells) > 1
			continue
		}
		if first := strings.TrimSpace(cells[1]); first == "key" {
			inside = true
			continue
		} else if !inside {
			continue
		}
		names := quoted.FindAllStringSubmatch(cells[1], -1)
		Expect(names).NotTo(BeEmpty(), line)
		for _, n := range names {
			rows = append(rows, row{n[1], strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])})
		}
	}
	return rows
}

// expectRows has a table say of each key what the schema does, and of no other.
func expectRows(rows []row, keys []keyDoc) {
	GinkgoHelper()
	var have, want []string
	for _, r := range rows {
		have = append(have, r.key)
	}
	for _, k := range keys {
		want = append(want, k.path)
		i := slices.IndexFunc(rows, func(r row) bool { return r.key == k.path })
		if i < 0 {
			continue
		}
		Expect(rows[i].kind).To(HavePrefix(k.kind), k.path)
		if k.missing != nil {
			Expect(strings.Trim(rows[i].missing, "`")).To(Equal(fmt.Sprint(k.missing)), k.path)
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	Expect(have).To(Equal(want))
}

var _ = It("docs/configuration.md has each key that all configurations have, and those of lists", func() {
	defs := parsed(read(root("docs", "schema", "network.json"))).(object)["$defs"].(object)
	keys := append(keysOf(defs["list"].(object), ""), keysOf(defs["entry"].(object), "")...)
	keys = append(keys, keyDoc{path: "prevResult"}) // result.json has its own
	keys = append(keys, schemaKeys("loopback")...)  // those of every plugin of this suite
	expectRows(keyRows(root("docs", "configuration.md")), keys)
})

// Patterns of Markdown: code blocks, links, and words.
var (
	fenced = regexp.MustCompile("(?ms)^ *```.*?^ *```\n")
	linked = regexp.MustCompile(`(\])\([^)]*\)`)
	words  = regexp.MustCompile(`\S*\w\S*`)
)

// sections that a manual page has, in this order; there may be more.
var sections = []string{"Name", "Synopsis", "Description", "Keys", "Commands", "On the host", "Examples", "Errors",
	"Differences", "See also"}

// shared returns the rows for keys of a plugin that its page leaves to another page: resolver settings and ipam.type
// have the same meaning in all plugins, cluster-local has the ranges of host-local, and static its routes.
func shared(plugin string, own []keyDoc, rows []row) (rest []row) {
	GinkgoHelper()
	other := slices.DeleteFunc(keyRows(root("docs", "configuration.md")), func(r row) bool {
		return !strings.HasPrefix(r.key, "dns") && r.key != "ipam.type"
	})
	if hostLocal := keyRows(root("plugins", "ipam", "host-local", "README.md")); plugin == "cluster-local" {
		other = append(other, hostLocal...)
	} else if plugin == "static" {
		other = append(other, slices.DeleteFunc(hostLocal, func(r row) bool {
			return !strings.HasPrefix(r.key, "ipam.routes[].")
		})...)
	}
	for _, r := range other {
		isOwn := slices.Contains(paths(own), r.key)
		isHere := slices.ContainsFunc(rows, func(here row) bool { return here.key == r.key })
		if isOwn && !isHere {
			rest = append(rest, r)
		}
	}
	return rest
}

var _ = Describe("README.md", func() {
	for _, page := range glob("plugins/*/*/README.md") {
		plugin := filepath.Base(filepath.Dir(page))

		It("of "+plugin+" has each key of its own, with type and default, and no other", func() {
			common := paths(schemaKeys("loopback")) // those of every plugin are in docs/configuration.md
			own := slices.DeleteFunc(schemaKeys(plugin), func(k keyDoc) bool { return slices.Contains(common, k.path) })
			rows := keyRows(page)
			expectRows(append(rows, shared(plugin, own, rows)...), own)
		})

		It("of "+plugin+" is a manual page", func() {
			text := read(page)
			var have []string
			for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(text, -1) {
				if slices.Contains(sections, m[1]) {
					have = append(have, m[1])
				}
			}
			Expect(have).To(Equal(sections))
			Expect(text).To(HavePrefix("# " + plugin + "\n\n## Name\n\n" + plugin + " - "))
			Expect(text).To(ContainSubstring("docs/configuration.md)"))
			prose := linked.ReplaceAllString(fenced.ReplaceAllString(text, ""), "$1")
			Expect(len(words.FindAllString(prose, -1))).To(BeNumerically("<=", 1500), "words without examples")
			Expect(len(words.FindAllString(text, -1))).To(BeNumerically(">=", 400), "words")
			Expect(strings.Count(text, "\n```json\n")).To(BeNumerically(">=", 3), "examples")
			if slices.Contains([]string{"bridge", "ptp", "macvlan", "portmap", "firewall"}, plugin) {
				Expect(text).To(ContainSubstring("\n```mermaid\n"), "packet path")
			}
		})

		It("of "+plugin+" explains each code that it lists as docs/errors.md has it", func() {
			all := read(root("docs", "errors.md"))
			_, errors, _ := strings.Cut(read(page), "## Errors\n")
			errors, _, _ = strings.Cut(errors, "\n## ")
			codes := regexp.MustCompile(`(?m)^\| ([\d, ]+) \|`).FindAllStringSubmatch(errors, -1)
			Expect(codes).NotTo(BeEmpty())
			for _, m := range codes {
				for _, code := range strings.Split(m[1], ", ") {
					Expect(all).To(ContainSubstring("\n| " + code + " | "))
				}
			}
		})
	}

	It("of the tool has at most 400 words for each command", func() {
		_, commands, _ := strings.Cut(read(root("cmd", "hawser", "README.md")), "\n## Commands\n")
		commands, _, _ = strings.Cut(commands, "\n## ")
		all := strings.Split(commands, "\n### ")[1:]
		Expect(len(all)).To(BeNumerically(">", 10))
		for _, command := range all {
			prose := linked.ReplaceAllString(fenced.ReplaceAllString(command, ""), "$1")
			name, _, _ := strings.Cut(command, "\n")
			Expect(len(words.FindAllString(prose, -1))).To(BeNumerically("<=", 400), name)
		}
	})

	It("shows what --check-config prints", func() {
		net := examples("README.md")[0]
		net.entries()[0]["mtu"], net.entries()[0]["isGatway"] = 70000, true
		cmd := exec.Command(nstest.Build("bridge"), "--check-config")
		cmd.Stdin = strings.NewReader(plugintest.Text(net.doc))
		out, err := cmd.CombinedOutput()
		Expect(err).To(MatchError("exit status 1"))
		var shown strings.Builder
		for line := range strings.Lines(string(out)) {
			shown.WriteString("    " + line)
		}
		Expect(read(root("docs", "configuration.md"))).To(ContainSubstring("\n" + shown.String() + "\n"))
	})

	It("calls bridge by its path: the one in PATH is iproute2's", func() {
		bare := regexp.MustCompile(`(?m)^.*(^|[^/\w])bridge --(check-config|help|json|version).*$`)
		for _, page := range pages() {
			Expect(bare.FindString(read(root(page)))).To(BeEmpty(), page)
		}
	})
})

// keyDoc is what a schema says of a key.
type keyDoc struct {
	path    string // vlanTrunk[].id
	kind    string // string, number, boolean, list, object
	missing any    // the default, nil where there is none
	node    object
}

// keysOf lists the keys that a schema describes, objects before what is in them.
func keysOf(node object, path string) (list []keyDoc) {
	properties, _ := node["properties"].(object)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		k := keyDoc{path: path + name, node: properties[name].(object)}
		k.kind, k.missing = kindOf(k.node), k.node["default"]
		if k.node["description"] != nil {
			list = append(list, k)
		}
		inner, prefix := k.node, k.path
		for inner["items"] != nil {
			inner, prefix = inner["items"].(object), prefix+"[]"
		}
		list = append(list, keysOf(inner, prefix+".")...)
	}
	return list
}

func kindOf(node object) string {
	kind, _ := node["type"].(string)
	if several, ok := node["type"].([]any); ok {
		kind, _ = several[0].(string)
	}
	switch kind {
	case "integer":
		return "number"
	case "array":
		return "list"
	}
	return kind
}

func schemaKeys(name string) []keyDoc {
	GinkgoHelper()
	return keysOf(parsed(read(root("docs", "schema", name+".json"))).(object), "")
}

func paths(keys []keyDoc) (list []string) {
	for _, k := range keys {
		list = append(list, k.path)
	}
	return list
}

var _ = Describe("good and bad values are there of each key of", Label("values"), func() {
	for _, main := range glob("plugins/*/*/main.go") {
		plugin := filepath.Base(filepath.Dir(main))
		It(plugin, func() {
			Expect(plugins).To(HaveKey(plugin))
			var tried []string
			for _, v := range tables()[plugin] {
				tried = append(tried, v.key)
				Expect(v.good).NotTo(BeEmpty())
			}
			slices.Sort(tried)
			want := paths(schemaKeys(plugin))
			slices.Sort(want)
			Expect(slices.Compact(tried)).To(Equal(want))
		})
	}
})

var _ = Describe("--help has each key of", func() {
	for plugin := range plugins {
		It(plugin, func() {
			out := nstest.Must(exec.Command(nstest.Build(plugin), "--help").Output())
			for _, key := range paths(schemaKeys(plugin)) {
				Expect(string(out)).To(MatchRegexp(`(?m)^  ` + regexp.QuoteMeta(key) + ` +\w`))
			}
		})
	}
})

// sent is what the runtime sends of each capability.
var sent = map[string]any{
	"portMappings": []object{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
		{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}},
	"bandwidth": object{"ingressRate": 8000000, "ingressBurst": 2147483647, "egressRate": 8000000,
		"egressBurst": 800000},
	"mac":      "02:00:00:00:00:55",
	"ips":      []string{"10.3.0.7"},
	"ipRanges": [][]object{{{"subnet": "10.3.0.0/24"}}},
}

func (e example) entries() (list []object) {
	all, ok := e.doc["plugins"].([]any)
	if !ok {
		return []object{e.doc}
	}
	for _, p := range all {
		list = append(list, p.(object))
	}
	return list
}

// asks reports whether an entry has such a key, with such a value if one is given.
func (e example) asks(key string, value ...string) bool {
	for _, entry := range e.entries() {
		if v, ok := entry[key]; ok && (len(value) == 0 || v == value[0]) {
			return true
		}
	}
	return false
}

func (e example) labels() Labels {
	if e.asks("vlan") || e.asks("vlanTrunk") || e.asks("vrfname") || len(e.kinds()) > 0 {
		return Label("kernel")
	}
	return nil
}

// kinds are what the kernel needs for the plugins whose kind of interface not every one has.
func (e example) kinds() (needs []string) {
	for plugin, feature := range map[string]string{"vlan": "8021q", "ipvlan": "ipvlan", "dummy": "dummy"} {
		if e.asks("type", plugin) {
			needs = append(needs, feature)
		}
	}
	return needs
}

// prepare skips what this machine cannot do, and makes what is not the plugins'
// to make: the chain of kube-proxy that an example names.
func (e example) prepare(host *nstest.Host) (pluginDir string) {
	if e.asks("vlan") || e.asks("vlanTrunk") {
		nstest.Need("vlan_filtering", "8021q")
	}
	if e.asks("vrfname") {
		nstest.Need("vrf")
	}
	if e.asks("macspoofchk") {
		nstest.Need("nft-bridge")
	}
	if e.asks("ipMasqBackend", "iptables") || e.asks("externalSetMarkChain") {
		nstest.Need("iptables")
	}
	nstest.Need(e.kinds()...)
	if e.asks("master") {
		plugintest.Uplink(host)
	}
	for _, entry := range e.entries() {
		if ipam, _ := entry["ipam"].(object); ipam["type"] == "dhcp" {
			lend(host, entry["bridge"].(string))
		}
		if chain, ok := entry["externalSetMarkChain"].(string); ok {
			host.Cmd("iptables", "-t", "nat", "-N", chain)
			host.Cmd("ip6tables", "-t", "nat", "-N", chain)
		}
	}
	for _, entry := range e.entries() {
		if entry["type"] == "host-device" {
			host.Cmd("ip", "link", "add", "ens5", "address", "02:00:00:00:05:01", "type", "veth", "peer", "ens5p")
			if entry["useInterfaceNetwork"] == true {
				host.IP("link set ens5p up", "link set ens5 up", "addr add 192.0.2.10/24 dev ens5")
			}
		}
	}
	dir := GinkgoT().TempDir()
	for name := range plugins {
		Expect(os.Symlink(nstest.Build(name), filepath.Join(dir, name))).To(Succeed())
	}
	return dir
}

func lend(host *nstest.Host, bridge string) {
	host.IP("link add "+bridge+" type bridge", "addr add 10.7.0.1/24 dev "+bridge,
		"addr add fd00:10:7::1/64 dev "+bridge+" nodad", "link set "+bridge+" up")
	plugintest.ServeDHCP(host, bridge, "10.7.0.50,10.7.0.60", "--enable-ra", "--dhcp-range=fd00:10:7::,ra-only,64,1h")
	plugintest.DHCPDaemon(host, filepath.Dir(nstest.Build("dhcp")))
}

func (e example) list() *libcni.NetworkConfigList {
	GinkgoHelper()
	text := e.text
	if e.doc["plugins"] == nil {
		text = plugintest.Text(object{"cniVersion": e.doc["cniVersion"], "name": e.doc["name"],
			"plugins": []any{e.doc}})
	}
	list := nstest.Must(libcni.NetworkConfFromBytes([]byte(text)))
	return list
}

func (e example) ifName() string {
	if e.entries()[0]["type"] == "loopback" {
		return "lo"
	}
	return "eth0"
}

// once attaches a container, checks it and takes it away; it returns the result.
func (e example) once(host *nstest.Host, c *libcni.CNIConfig, id string) object {
	GinkgoHelper()
	cont, list := nstest.NewNetns(), e.list()
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: cont.Path, IfName: e.ifName(), CapabilityArgs: sent}
	run := func(fn func(context.Context) error) {
		GinkgoHelper()
		host.Do(func() { Expect(fn(context.Background())).To(Succeed()) })
	}
	var result object
	run(func(ctx context.Context) error {
		r, err := c.AddNetworkList(ctx, list, rt)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(plugintest.Text(r)), &result)
	})
	Expect(validate(schema("result"), result)).To(Succeed())
	if e.ifName() == "eth0" && !e.asks("type", "host-device") { // whose alias is its name on the host
		Expect(host.Cmd("ip", "-d", "link") + cont.Cmd("ip", "-d", "link")).To(ContainSubstring(id))
	}
	link := plugintest.Show(cont, e.ifName())
	for _, ip := range asList(result["ips"]) {
		Expect(plugintest.Text(link.AddrInfo)).To(ContainSubstring(strings.Split(ip.(object)["address"].(string),
			"/")[0]))
	}
	if list.CNIVersion == "1.1.0" {
		run(func(ctx context.Context) error { return c.GetStatusNetworkList(ctx, list) })
	}
	run(func(ctx context.Context) error { return c.CheckNetworkList(ctx, list, rt) })
	run(func(ctx context.Context) error { return c.DelNetworkList(ctx, list, rt) })
	Expect(host.Cmd("ip", "-d", "link")).NotTo(ContainSubstring(id), "links whose alias names the container")
	Expect(host.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring(id), "rules that name it")
	Expect(host.Cmd("find", "/var/lib/cni/networks", "-type", "f", "-name", "*[.:]*", "!", "-name",
		"last_reserved_ip.*")).To(BeEmpty())
	return result
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

var _ = Describe("the examples are run:", Label("examples"), func() {
	for _, page := range pages() {
		list := examples(page)
		for i, e := range list {
			if e.schema() != "network" || strings.Contains(e.text, `"`+nstest.Apart+`"`) { // needs an API server
				continue
			}
			It(fmt.Sprintf("%s, number %d, %s", page, i+1, e.doc["name"]), e.labels(), func() {
				host := nstest.NewHost()
				host.Cmd("mkdir", "-p", "/var/lib/cni/networks")
				host.Cmd("mount", "-t", "tmpfs", "tmpfs", "/var/log") // the machine's is not the example's to write to
				c := libcni.NewCNIConfigWithCacheDir([]string{e.prepare(host)}, GinkgoT().TempDir(), nil)
				result := e.once(host, c, "container1")
				if !nstest.Quick() {
					after := host.Snapshot()
					e.once(host, c, "container2")
					Expect(host.Snapshot()).To(Equal(after), "the second container leaves no more than the first")
				}
				if i+1 < len(list) && list[i+1].schema() == "result" {
					Expect(withSandbox(result)).To(Equal(withSandbox(list[i+1].doc)))
				}
			})
		}
	}
})

func withSandbox(result object) string {
	GinkgoHelper()
	for _, i := range asList(result["interfaces"]) {
		if o := i.(object); o["sandbox"] != nil {
			o["sandbox"] = "/run/netns/c1"
		}
	}
	return plugintest.Text(result)
}

var fence = regexp.MustCompile("(?ms)^```json\n(.*?)^```$")

// labeled finds blocks of JSON with a label, which the specs of their page try.
var labelled = regexp.MustCompile("(?ms)^ *```json (\\w+)\n(.*?)^ *```$")

// example is a JSON document that a page shows.
type example struct {
	page string // from the root
	text string
	doc  object
}

func examples(page string) (list []example) {
	GinkgoHelper()
	for _, m := range fence.FindAllStringSubmatch(read(root(page)), -1) {
		doc, ok := parsed(m[1]).(object)
		Expect(ok).To(BeTrue(), "%s: no object:\n%s", page, m[1])
		list = append(list, example{page, m[1], doc})
	}
	return list
}

// pages are all that people read.
func pages() (list []string) {
	GinkgoHelper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "plugins/*/*.md", "plugins/*/*/*.md"} {
		files := nstest.Must(filepath.Glob(root(pattern)))
		for _, f := range files {
			page := nstest.Must(filepath.Rel(root(), f))
			list = append(list, page)
		}
	}
	return list
}

func (e example) schema() string {
	has := func(key string) bool { return e.doc[key] != nil }
	switch {
	case has("code"):
		return "error"
	case has("plugins"), has("type"):
		return "network"
	}
	return "result"
}

var _ = Describe("the pages", func() {
	It("show JSON that the schemas take, and the parsers", Label("examples"), func() {
		seen := map[string]int{}
		for _, page := range pages() {
			for _, e := range examples(page) {
				seen[e.schema()]++
				Expect(validate(schema(e.schema()), e.doc)).To(Succeed(), "%s:\n%s", page, e.text)
				if e.schema() != "network" {
					continue
				}
				for plugin := range plugins {
					r, code := checkConfig(plugin, e.text)
					Expect(code).To(Or(BeZero(), Equal(3)), "%s: %s", page, e.text) // 3: it is other plugins'
					Expect(r.lines("warning")).To(BeEmpty(), "%s: %s", page, e.text)
				}
			}
		}
		Expect(seen).To(And(HaveKeyWithValue("network", BeNumerically(">", 15)), HaveKeyWithValue("error", 1)))
	})

	It("show no JSON outside of a block that is checked", func() {
		plain := regexp.MustCompile(`(?m)^(    .*"(type|cniVersion)": ".*|.*<<<'\{.*)$`)
		for _, page := range pages() {
			text := labelled.ReplaceAllString(fence.ReplaceAllString(read(root(page)), ""), "")
			for _, line := range plain.FindAllString(text, -1) {
				Fail(fmt.Sprintf("%s: %s", page, strings.TrimSpace(line)))
			}
		}
	})
})

var _ = Describe("the schema of results", func() {
	It("takes every result that the specs of the plugins have on record", func() {
		files := append(glob("pkg/cni/testdata/*.json"), glob("plugins/*/*/*/testdata/*.json")...)
		Expect(len(files)).To(BeNumerically(">=", 25))
		for _, file := range files {
			Expect(validate(schema("result"), parsed(read(file)))).To(Succeed(), file)
		}
	})
})

var _ = Describe("the policy of docs/tenants.md", Label("tenant-policy"), func() {
	// blocks are the page's JSON documents of a kind: policy, accepted, refused.
	blocks := func(kind string) (texts []string) {
		GinkgoHelper()
		for _, m := range labelled.FindAllStringSubmatch(read(root("docs/tenants.md")), -1) {
			if m[1] == kind {
				texts = append(texts, m[2])
			}
		}
		Expect(texts).NotTo(BeEmpty(), kind)
		return texts
	}
	var file string
	BeforeEach(func() {
		file = filepath.Join(GinkgoT().TempDir(), "policy.json")
		Expect(os.WriteFile(file, []byte(blocks("policy")[0]), 0o600)).To(Succeed())
	})
	// statuses are the exit statuses of --check-config of the list's plugins.
	statuses := func(list string) (exits []int) {
		GinkgoHelper()
		for _, entry := range parsed(list).(object)["plugins"].([]any) {
			out := nstest.NewHost().Run(nstest.Program{Path: nstest.Build(entry.(object)["type"].(string)),
				Args: []string{"--check-config", "--policy", file}, Stdin: list})
			exits = append(exits, out.Exit)
		}
		return exits
	}

	It("accepts and refuses its examples", func() {
		for _, list := range blocks("accepted") {
			Expect(statuses(list)).To(HaveEach(0), list)
		}
		for _, list := range blocks("refused") {
			Expect(statuses(list)).To(ContainElement(1), list)
		}
	})

	It("trusts its examples of generated configurations, and nothing that differs from them", func() {
		n := plugintest.NewNode()
		n.Cmd("bash", "-ec", `mount -t tmpfs tmpfs /etc; mkdir -p /etc/cni/hawser/generated
			cp "$1" /etc/cni/hawser/policy.json`, "-", file)
		for label, plugin := range map[string]string{"flannel": "bridge", "antrea": "host-local"} {
			list := blocks(label)[0]
			conf := parsed(list).(object)["plugins"].([]any)[0].(object)
			conf["name"], conf["cniVersion"] = parsed(list).(object)["name"], "0.4.0"
			call := func(command string, more object) plugintest.Answer {
				p := plugintest.NewPod("one")
				return n.Invoke(plugin, plugintest.Call{Command: command, ID: "one", Netns: p.Netns,
					Conf: plugintest.Merge(conf, more)})
			}
			Expect(call("ADD", nil).Failed(7)).To(ContainSubstring("of the policy"), "without the file")
			n.Cmd("bash", "-ec", `printf %s "$1" >/etc/cni/hawser/generated/10.conflist`, "-", list)
			Expect(call("ADD", object{"promiscMode": true}).Failed(7)).To(ContainSubstring("of the policy"))
			a := call("ADD", nil)
			Expect(a.Code).To(BeZero(), a.Stdout)
			Expect(call("DEL", nil).Code).To(BeZero())
		}
	})

	It("holds for ADD, CHECK and STATUS with code 7, and not for DEL and GC", func() {
		n := plugintest.NewNode()
		n.Cmd("bash", "-ec", `mount -t tmpfs tmpfs /etc; mkdir -p /etc/cni/hawser
			cp "$1" /etc/cni/hawser/policy.json`, "-", file)
		p := plugintest.NewPod("one")
		call := func(command, bridge string) plugintest.Answer {
			return n.Invoke("bridge", plugintest.Call{Command: command, ID: "one", Netns: p.Netns,
				Conf: object{"cniVersion": "1.1.0", "name": "team", "type": "bridge", "bridge": bridge,
					"cni.dev/valid-attachments": []any{}}})
		}
		Expect(call("ADD", "tenant0").Code).To(BeZero())
		Expect(call("CHECK", "tenant0").Stdout).NotTo(ContainSubstring("policy"))
		for _, command := range []string{"ADD", "CHECK", "STATUS"} {
			Expect(call(command, "cni0").Failed(7)).To(ContainSubstring(
				`bridge: "cni0" is not permitted by bridges of the policy`), command)
		}
		Expect(call("GC", "cni0").Code).To(BeZero())
		Expect(call("DEL", "cni0").Code).To(BeZero())
	})
})
