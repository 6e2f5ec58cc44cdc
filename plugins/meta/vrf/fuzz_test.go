package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

const fuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + FuzzNetns +
	`"}],"ips":[{"address":"10.1.0.2/24","interface":0}],"routes":[{"dst":"10.9.0.0/16","table":7}]}`

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: plugin().Any(), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"red","table":7,` +
				`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","vrfname":"eth0",` + fuzzPrev + `}`,
			`{"name":"net","vrfname":"red","prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","table":255,"vrfname":"a/b"}`,
		},
	}.Run(f)
}
