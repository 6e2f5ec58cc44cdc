package main

import (
	"fmt"
	"net"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// setting is a combination: how the host filters, and the ingress policy of bridges 1 and 2.
type setting struct {
	kind
	drop, brNetfilter bool
	policy            policy
}

// path is what packets may take: a and a2 are on bridge 1, b is on bridge 2, c on bridge 3, which is open.
type path struct{ from, to string }

func paths() []path {
	return []path{{"a", "a2"}, {"a", "b"}, {"b", "a"}, {"a", "c"}, {"c", "a"}, {"a", "out"}, {"out", "a"},
		{"a", "gateway of b"}, {"out", "a's host port"}}
}

// open says whether the packets arrive.
func (p path) open(s setting) bool {
	switch p {
	case path{"a", "a2"}:
		return s.policy != isolated
	case path{"a", "b"}, path{"b", "a"}:
		return s.policy == open
	case path{"out", "a"}:
		return !s.drop
	case path{"out", "a's host port"}:
		return !s.drop || s.config["backend"] == nil
	}
	return true
}

// topology is what all paths share.
type topology struct {
	w     *world
	hosts map[string]*nstest.Host
	addrs map[string][]string // of IPv4 and IPv6
}

const (
	servedPort = "80"
	hostPort   = "8080"
	dnat       = `add table inet test
add chain inet test pre { type nat hook prerouting priority dstnat; }
add rule inet test pre iifname ext tcp dport 8080 dnat ip to 10.1.0.2:80
add rule inet test pre iifname ext tcp dport 8080 dnat ip6 to [fd00:1::2]:80
`
)

func newTopology(k kind, p policy) topology {
	GinkgoHelper()
	w := newWorld()
	nstest.Need("br_netfilter", "nft-inet-nat")
	w.forward("ACCEPT")
	t := topology{w, map[string]*nstest.Host{"out": w.out}, map[string][]string{
		"out": {"192.0.2.2", "2001:db8::2"}, "gateway of b": {"10.2.0.1", "fd00:2::1"},
		"a's host port": {"192.0.2.1", "2001:db8::1"}}}
	for n := range 3 {
		w.bridge(n + 1)
	}
	for name, at := range map[string][2]int{"a": {1, 2}, "a2": {1, 3}, "b": {2, 2}, "c": {3, 2}} {
		c := w.container(at[0], at[1])
		keys := Object{"ingressPolicy": string(p)}
		if name == "c" {
			keys = nil
		}
		c.add(k.config, keys)
		c.check(k.config, keys)
		t.hosts[name], t.addrs[name] = c.Host, c.addrs
		c.Serve("tcp", "[::]:"+servedPort)
	}
	w.Serve("tcp", "[::]:"+servedPort)
	w.out.Serve("tcp", "[::]:"+servedPort)
	out := w.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"}, Stdin: dnat})
	Expect(out.Exit).To(BeZero(), out.Stderr)
	return t
}

var _ = Describe("packets", Label("kernel"), func() {
	for _, k := range kinds() {
		for _, p := range policies() {
			Context(fmt.Sprintf("on %s, ingressPolicy %s,", k.name, p), Ordered, func() {
				var t topology
				BeforeAll(func() {
					useVariant(k.variant)
					t = newTopology(k, p)
				})
				DescribeTable("pass as the table says", Label("policy"), func(target string, brNetfilter bool) {
					t.w.forward(target)
					t.w.SetBridgeNF(brNetfilter)
					t.walk(setting{k, target == "DROP", brNetfilter, p})
				},
					Entry("FORWARD accepts", "ACCEPT", false),
					Entry("FORWARD accepts, with br_netfilter", "ACCEPT", true),
					Entry("FORWARD drops", "DROP", false),
					Entry("FORWARD drops, with br_netfilter", "DROP", true),
				)
			})
		}
	}
})

// probe is one try of a path.
type probe struct {
	name   string
	wanted bool
	arrive func() bool
}

// walk tries all paths at once, over IPv4 and IPv6, by TCP and by ping.
func (t topology) walk(s setting) {
	GinkgoHelper()
	probes := t.probes(s)
	arrived := make([]bool, len(probes))
	nstest.AtOnce(len(probes), func(i int) { arrived[i] = probes[i].arrive() })
	found, want := map[string]bool{}, map[string]bool{}
	for i, p := range probes {
		found[p.name], want[p.name] = arrived[i], p.wanted
	}
	Expect(found).To(Equal(want))
}

func (t topology) probes(s setting) (out []probe) {
	for _, p := range paths() {
		from, open := t.hosts[p.from], p.open(s)
		for i, family := range []string{"IPv4", "IPv6"} {
			name, addr, port := fmt.Sprintf("%s > %s over %s", p.from, p.to, family), t.addrs[p.to][i], servedPort
			if p.to == "a's host port" {
				port = hostPort
			} else {
				out = append(out, probe{"ping " + name, open, func() bool { return pings(from, addr, open) }})
			}
			to := net.JoinHostPort(addr, port)
			out = append(out, probe{"tcp " + name, open, func() bool { return reaches(from, to, open) }})
		}
	}
	return out
}
