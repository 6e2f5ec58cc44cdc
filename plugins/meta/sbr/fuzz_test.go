package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// fuzzPrev is a result without gateways: the container's eth0 has no address that
// would lead there.
const fuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + FuzzNetns +
	`"}],"ips":[{"address":"10.1.0.2/24","interface":0},{"address":"fd01::2/64"}]}`

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"sbr","gateways":["10.1.0.9","fd01::9"],"addSourceHints":true,` +
				`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","table":77,` + fuzzPrev + `}`,
			`{"name":"net","prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","table":255,"gateways":["x"]}`,
		},
	}.Run(f)
}

// FuzzFiles damages the records.
func FuzzFiles(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":` +
			`[{"containerID":"one","ifname":"eth0"}],` + fuzzPrev + `}`},
	}.RunFiles(f, recordDir, ``, `[]`, `{"network":"net","containerID":"one","ifname":"eth0","plan":{"rules":[{"src":`+
		`"10.1.0.2/32","table":100}],"moved":[{"header":{"Family":2,"Dst_len":24,"Table":254,"Type":1},`+
		`"attrs":[{"kind":1,"value":"CgEAAA=="},{"kind":9,"value":"EAAAAAE="}]}]}}`,
		`{"network":"net","containerID":"one","ifname":"eth0","plan":{"rules":[{"src":"0.0.0.0/0","table":254},`+
			`{"table":1}],"defaults":[{"Dst":"10.1.0.0/33","GW":"x"}],`+
			`"moved":[{"attrs":[{"kind":15,"value":"/w=="}]}]}}`)
}
