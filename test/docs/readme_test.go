// Package docs_test holds docs/ and the READMEs to what the plugins do: the schemas to the parsers, the tables
// of keys to the schemas, the examples to a host on which they are run.
package docs_test

import (
	"bytes"
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

// sections that a manual page has, in this order; there may be more.
var sections = []string{"Name", "Synopsis", "Description", "Keys", "Capabilities and arguments", "Result", "Commands",
	"On the host",
	"Examples", "Errors", "Differences from the reference plugin", "See also"}

var _ = Describe("README.md", func() {
	for _, page := range glob("plugins/*/*/README.md") {
		plugin := filepath.Base(filepath.Dir(page))

		It("of "+plugin+" has each key of its own, with type and default, and no other", func() {
			common := paths(schemaKeys("loopback")) // those of every plugin are in docs/configuration.md
			own := slices.DeleteFunc(schemaKeys(plugin), func(k keyDoc) bool { return slices.Contains(common, k.path) })
			expectRows(keyRows(page), own)
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
		Expect(read(root("README.md"))).To(ContainSubstring("\n" + shown.String() + "\n"))
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
