package docs_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// limit is what a schema says of the size of a key's value.
type limit struct {
	key  string
	most int
	unit string // of what the parser counts; empty for a schema's own words
}

// limits are those of all keys of a schema, at a path.
func limits(node object, path string) (all []limit) {
	for name, inner := range asObject(node["properties"]) {
		all = append(all, limits(asObject(inner), strings.TrimPrefix(path+"."+name, "."))...)
	}
	if most := number(node["maxItems"]); most > 0 {
		all = append(all, limit{path, most, "elements"})
		if !strings.HasSuffix(path, "[]") {
			all = append(all, limits(asObject(node["items"]), path+"[]")...)
		}
	}
	isFree := node["pattern"] == nil && node["anyOf"] == nil && node["enum"] == nil
	if most := number(node["maxLength"]); most > 0 && isFree {
		all = append(all, limit{path, most, "bytes"})
	}
	return all
}

func number(v any) int {
	text, _ := v.(json.Number)
	n, _ := strconv.Atoi(text.String())
	return n
}

func asObject(v any) object {
	o, _ := v.(object)
	return o
}

// tooMuch is one element or byte more than the limit.
func (l limit) tooMuch() any {
	if l.unit == "bytes" {
		return strings.Repeat("a", l.most+1)
	}
	return make([]any, l.most+1)
}

var _ = Describe("the sizes of values", Label("sizes"), func() {
	for table := range tables() {
		if subjectOf(table).plugin != table {
			continue
		}
		It("are limited by the schema, --check-config and ADD: "+table, func() {
			s := subjectOf(table)
			all := limits(asObject(parsed(read(root("docs", "schema", table+".json")))), "")
			slices.SortFunc(all, func(a, b limit) int { return strings.Compare(a.key, b.key) })
			for _, l := range all {
				if l.key == "ipam.type" { // it says whose configuration it is
					continue
				}
				doc := put(s.base, l.key, l.tooMuch())
				s.expectRefused(doc)
				report, _ := checkConfig(s.plugin, plugintest.Text(doc))
				key := strings.ReplaceAll(l.key, "[]", "[0]")
				says := fmt.Sprintf("has %d %s, more than %d", l.most+1, l.unit, l.most)
				Expect(string(report)).To(And(ContainSubstring("error: "+key+": "), ContainSubstring(says)), key)
			}
		})
	}
})
