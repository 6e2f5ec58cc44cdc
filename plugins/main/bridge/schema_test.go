package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("has its schema in docs/schema", func() {
	integer := plugintest.Object{"type": "integer"}
	id, first, last := plugintest.HasKey("id", integer), plugintest.HasKey("minID", integer), plugintest.HasKey("maxID",
		integer)
	trunkRule := plugintest.Object{"properties": plugintest.Object{"vlanTrunk": plugintest.Object{
		"items": plugintest.Object{"anyOf": []any{
			plugintest.Object{"allOf": []any{first, last}},
			plugintest.Object{"allOf": []any{id, plugintest.Object{"not": plugintest.Object{"anyOf": []any{first,
				last}}}}},
		}}}}}
	plugintest.ExpectPluginSchema(plugin(),
		plugintest.NotBoth(plugintest.HasKey("hairpinMode", plugintest.Object{"const": true}),
			plugintest.HasKey("promiscMode", plugintest.Object{"const": true})),
		plugintest.NotBoth(plugintest.HasKey("disableContainerInterface", plugintest.Object{"const": true}),
			plugintest.HasKey("ipam.type", plugintest.Object{"type": "string", "minLength": 1})),
		trunkRule)
})
