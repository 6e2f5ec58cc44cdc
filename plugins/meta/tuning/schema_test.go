package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("has its schema in docs/schema", func() {
	plugintest.ExpectPluginSchema(plugin(allowList("")))
})
