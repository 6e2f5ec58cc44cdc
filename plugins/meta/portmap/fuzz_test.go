package main

import (
	"encoding/json"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"strings"
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// fuzzPrev is the result of the plugin before.
const fuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"peer0"},{"name":"eth0",` +
	`"mac":"02:00:00:00:00:01","sandbox":"` + FuzzNetns +
	`"}],"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1","interface":1},{"address":"fd00:1::2/64",` +
	`"interface":1}]}`

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"portmap","snat":true,"masqAll":false,` +
				`"markMasqBit":5,"cni.dev/valid-attachments":[],` +
				`"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},` +
				`{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"127.0.0.1"},` +
				`{"hostPort":9,"containerPort":9,"protocol":"sctp","hostIP":"::"}]},` + fuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","backend":"nftables","snat":false,"masqAll":true,` +
				`"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":65535,"protocol":"TCP",` +
				`"hostIP":"0.0.0.0"}]},` + fuzzPrev + `}`,
			`{"cniVersion":"0.4.0","name":"net","externalSetMarkChain":"KUBE-MARK-MASQ",` +
				`"conditionsV4":["!","-s","10.0.0.0/8"],"runtimeConfig":{"portMappings":[]},` + fuzzPrev + `}`,
			`{"name":"net","prevResult":{"ip4":{"ip":"10.1.0.2/24"}},` +
				`"runtimeConfig":{"portMappings":[{"hostPort":"x"}]}}`,
			`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one",` +
				`"ifname":"eth0"}]}`,
		},
	}.Run(f)
}

// FuzzFiles damages the records.
func FuzzFiles(f *testing.F) {
	conf := `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one",` +
		`"ifname":"eth0"}],` +
		`"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},` +
		`` + fuzzPrev + `}`
	Fuzz{Plugin: Any(plugin()), Chained: true, Confs: []string{conf}}.RunFiles(f, "/run/hawser/portmap", ``, `{}`,
		`null`,
		`{"network":"net","containerID":"one","ifname":"eth0","owner":{"netns":"/nowhere"},`+
			`"backend":"nftables",`+
			`"options":{"snat":true,"markBit":13},"mappings":[{"proto":6,"hostIP":"","hostPort":8080,`+
			`"port":80}],"addrs":[{"addr":"10.1.0.2/24","near":"10.1.0.0/24"}]}`,
		`{"network":"net","containerID":"one","ifname":"eth0","backend":"x","options":{"markBit":-1,`+
			`"conditionsV4":["a","b"]},"mappings":[{"proto":0,"hostIP":"fe80::1%a"}],`+
			`"addrs":[{"addr":"","near":""},{"addr":"::1/0","near":"0.0.0.0/0"}],"localnet":"../x",`+
			`"yielded":[{"proto":6}]}`)
}

// FuzzNames reads anything as the names and comments by which rules of ours and of others are known.
func FuzzNames(f *testing.F) {
	f.Add("portmap4_masq_v1_13_10.1.0.0/24")
	f.Add(ipt.OwnerComment(entryPrefix, "net", "one"))
	f.Add(`dnat name: "a`)
	f.Fuzz(func(t *testing.T, name string) {
		if chain, ok := chainNamed(name); ok && chain.Name != name {
			t.Fatalf("%q: %+v", name, chain)
		}
		if network, id, ok := ipt.ParseOwner(name); ok {
			ipt.ContainerChain(dnPrefix, network, id)
		}
	})
}

// FuzzRecord reads anything as a record, and makes of it what a backend is told:
// each line is one.
func FuzzRecord(f *testing.F) {
	for _, part := range []string{`"options":{"snat":true,"markBit":13}`,
		`"options":{"snat":true,"masqAll":true,"markChain":"KUBE-MARK-MASQ","conditionsV4":["!","-s",` +
			`"10.0.0.0/8"]}`,
		`"options":{"markBit":31,"conditionsV4":["ip","saddr","10.0.0.0/8"],"conditionsV6":["a\nb"]},` +
			`"localnet":"eth0"`} {
		f.Add([]byte(`{"network":"net","containerID":"one","ifname":"eth0","backend":"iptables",` + part +
			`,"mappings":[{"proto":6,"hostIP":"","hostPort":8080,"port":80},` +
			`{"proto":17,"hostIP":"127.0.0.1","hostPort":53,"port":53},{"proto":132,"hostIP":"::",` +
			`"hostPort":9,"port":9}],` +
			`"addrs":[{"addr":"10.1.0.2/24","near":"10.1.0.0/24"},{"addr":"fd00::2/64",` +
			`"near":"fd00::2/128"}],"yielded":[{"proto":6,"host":"::","port":8080}]}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		st := &record{}
		if json.Unmarshal(data, st) != nil || !st.Valid() {
			return
		}
		for _, it := range st.items() {
			if elementPort(it).String() != it.Name {
				t.Fatalf("%v", it)
			}
		}
		for _, a := range st.Addrs {
			e := &ipt.Edit{}
			st.edit(e, a)
			for _, line := range e.Lines() {
				if strings.ContainsAny(line, "\n\r\x00") {
					t.Fatalf("%q", line)
				}
			}
			if st.conditionChain(a.family()) != "" && strings.Count(st.conditionScript(a), "\n") != 3 {
				t.Fatalf("%q", st.conditionScript(a))
			}
		}
		for _, it := range st.items() {
			if _, ok := chainNamed(it.Goto); !ok && it.Goto != "" {
				t.Fatalf("%q", it.Goto)
			}
		}
	})
}
