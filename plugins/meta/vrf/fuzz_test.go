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
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"red","table":7,` +
				`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","vrfname":"eth0",` + fuzzPrev + `}`,
			`{"name":"net","vrfname":"red","prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","table":255,"vrfname":"a/b"}`,
		},
	}.Run(f)
}

// FuzzRecord makes up the record of a container.
func FuzzRecord(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"red","table":7,` +
			`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`},
	}.RunRecord(f, recordDir, `{"network":"net","containerID":"one","ifname":"eth0","path":"`+FuzzNetns+`",`+
		`"netns":IDENTITY,"vrf":"red","made":true,"link":LINK,"routes":[{"header":{"Family":2,"Dst_len":24,`+
		`"Table":254,"Type":1},"attrs":[{"kind":1,"value":"CgEAAA=="},`+
		`{"kind":4,"value":"AgAAAA=="}]},{"header":{"Family":10},`+
		`"attrs":[{"kind":9,"value":"EAAAAAIAAAA="},{"kind":15,"value":"/w=="}]}]}`)
}
