package cost_test

import (
	"fmt"
	"math"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// ruleset is the JSON of nft list.
type ruleset struct {
	Nftables []struct {
		Rule struct {
			Chain  string
			Handle int
			Expr   []struct{ Counter struct{ Packets int } }
		}
	}
}

// countRules adds a counter before each rule of table inet hawser.
func countRules(n *World) {
	GinkgoHelper()
	var rules ruleset
	var script strings.Builder
	n.JSON(&rules, "nft", "-j", "list", "table", "inet", "hawser")
	for _, r := range rules.Nftables {
		if r.Rule.Chain != "" {
			fmt.Fprintf(&script, "insert rule inet hawser %s handle %d counter\n", r.Rule.Chain, r.Rule.Handle)
		}
	}
	out := n.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"}, Stdin: script.String()})
	Expect(out.Exit).To(BeZero(), out.Stderr)
}

// met returns how many rules all packets met since countRules, by chain.
func met(n *World) map[string]int {
	GinkgoHelper()
	var rules ruleset
	n.JSON(&rules, "nft", "-j", "list", "table", "inet", "hawser")
	sum := map[string]int{}
	for _, r := range rules.Nftables {
		for _, e := range r.Rule.Expr {
			sum[r.Rule.Chain] += e.Counter.Packets
		}
	}
	return sum
}

var _ = Describe("a packet of an established connection", Label("budget", "kernel"), func() {
	It("meets few rules, however many containers there are, and none of NAT", func() {
		nstest.Need("nft", "nft-inet-nat")
		n := NewNode()
		n.SetBridgeNF(false) // neighbor discovery inside the bridge is not counted
		n.Router()
		list := Usual("").With("firewall", Object{"ingressPolicy": nil})
		one := n.Up(NewPod("one"), list)
		n.Up(NewPod("other"), list.Port(9000))
		countRules(n)
		const more = 100
		for to, want := range map[string]map[string]int{
			"192.0.2.2":   {"portmap_guard_v2": 4, "firewall_forward12_v2": 4, "firewall_clear12_v2": 2},
			"2001:db8::2": {"portmap_guard_v2": 4, "firewall_forward12_v2": 6, "firewall_clear12_v2": 2},
		} {
			Expect(Ping(one.Host, to)).To(BeTrue()) // neighbors are known from here on
			pinged := func(count int) map[string]int {
				before := met(n)
				one.Cmd("ping", "-n", "-q", "-i", "0.002", "-c", fmt.Sprint(count), to)
				after := met(n)
				for chain := range after {
					after[chain] -= before[chain]
				}
				return after
			}
			few, many := pinged(1), pinged(1+more)
			for chain := range many { // of an echo and its answer; neighbor discovery is less than half a rule
				each := math.Round(float64(many[chain]-few[chain]) / more)
				Expect(each).To(BeEquivalentTo(want[chain]), "%s: %s", to, chain)
			}
		}
	})
})
