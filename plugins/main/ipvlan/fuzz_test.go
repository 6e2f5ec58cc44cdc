package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01",` +
		`"sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1","interface":0}]}`
	Fuzz{
		Plugin: plugin().Any(),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"ipvlan","master":"lo","mode":"l3s","ipam":{"type":"fake"},` +
				`"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` + prev + `}`,
			`{"cniVersion":"0.4.0","name":"net","ipam":{"type":"fake"},"mtu":1400,` + prev + `}`,
		},
		Leases: []string{
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`,
			`!{"cniVersion":"1.1.0","code":11,"msg":"full"}`,
		},
	}.Run(f)
}
