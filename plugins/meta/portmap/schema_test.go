package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("has its schema in docs/schema", func() {
	plugintest.ExpectPluginSchema(plugin(),
		plugintest.NotBoth(plugintest.HasKey("markMasqBit", plugintest.Object{"type": "integer"}),
			plugintest.HasKey("externalSetMarkChain", plugintest.Object{"type": "string"})),
		plugintest.NotBoth(plugintest.HasKey("backend", plugintest.Object{"const": "nftables"}),
			plugintest.HasKey("externalSetMarkChain", plugintest.Object{"type": "string"})))
})
