package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"br","mac":"02:00:00:00:00:09"},
		{"name":"veth1"},` +
		`{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24",
			"gateway":"10.1.0.1","interface":2}]}`
	Fuzz{
		Plugin: Any(plugin()),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"bridge","bridge":"br","isDefaultGateway":true,"ipMasq":true,
				"mtu":1400,"hairpinMode":true,` +
				`"ipam":{"type":"fake"},"dns":{"nameservers":["10.1.0.1"]},
					"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` + prev + `}`,
			`{"cniVersion":"1.0.0","name":"net","bridge":"br","vlan":5,"vlanTrunk":[{"minID":7,"maxID":9},{"id":12}],
				"macspoofchk":true,` +
				`"portIsolation":true,"args":{"cni":{"mac":"02:00:00:00:00:03"}},"runtimeConfig":{}}`,
			`{"cniVersion":"0.3.1","name":"net","isGateway":true,"forceAddress":true,"promiscMode":true,
				"enabledad":false,"ipam":{"type":"fake"},` + prev + `}`,
			`{"cniVersion":"0.2.0","name":"net","disableContainerInterface":true,
				"prevResult":{"ip4":{"ip":"10.1.0.2/24","routes":[{"dst":"0.0.0.0/0"}]}}}`,
			`{"name":"net","ipam":{"type":"../fake"},"ipMasqBackend":"x"}`,
		},
		Leases: []string{
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64"}],
				"routes":[{"dst":"0.0.0.0/0","mtu":1300,"advmss":1000,"priority":5,"table":100,"scope":0}]}`,
			`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/16","interface":0}],
				"routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.9"}],"dns":{"search":["x"]}}`,
			`{"ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1"},"ip6":{"ip":"fd00::2/64"}}`,
			`!{"cniVersion":"1.1.0","code":11,"msg":"full"}`,
			`!no JSON`,
		},
	}.Run(f)
}
