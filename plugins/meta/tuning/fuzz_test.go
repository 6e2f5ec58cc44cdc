package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/hawser-cni/plugins/pkg/cni"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"eth0","mac":` +
		`"02:00:00:00:00:01","mtu":1500,"sandbox":"` +
		FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24","interface":1}],"dns":{}}`
	Fuzz{
		Plugin: Any(plugin(allowList("/run/allowlist.conf"))), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"tuning","dataDir":"/run/tuning","sysctl":` +
				`{"net.ipv4.conf.IFNAME.arp_notify":"1","net/core/somaxconn":"500"},` +
				`"mac":"02:00:00:00:00:02","mtu":1400,"promisc":true,"allmulti":true,"txQLen":5,` +
				`"cni.dev/valid-attachments":[],` + prev + `}`,
			`{"cniVersion":"1.0.0","name":"net","dataDir":"/run/tuning","args":{"cni":{"sysctl":` +
				`{"net.ipv4.ip_local_port_range":"1024 2048"},"mac":"02-00-00-00-00-03","mtu":9000,"txQLen":0}},` +
				`"runtimeConfig":{"mac":"02:00:00:00:00:04"},` + prev + `}`,
			`{"cniVersion":"0.4.0","name":"net","dataDir":"/proc/1","promisc":true,` + prev + `}`,
			`{"name":"net","dataDir":"/run/tuning","sysctl":null,"prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","sySctl":{"kernel.panic":"1"},"cni.dev/valid-attachments":null}`,
		},
	}.Run(f)
}

// FuzzFiles damages the originals.
func FuzzFiles(f *testing.F) {
	const original = `{"mac":"02:00:00:00:00:01","promisc":false,"mtu":1500,"allmulti":false,"txQLen":1000}`
	Fuzz{
		Plugin: Any(plugin(allowList("/run/allowlist.conf"))), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","dataDir":"/run/tuning","mtu":1400,"mac":` +
			`"02:00:00:00:00:02","sysctl":{"net.core.somaxconn":"500"},` +
			`"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],"prevResult":{"cniVersion":"1.1.0",` +
			`"interfaces":[{"name":"eth0","sandbox":"` + FuzzNetns + `"}]}}`},
	}.RunFiles(f, "/run/tuning", original, ``, `{"mac":"x","mtu":-1,"txQLen":-1,"sysctl":{"../kernel/panic":"1"}}`,
		`[]`,
		`{"netns":{"device":1,"inode":1},"values":[{"key":"mtu","value":"-1","link":-1,`+
			`"for":[{"network":"net","containerID":"one","ifname":"eth0"}]}]}`,
		`{"changes":[{"network":"net","containerID":"one","ifname":"eth0","netns":{"device":1,"inode":1},`+
			`"values":[{"key":"mtu","value":"-1","link":-1},{"key":"net.core.somaxconn","value":"x"}]}]}`)
}

// FuzzAllowList reads anything as the administrator's file.
func FuzzAllowList(f *testing.F) {
	f.Add("net.core.somaxconn", []byte("^net\\.core\n\n[\n"))
	f.Add("net.ipv4.conf.eth0.arp_notify", []byte("((a{100}){100}){100}\r\n.*"))
	f.Fuzz(func(t *testing.T, key string, lines []byte) {
		list := allowList(filepath.Join(t.TempDir(), "list"))
		if err := os.WriteFile(string(list), lines, 0o600); err != nil {
			t.Fatal(err)
		}
		err, broken := list.check([]setting{{Raw: key}}), list.verify()
		if err == nil && len(bytes.TrimSpace(lines)) == 0 {
			t.Fatal("an empty list allows nothing")
		}
		for _, e := range []error{err, broken} {
			if e != nil && cni.AsError(e).Code != cni.CodeConfig {
				t.Fatal(e)
			}
		}
	})
}
