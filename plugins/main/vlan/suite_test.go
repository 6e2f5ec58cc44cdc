package main

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestVlan(t *testing.T) { nstest.RunSpecs(t, "plugins/main/vlan") }

var _ = It("has its schema in docs/schema", func() {
	plugintest.ExpectPluginSchema(plugin())
})
