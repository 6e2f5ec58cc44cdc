package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"lo","type":"loopback","cni.dev/valid-attachments":[]}`,
			`{"cniVersion":"0.3.1","name":"lo","prevResult":{"ips":[{"version":"4","address":"127.0.0.1/8"}]}}`,
			`{"cniVersion":"1.0.0","name":"lo","prevResult":{"cniVersion":"1.0.0",
				"interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":"` +
				FuzzNetns + `"}],"ips":[{"address":"127.0.0.1/8","interface":0},{"address":"::1/128","interface":0}]}}`,
			`{"name":"lo"}`,
		},
	}.Run(f)
}
