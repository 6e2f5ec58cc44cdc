package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"veth1","mac":"02:00:00:00:00:09"},` +
		`{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24",
			"gateway":"10.1.0.1","interface":1}]}`
	Fuzz{
		Plugin: Any(plugin()),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"ptp","ipMasq":true,"mtu":1400,"ipam":{"type":"fake"},
				"dns":{"nameservers":["10.1.0.1"]},` +
				`"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` + prev + `}`,
			`{"cniVersion":"0.4.0","name":"net","ipMasqBackend":"nftables","ipam":{"type":"fake"},
				"args":{"cni":{"mac":"02:00:00:00:00:03"}},"runtimeConfig":{},` + prev + `}`,
			`{"name":"net","ipam":{"type":"fake"},"prevResult":{"ip4":{"ip":"10.1.0.2/24",
				"routes":[{"dst":"0.0.0.0/0"}]}}}`,
			`{"cniVersion":"1.0.0","name":"net","ipam":{"type":""}}`,
		},
		Leases: []string{
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64",
				"gateway":"fd00:1::1"}],"routes":[{"dst":"0.0.0.0/0","mtu":1300},{"dst":"::/0","priority":5}]}`,
			`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/32","gateway":"169.254.1.1"}],
				"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]}`,
			`{"ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1"},"ip6":{"ip":"fd00::2/64"}}`,
			`!{"cniVersion":"1.1.0","code":11,"msg":"full"}`,
		},
	}.Run(f)
}
