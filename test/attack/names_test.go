package attack_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// Names that would mean something to a file system, a shell, iptables-restore,
// nft or sysctl. The kernel takes the second list for interfaces.
var (
	hostile   = []string{"../x", "..", ".", "/x", "a/b", "a/../../x", " ", "a b", "a\nb", "a\r\n-F", "a\tb", "%d", "a:b", "a\xffb", strings.Repeat("x/", 200)}
	strangest = []string{"-x", "--help", "$(id)", "`id`", "a;b", "a|b", "a&b", `a"b`, `a'b`, `a\b`, "a#b", "a*b", "ä", "a\x7fb", "\x1b[0m"}
)

// refused serves a call whose one name is hostile.
func (n node) refused(plugin string, c Call, network, name string) {
	GinkgoHelper()
	c.Conf = Object{"cniVersion": "1.1.0", "name": network, "type": plugin, "prevResult": Object{"cniVersion": "1.1.0"},
		"ipam": Object{"type": "host-local", "subnet": "10.88.0.0/24"}}
	a := n.call(plugin, c)
	Expect(a.Code).To(Equal(1), "%s %s %q", plugin, c.Command, name)
	Expect(a.Stdout).To(MatchRegexp(`"code": [47],`), "%s %s %q", plugin, c.Command, name)
}

// interfaces counts those that are not lo. The JSON of ip(8) is none when a name
// is strange.
func (p *pod) interfaces() int {
	GinkgoHelper()
	return strings.Count(p.Cmd("ip", "-o", "link"), "\n") - 1
}

var _ = Describe("a name that leads elsewhere", Label("kernel"), func() {
	It("is refused by every plugin and command, for a network, a container or an interface, before anything is done", func() {
		n, p := newNode(), newPod("one")
		before, inside := n.state(), p.Snapshot()
		for i, plugin := range plugins {
			networks := append(hostile, strangest...)
			if i > 0 { // which read names by the same code
				networks = networks[:2]
			}
			for _, command := range []string{"ADD", "CHECK", "DEL"} {
				for j, name := range networks {
					n.refused(plugin, Call{Command: command, Netns: p.Netns}, name, name)
					n.refused(plugin, Call{Command: command, Netns: p.Netns, ID: name}, "net", name)
					if j < len(hostile) {
						n.refused(plugin, Call{Command: command, Netns: p.Netns, IfName: name}, "net", name)
					}
				}
			}
		}
		Expect(n.state()).To(Equal(before))
		Expect(p.Snapshot()).To(Equal(inside))
	})

	for _, backend := range []string{"nftables", "iptables"} {
		It("is an interface like any other where the kernel takes it, on "+backend, func() {
			if backend == "iptables" {
				nstest.Need("iptables")
			}
			n := newNode()
			first := n.add(newPod("first"), list(backend))
			n.succeeds("DEL", first, list(backend))
			before := n.Snapshot("nftables", "iptables-legacy")
			var pods []*pod
			for i, name := range strangest {
				p := newPod(fmt.Sprintf("c%d", i))
				p.IfName = name
				entries := list(backend)
				entries[1].keys = Merge(entries[1].keys, Object{"runtimeConfig": Object{"portMappings": []Object{{"hostPort": 8000 + i, "containerPort": 80, "protocol": "tcp"}}}})
				pods = append(pods, n.add(p, entries))
				n.succeeds("CHECK", p, entries)
				Expect(p.interfaces()).To(Equal(1))
			}
			n.Cmd("sh", "-c", "nft list ruleset >/run/saved && nft -c -f /run/saved")
			for _, p := range pods {
				n.succeeds("DEL", p, list(backend))
				Expect(p.interfaces()).To(BeZero())
			}
			Expect(n.Snapshot("nftables", "iptables-legacy")).To(Equal(before))
			Expect(n.files()).NotTo(MatchRegexp(`"c[0-9]`))
		})
	}
})
