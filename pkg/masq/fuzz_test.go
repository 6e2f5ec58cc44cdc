package masq

import (
	"encoding/json"
	"maps"
	"regexp"
	"testing"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// FuzzRecord decodes any bytes as a record, and derives lines for iptables-restore: each
// must be a single line about chains of the plugins or jumps to them.
func FuzzRecord(f *testing.F) {
	chain := chainOf("net", "one")
	f.Add([]byte(`{"network":"net","containerID":"one","interfaces":{"eth0":["10.1.0.2/24","fd00::2/64"]}}`))
	f.Add([]byte(`{"network":"net","containerID":"one","interfaces":{"eth0":[""],"a\n-F":["fe80::1%-j x/64"]}}`))
	f.Add([]byte(`{"network":"net","containerID":"one","interfaces":{"eth0":["10.1.0.2/24"]},` +
		`"exclude":["10.8.0.0/16","fd08::/64"],"randomFully":true}`))
	f.Add([]byte(`{"network":"net","containerID":"on","interfaces":null}`))
	well := regexp.MustCompile(`^(:CNI-[0-9a-f]{24} - \[0:0\]|` +
		`-[ADFX] (CNI-[0-9a-f]{24}|POSTROUTING)( !?[-0-9a-zA-Z.:/ "\\]*)?)$`)
	f.Fuzz(func(t *testing.T, data []byte) {
		var rec record
		if json.Unmarshal(data, &rec) != nil || rec.Hash() != chain || !rec.Plausible() {
			return
		}
		for name := range rec.Interfaces {
			for _, fam := range nft.Families() {
				e := &ipt.Edit{}
				rec.chain(fam, nil).edit(e)
				left := rec
				left.Interfaces = maps.Clone(rec.Interfaces)
				delete(left.Interfaces, name)
				left.chain(fam, nil).edit(e)
				for _, line := range e.Lines {
					if !well.MatchString(line) {
						t.Fatalf("%q: %q", data, line)
					}
				}
			}
		}
	})
}
