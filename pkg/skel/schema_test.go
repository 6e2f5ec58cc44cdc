package skel_test

import (
	"encoding/json"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("docs/schema", func() {
	It("has network.json: a configuration or a list of them, each as its plugins want it", func() {
		entry, list := plugintest.SchemaOf(wireEntry{}), plugintest.SchemaOf(wireList{})
		entry["properties"].(object)["prevResult"] = object{"anyOf": []any{object{"type": "null"},
			object{"$ref": "result.json"}}}
		keys := list["properties"].(object)
		keys["plugins"].(object)["items"] = ref("#/$defs/plugin")
		list["anyOf"] = []any{plugintest.HasKey("cniVersion", object{"type": "string"}),
			plugintest.HasKey("cniVersions", object{"type": "array", "minItems": 1})}
		single := object{"required": []string{"cniVersion", "name"}, "allOf": []any{ref("#/$defs/plugin")},
			"properties": object{"cniVersion": keys["cniVersion"], "name": keys["name"]}}
		plugintest.ExpectSchema("network", "a network configuration, or a list of them (specification, section 1)",
			object{
				"if": object{"required": []string{"plugins"}}, "then": ref("#/$defs/list"),
				"else": ref("#/$defs/single"),
				"$defs": object{"entry": entry, "list": list, "single": single, "plugin": object{
					"allOf": slices.Concat([]any{ref("#/$defs/entry")}, whose("type", "main"), whose("type", "meta"),
						whose("ipam.type", "ipam"))}}})
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

// wireList is a list of configurations (specification, section 1).
type wireList struct {
	CNIVersion             string            `json:"cniVersion" help:"version of the specification" schema:"enum=0.1.0|0.2.0|0.3.0|0.3.1|0.4.0|1.0.0|1.1.0"`
	CNIVersions            []string          `json:"cniVersions" help:"more versions, of which the runtime takes the newest that it knows" each:"enum=0.1.0|0.2.0|0.3.0|0.3.1|0.4.0|1.0.0|1.1.0"`
	Name                   string            `json:"name" help:"the network, unique on this host" schema:"required format=name"`
	DisableCheck           json.RawMessage   `json:"disableCheck" help:"the runtime calls no CHECK" default:"false" schema:"format=switch"`
	DisableGC              json.RawMessage   `json:"disableGC" help:"the runtime calls no GC" default:"false" schema:"format=switch"`
	LoadOnlyInlinedPlugins json.RawMessage   `json:"loadOnlyInlinedPlugins" help:"plugins is all; no directory of the network's name is read" default:"false" schema:"format=switch"`
	Plugins                []json.RawMessage `json:"plugins" help:"the configurations, in the order of ADD" schema:"required nonempty"`
}

// wireEntry is what runtimes themselves read of a configuration (specification,
// section 1).
type wireEntry struct {
	Type         *string         `json:"type" help:"the plugin: a program in CNI_PATH" schema:"required format=file"`
	CNIVersions  []string        `json:"cniVersions" help:"versions of the specification that the plugin speaks"`
	Capabilities map[string]bool `json:"capabilities" help:"what the runtime is to send in runtimeConfig"`
	IPAM         struct {
		Type string `json:"type" help:"the IPAM plugin: a program in CNI_PATH" schema:"format=file empty"`
	} `json:"ipam" help:"the IPAM plugin's part"`
	DNS           cni.DNS        `json:"dns" help:"resolver settings"`
	Args          map[string]any `json:"args" help:"more for plugins that understand it"`
	RuntimeConfig map[string]any `json:"runtimeConfig" help:"what the runtime sends, as capabilities ask"`
	PrevResult    map[string]any `json:"prevResult" help:"the result of the plugin before, which the runtime sends"`
}
