package skel_test

import (
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

var _ = Describe("docs/schema", func() {
	It("has network.json: a configuration or a list of them, each as its plugins want it", func() {
		entry, list := plugintest.SchemaOf(skel.WireEntry{}), plugintest.SchemaOf(skel.WireList{})
		entry["properties"].(object)["prevResult"] = object{"anyOf": []any{object{"type": "null"}, object{"$ref": "result.json"}}}
		keys := list["properties"].(object)
		keys["plugins"].(object)["items"] = ref("#/$defs/plugin")
		list["anyOf"] = []any{plugintest.HasKey("cniVersion", object{"type": "string"}), plugintest.HasKey("cniVersions", object{"type": "array", "minItems": 1})}
		single := object{"required": []string{"cniVersion", "name"}, "allOf": []any{ref("#/$defs/plugin")},
			"properties": object{"cniVersion": keys["cniVersion"], "name": keys["name"]}}
		plugintest.ExpectSchema("network", "a network configuration, or a list of them (specification, section 1)", object{
			"if": object{"required": []string{"plugins"}}, "then": ref("#/$defs/list"), "else": ref("#/$defs/single"),
			"$defs": object{"entry": entry, "list": list, "single": single, "plugin": object{
				"allOf": slices.Concat([]any{ref("#/$defs/entry")}, whose("type", "main"), whose("type", "meta"), whose("ipam.type", "ipam"))}}})
	})
})

func ref(to string) object { return object{"$ref": to} }

// whose has each plugin of a kind judge the configurations that name it.
func whose(key, kind string) []any {
	GinkgoHelper()
	dirs, err := filepath.Glob("../../plugins/" + kind + "/*")
	Expect(err).NotTo(HaveOccurred())
	Expect(dirs).NotTo(BeEmpty())
	var list []any
	for _, dir := range dirs {
		name := filepath.Base(dir)
		list = append(list, object{"if": plugintest.HasKey(key, object{"const": name}), "then": ref(name + ".json")})
	}
	return list
}
