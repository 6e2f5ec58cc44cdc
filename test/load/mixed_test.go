package load_test

import (
	"fmt"
	"math/rand/v2"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// mixed is a node on which each call of a plugin is served by ours or by the
// reference's, and each delegate's too.
type mixed struct {
	*World
	ref       nstest.Reference
	r         *rand.Rand
	counts    map[string]int
	originals map[string]Link // of the containers by namespace, before tuning
}

var _ = Describe("a node that is upgraded and downgraded", Label("kernel", "upgrades"), func() {
	DescribeTable("all the time serves ADD, CHECK and DEL", func(ref nstest.Reference) {
		const pods = 8
		steps := 80
		if os.Getenv("HAWSER_LOAD") != "" {
			steps = 500
		}
		nstest.Need("iptables")
		m := &mixed{World: NewNode(), ref: ref, r: rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0)),
			counts: map[string]int{}, originals: map[string]Link{}}
		m.Version, m.Other = "1.0.0", m.serve
		all := make([]*Pod, pods)
		for i := range all {
			all[i] = NewPod(fmt.Sprintf("c%d", i))
		}
		for range steps {
			i := m.r.IntN(pods)
			p, list := all[i], m.list(i)
			switch {
			case p.Result == nil:
				m.Must("ADD", p, list)
				for _, other := range all {
					Expect(other == p || other.Result == nil || other.Addr() != p.Addr()).To(BeTrue(),
						"%s and %s have %s", p.ID, other.ID, p.Addr())
				}
			case m.r.IntN(2) == 0:
				m.Must("CHECK", p, list)
			default:
				m.Must("DEL", p, list)
				p.Result = nil
			}
		}
		for i, p := range all {
			m.Must("DEL", p, m.list(i))
		}
		AddReportEntry("mixed", fmt.Sprintf("seed %d: %v", GinkgoRandomSeed(), m.counts))
		records := MatchRegexp(`^/run/(hawser|cni/tuning/\.hawser)/.*\.json$`)
		Expect(Left(m.Host)).NotTo(ContainElement(Not(records)))
		// The reference's DEL does not know what else we keep; our GC ends it. route_localnet stays
		// as the reference has set it, and nothing of ours holds on to it.
		m.Other = nil
		m.Must("GC", &Pod{Network: "net"}, m.list(0).Valid())
		Expect(m.Snapshot("nftables")).NotTo(ContainSubstring("route_localnet was"))
	},
		Entry("beside Debian's reference", nstest.Debian()),
		Entry("beside the newest", nstest.Newest()),
	)
})

// list is what the reference can do too, for the container of that number: at 1.1.1 no
// nftables, and no IFNAME in CHECK. The newest one's tuning keeps the MTU that our bridge
// put into the result, and our bridge's CHECK finds another one then.
func (m *mixed) list(i int) List {
	keys := Object{"sysctl": Object{"net.ipv4.conf.eth0.arp_filter": "1"}, "mac": fmt.Sprintf("0a:00:00:00:00:%02x", i)}
	if m.ref == nstest.Debian() {
		keys["mtu"] = 1400
	}
	return Usual("iptables").Port(8000+i).With("tuning", keys)
}

func (m *mixed) serve(plugin string, c Call) Answer {
	side, by := "ours", m.World
	// The reference's portmap, at 1.1.1, finds no host port in CHECK, not even its own.
	if blind := plugin == "portmap" && c.Command == "CHECK"; m.r.IntN(2) == 0 && !blind {
		side, by = "the reference", m.With(m.ref)
	}
	m.counts[side+" "+c.Command]++
	c.Path = []string{m.Dir, m.ref.Dir()}[m.r.IntN(2)] // of the IPAM plugin
	cont := &nstest.Host{Name: c.ID, Path: c.Netns}
	if plugin == "tuning" && c.Command == "ADD" {
		m.originals[c.Netns] = Show(cont, "eth0")
	}
	a := by.Try(plugin, c)
	Expect(a.Code).To(BeZero(), "%s %s by %s: %s%s", plugin, c.Command, side, a.Stdout, a.Stderr)
	if was, tuned := m.originals[c.Netns]; tuned && plugin == "tuning" && c.Command == "DEL" {
		now := Show(cont, "eth0")
		Expect([]any{now.MTU, now.Address}).To(Equal([]any{was.MTU, was.Address}), "after the DEL of %s", side)
		delete(m.originals, c.Netns)
	}
	return a
}
