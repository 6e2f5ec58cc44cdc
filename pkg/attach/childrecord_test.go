package attach

import (
	"encoding/json"
	"testing"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// TestFormerRecord reads a record of a version before 0.2.0. The package plugintest has this as a spec, and cannot
// be used here, because it imports this package.
func TestFormerRecord(t *testing.T) {
	const former = `{"network":"net","containerID":"c1","ifname":"eth0","netns":"/run/netns/c1",` +
		`"identity":{"cookie":7,"device":4,"inode":9},"kind":"macvlan","link":2}`
	const current = `{"network":"net","containerID":"c1","ifname":"eth0","netnsPath":"/run/netns/c1",` +
		`"netns":{"cookie":7,"device":4,"inode":9},"kind":"macvlan","link":2}`
	want := childRecord{Attachment: cni.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"},
		NetnsPath: "/run/netns/c1", Netns: ns.Identity{Cookie: 7, Device: 4, Inode: 9}, Kind: "macvlan", Link: 2}
	for _, text := range []string{former, current} {
		var record childRecord
		if err := statefile.Decode([]byte(text), &record); err != nil || record != want {
			t.Errorf("%s: %+v, %v", text, record, err)
		}
	}
	if written, err := json.Marshal(want); string(written) != current {
		t.Errorf("wrote %s, %v", written, err)
	}
}
