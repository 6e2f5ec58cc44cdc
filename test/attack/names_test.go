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
	hostile = []string{"../x", "..", ".", "/x", "a/b", "a/../../x", " ", "a b", "a\nb", "a\r\n-F", "a\tb", "%d",
		"a:b", "a\xffb", strings.Repeat("x/", 200)}
	strangest = []string{"-x", "--help", "$(id)", "`id`", "a;b", "a|b", "a&b", `a"b`, `a'b`, `a\b`, "a#b", "a*b", "ä",
		"a\x7fb", "\x1b[0m"}
)

func refused(n *World, plugin string, c Call, network, name string) {
	GinkgoHelper()
	c.Conf = Object{"cniVersion": "1.1.0", "name": network, "type": plugin, "prevResult": Object{"cniVersion": "1.1.0"},
		"ipam": Object{"type": "host-local", "subnet": "10.88.0.0/24"}}
	a := n.Invoke(plugin, c)
	Expect(a.Code).To(Equal(1), "%s %s %q", plugin, c.Command, name)
	Expect(a.Stdout).To(MatchRegexp(`"code": [47],`), "%s %s %q", plugin, c.Command, name)
}

var _ = Describe("names as long as they may be", Label("kernel", "long-names"), func() {
	DescribeTable("are served, or refused with nothing left behind", func(backend string, length int, served bool) {
		nstest.NeedBackend(backend)
		n, p := NewNode(), NewPod(strings.Repeat("c", length))
		p.Network = strings.Repeat("n", length)
		n.Must("DEL", n.Up(NewPod("first"), Usual(backend)), Usual(backend))
		before := n.Snapshot("links", "nftables", "iptables-legacy")
		a := n.Chain("ADD", p, Usual(backend))
		Expect(a.Code == 0).To(Equal(served), a.Stdout)
		if served {
			n.Must("CHECK", p, Usual(backend))
		}
		n.Must("DEL", p, Usual(backend))
		Expect(n.Snapshot("links", "nftables", "iptables-legacy")).To(Equal(before))
		Expect(n.Own()).NotTo(Or(ContainSubstring("ccc"), MatchRegexp(`nnn/[0-9]`)))
	},
		Entry("on nftables", "nftables", 240, true), Entry("on iptables", "iptables", 240, true),
		Entry("on nftables, too long for a file", "nftables", 260, false),
		Entry("on iptables, too long for a file", "iptables", 260, false),
	)
})

// interfaces counts those that are not lo. The JSON of ip(8) is none when a name is strange.
func interfaces(p *Pod) int {
	GinkgoHelper()
	return strings.Count(p.Cmd("ip", "-o", "link"), "\n") - 1
}

var _ = Describe("a name that leads elsewhere", Label("kernel", "hostile-names"), func() {
	It("is refused by every plugin and command, for a network, container or interface, and nothing is done", func() {
		n, p := NewNode(), NewPod("one")
		before, inside := n.State(), p.Snapshot()
		for i, plugin := range nstest.Plugins() {
			networks := append(hostile, strangest...)
			if i > 0 { // which read names by the same code
				networks = networks[:2]
			}
			for _, command := range []string{"ADD", "CHECK", "DEL"} {
				for j, name := range networks {
					refused(n, plugin, Call{Command: command, Netns: p.Netns}, name, name)
					refused(n, plugin, Call{Command: command, Netns: p.Netns, ID: name}, "net", name)
					if j < len(hostile) {
						refused(n, plugin, Call{Command: command, Netns: p.Netns, IfName: name}, "net", name)
					}
				}
			}
		}
		Expect(n.State()).To(Equal(before))
		Expect(p.Snapshot()).To(Equal(inside))
	})

	for _, backend := range []string{"nftables", "iptables"} {
		It("is an interface like any other where the kernel takes it, on "+backend, func() {
			nstest.NeedBackend(backend)
			n := NewNode()
			first := n.Up(NewPod("first"), Usual(backend))
			n.Must("DEL", first, Usual(backend))
			before := n.Snapshot("nftables", "iptables-legacy")
			var pods []*Pod
			for i, name := range strangest {
				p := NewPod(fmt.Sprintf("c%d", i))
				p.IfName = name
				entries := Usual(backend).Port(8000 + i)
				pods = append(pods, n.Up(p, entries))
				n.Must("CHECK", p, entries)
				Expect(interfaces(p)).To(Equal(1))
			}
			n.Cmd("sh", "-c", "nft list ruleset >/run/saved && nft -c -f /run/saved")
			for _, p := range pods {
				n.Must("DEL", p, Usual(backend))
				Expect(interfaces(p)).To(BeZero())
			}
			Expect(n.Snapshot("nftables", "iptables-legacy")).To(Equal(before))
			Expect(n.Own()).NotTo(MatchRegexp(`"c[0-9]`))
		})
	}
})
