package load_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/test/node"
)

// mixed is a node on which each call of a plugin is served by ours or by the
// reference's, and each delegate's too.
type mixed struct {
	*node.Node
	ref       nstest.Reference
	r         *rand.Rand
	counts    map[string]int
	originals map[string]Link // of the containers, before tuning
}

var _ = Describe("a node that is upgraded and downgraded", Label("kernel"), func() {
	DescribeTable("all the time serves 200 steps of ADD, CHECK and DEL", func(ref nstest.Reference) {
		const pods, steps = 8, 200
		n := node.New()
		m := &mixed{Node: n, ref: ref, r: rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0)),
			counts: map[string]int{}, originals: map[string]Link{}}
		all := make([]*node.Pod, pods)
		for i := range all {
			all[i] = node.NewPod(fmt.Sprintf("c%d", i))
		}
		for range steps {
			i := m.r.IntN(pods)
			p, list := all[i], m.list(i)
			switch {
			case p.Result == nil:
				m.chain("ADD", p, list)
				for _, other := range all {
					Expect(other == p || other.Result == nil || other.Addr() != p.Addr()).To(BeTrue(),
						"%s and %s have %s", p.ID, other.ID, p.Addr())
				}
			case m.r.IntN(2) == 0:
				m.chain("CHECK", p, list)
			default:
				m.chain("DEL", p, list)
				p.Result = nil
			}
		}
		for i, p := range all {
			m.chain("DEL", p, m.list(i))
		}
		AddReportEntry("mixed", fmt.Sprintf("seed %d: %v", GinkgoRandomSeed(), m.counts))
		Expect(n.Snapshot("links", "nftables",
			"iptables-legacy")).NotTo(MatchRegexp(`ifname=veth|CNI-[0-9a-f]|CNI-DN|10\.88\.0\.[0-9]+:80`))
		Expect(n.Own()).NotTo(MatchRegexp(`networks/net/([0-9]+\.|fd)`))
		Expect(n.Files("/run/cni/tuning")).NotTo(ContainSubstring("_eth0.json"))

		// The reference's DEL does not know what else we keep; our GC ends it. route_localnet stays
		// as the reference has set it, and nothing of ours holds on to it.
		list := m.list(0)
		for i := range list {
			list[i].Keys = Merge(list[i].Keys, Object{"cni.dev/valid-attachments": []any{}})
		}
		n.Succeeds("GC", &node.Pod{Network: "net"}, list)
		Expect(n.Cmd("find", "/run/cni/tuning", "/run/hawser/portmap", "/run/hawser/masq", "-type", "f", "!", "-name",
			"lock")).To(BeEmpty())
		Expect(n.Snapshot("nftables")).NotTo(ContainSubstring("route_localnet was"))
	},
		Entry("beside Debian's reference", nstest.Debian()),
		Entry("beside the newest", nstest.Newest()),
	)
})

// list is what the reference can do too, for the container of that number: at 1.1.1 no
// nftables, and no IFNAME in CHECK. The newest one's tuning keeps the MTU that our bridge
// put into the result, and our bridge's CHECK finds another one then.
func (m *mixed) list(i int) []node.Entry {
	list := node.Port(node.List("iptables"), 8000+i)
	list[2].Keys = Object{"sysctl": Object{"net.ipv4.conf.eth0.arp_filter": "1"},
		"mac": fmt.Sprintf("0a:00:00:00:00:%02x", i)}
	if m.ref == nstest.Debian() {
		list[2].Keys["mtu"] = 1400
	}
	return list
}

// chain has a list serve the command, each of its plugins by either side.
func (m *mixed) chain(command string, p *node.Pod, entries []node.Entry) {
	GinkgoHelper()
	for i := range entries {
		e := entries[i]
		if command == "DEL" {
			e = entries[len(entries)-1-i]
		}
		c := p.Call
		c.Command = command
		conf := Merge(Object{"cniVersion": "1.0.0", "name": p.Network, "type": e.Plugin}, e.Keys)
		if p.Result != nil {
			conf["prevResult"] = p.Result
		}
		c.Conf = conf
		c.Path = []string{m.Dir, m.ref.Dir()}[m.r.IntN(2)] // of the IPAM plugin
		if e.Plugin == "tuning" && command == "ADD" {
			m.originals[p.ID] = Show(p.Host, "eth0")
		}
		side, a := m.serve(e.Plugin, c)
		m.counts[side+" "+command]++
		Expect(a.Code).To(BeZero(), "%s %s by %s: %s%s", e.Plugin, command, side, a.Stdout, a.Stderr)
		if command == "ADD" {
			p.Result = json.RawMessage(a.Stdout)
		}
		if e.Plugin == "tuning" && command == "DEL" && p.Result != nil {
			now, was := Show(p.Host, "eth0"), m.originals[p.ID]
			Expect([]any{now.MTU, now.Address}).To(Equal([]any{was.MTU, was.Address}), "%s after the DEL of %s", p.ID,
				side)
		}
	}
}

func (m *mixed) serve(plugin string, c Call) (side string, a Answer) {
	GinkgoHelper()
	// The reference's portmap, at 1.1.1, finds no host port in CHECK, not even its own.
	if blind := plugin == "portmap" && c.Command == "CHECK"; m.r.IntN(2) == 0 || blind {
		return "ours", m.Call(plugin, c)
	}
	w := &World{Host: m.Host, Dir: m.ref.Dir(), Plugin: skel.Plugin[any]{Name: plugin}}
	nstest.Need("iptables")
	return "the reference", w.Reference(m.ref, c)
}
