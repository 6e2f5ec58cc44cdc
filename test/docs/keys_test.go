package docs_test

import (
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

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
			out, err := exec.Command(nstest.Build(plugin), "--help").Output()
			Expect(err).NotTo(HaveOccurred())
			for _, key := range paths(schemaKeys(plugin)) {
				Expect(string(out)).To(MatchRegexp(`(?m)^  ` + regexp.QuoteMeta(key) + ` +\w`))
			}
		})
	}
})
