package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzFiles damages the records, which are those of all interfaces without a host end.
func FuzzFiles(f *testing.F) {
	const conf = `{"cniVersion":"1.1.0","name":"net","type":"tap","cni.dev/valid-attachments":`
	Fuzz{
		Plugin: plugin().Any(),
		Confs:  []string{conf + `[{"containerID":"one","ifname":"eth0"}]}`, conf + `[]}`},
	}.RunFiles(f, "/run/hawser/links", ``, `{}`, `null`,
		`{"network":"net","containerID":"one","ifname":"eth0","netns":"/run/netns/fuzz","identity":{},"kind":"tun"}`,
		`{"network":"net","containerID":"one","ifname":"eth0","netns":"/proc/self/ns/net","kind":"x","link":-1}`)
}
