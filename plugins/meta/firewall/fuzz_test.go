package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// fuzzPrev is the result of the plugin before.
const fuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"peer0"},{"name":"eth0",` +
	`"mac":"02:00:00:00:00:01","sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24","interface":1},` +
	`{"address":"fd00:1::2/64","interface":1}]}`

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{Plugin: Any(plugin()), Chained: true, Confs: []string{
		`{"cniVersion":"1.1.0","name":"net","type":"firewall","backend":"nftables","cni.dev/valid-attachments":[],` +
			fuzzPrev + `}`,
		`{"cniVersion":"1.0.0","name":"net","ingressPolicy":"isolated","acceptPublished":false,` + fuzzPrev + `}`,
		`{"cniVersion":"0.4.0","name":"net","backend":"","iptablesAdminChainName":"MINE","markAcceptBit":5,` +
			fuzzPrev + `}`,
		`{"name":"net","prevResult":{"ip4":{"ip":"10.1.0.2/24"}},"ingressPolicy":"same-bridge"}`,
		`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}]}`,
	}}.Run(f)
}

// FuzzFiles damages the records.
func FuzzFiles(f *testing.F) {
	conf := `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` +
		fuzzPrev + `}`
	Fuzz{Plugin: Any(plugin()), Chained: true, Confs: []string{conf}}.RunFiles(f, recordDir, ``, `{}`, `null`,
		`{"network":"net","containerID":"one","ifname":"eth0","backend":"nftables","addrs":["10.1.0.2"],`+
			`"adminChain":"CNI-ADMIN","policy":"isolated","bridge":"peer0","port":2,"setFlag":true}`,
		`{"network":"net","containerID":"one","ifname":"eth0","backend":"x","addrs":["fe80::1%a",""],`+
			`"adminChain":"-X","markAcceptBit":40,"policy":"closed","bridge":"../x","port":-1}`)
}
