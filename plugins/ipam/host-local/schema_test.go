package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("has its schema in docs/schema", func() {
	plugintest.ExpectPluginSchema(plugin(), plugintest.Object{"anyOf": []any{
		plugintest.HasKey("ipam.subnet", plugintest.Object{"type": "string"}),
		plugintest.HasKey("ipam.ranges", plugintest.Object{"type": "array", "minItems": 1}),
		plugintest.HasKey("runtimeConfig.ipRanges", plugintest.Object{"type": "array", "minItems": 1}),
		plugintest.HasKey("capabilities.ipRanges", plugintest.Object{"const": true}),
	}})
})
