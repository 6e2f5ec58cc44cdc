package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzRecord makes up the record of a container's device, here its eth0.
func FuzzRecord(f *testing.F) {
	const record = `{"network":"net","containerID":"one","ifname":"eth0","netns":"` + FuzzNetns +
		`","identity":IDENTITY,`
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","type":"host-device","device":"d0",` +
			`"cni.dev/valid-attachments":[],"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0",` +
			`"sandbox":"` + FuzzNetns + `"}]}}`},
	}.RunRecord(f, recordDir,
		record+`"device":{"key":"device","value":"d0"},"keepsIndex":true,"link":{"Index":LINK,"Name":"d0",`+
			`"Kind":"veth","MAC":"AgAAAAAB","MTU":1500,"TxQLen":1000,"Up":true}}`,
		record+`"device":{"key":"pciBusID","value":"0000:00:01.0"},"pci":"0000:00:01.0","failed":true,`+
			`"link":{"Index":LINK,"Name":"lo","PermMAC":"AgAAAAAB","Parent":"../x","MTU":-1}}`)
}
