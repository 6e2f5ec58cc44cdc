package cni_test

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

type object = map[string]any

var _ = Describe("docs/schema", func() {
	It("has result.json, of all shapes", func() {
		old := object{"properties": object{"cniVersion": object{"enum": []string{"0.1.0", "0.2.0"}}}}
		plugintest.ExpectSchema("result", "what ADD prints, and what prevResult is (specification, section 5)", object{
			"required": []string{"cniVersion"}, "if": old, "then": object{"$ref": "#/$defs/0.1.0"},
			"else":  object{"$ref": "#/$defs/0.3.0"},
			"$defs": object{"0.1.0": plugintest.SchemaOf(cni.Wire01{}), "0.3.0": plugintest.SchemaOf(cni.Wire1{})}})
	})

	It("has error.json", func() {
		plugintest.ExpectSchema("error", "what a plugin prints that fails (specification, section 5)",
			plugintest.SchemaOf(cni.WireError{}))
	})
})
