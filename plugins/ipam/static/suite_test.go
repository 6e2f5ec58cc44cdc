package main

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestStatic(t *testing.T) { nstest.RunSpecs(t, "plugins/ipam/static") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin()) })

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24",
				"gateway":"10.1.0.1"},{"address":"fd00::5/64"}],"routes":[{"dst":"0.0.0.0/0"}],
				"dns":{"nameservers":["10.1.0.1"]}},"cni.dev/valid-attachments":[]}`,
			`{"cniVersion":"0.2.0","name":"net","ipam":{"addresses":[{"address":"10.1.0.5/24"}]},
				"args":{"cni":{"ips":["10.1.0.6"]}}}`,
			`{"cniVersion":"0.4.0","name":"net","ipam":{"addresses":[{"address":"10.1.0.5/24"}]},
				"runtimeConfig":{"ips":["10.1.0.6/24","fd00::/127"]},
				"prevResult":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.6/24"}]}}`,
			`{"name":"net","ipam":{}}`,
		},
	}.Run(f)
}
