package lifecycle_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// seeds returns the seeds of the chains that are played: HAWSER_CHAIN to repeat one, or as many as HAWSER_CHAINS.
func seeds() (list []uint64) {
	if one, err := strconv.ParseUint(os.Getenv("HAWSER_CHAIN"), 10, 64); err == nil {
		return []uint64{one}
	}
	many, err := strconv.Atoi(os.Getenv("HAWSER_CHAINS"))
	if err != nil {
		many = 12 // about 20 s
	}
	suite, _ := GinkgoConfiguration()
	for i := range many {
		list = append(list, uint64(suite.RandomSeed)*1000+uint64(i))
	}
	return list
}

var _ = Describe("a random chain of plugins behaves as with the reference", Label("kernel", "chain", "slow"), func() {
	for _, seed := range seeds() {
		It(fmt.Sprintf("with HAWSER_CHAIN=%d", seed), func() {
			nstest.Need("nft", "nft-inet-nat", "nft-bridge", "iptables", "ifb", "tbf", "macvlan", "tap")
			c := draw(seed)
			AddReportEntry("chain", c.String(), ReportEntryVisibilityFailureOrVerbose)
			c.live()
			c.compare()
		})
	}
})

func (c chain) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, "version", c.version)
	for i, step := range c.lists[0] {
		text, other := Text(step.Keys), Text(c.lists[1][i].Keys)
		fmt.Fprintln(&b, step.Plugin, text)
		if other != text {
			fmt.Fprintln(&b, strings.Repeat(" ", len(step.Plugin)), other)
		}
	}
	return b.String()
}

func (c chain) host() *World {
	GinkgoHelper()
	w := NewNode()
	w.Version = c.version
	Uplink(w.Host)
	for pod := range c.lists {
		IP(w.Host, "link add d%d address 0a:00:00:00:00:%02x type veth peer name d%dp", pod, 0x50+pod, pod)
		IP(w.Host, "link set d%dp up", pod)
	}
	return w
}

// call serves a command as a runtime does: before 0.4.0 only ADD has a prevResult, and there is no CHECK.
func (c chain) call(w *World, command string, pod int, p *Pod) Answer {
	GinkgoHelper()
	old := c.version < "0.4.0"
	if old && command == "CHECK" {
		return Answer{}
	}
	with := *p
	if old || command == "ADD" {
		with.Result = nil
	}
	list := c.lists[pod]
	if command == "GC" {
		list = list.Valid(p)
	}
	a := w.Chain(command, &with, list)
	if command == "ADD" && a.Code == 0 {
		p.Result = with.Result
	}
	return a
}

func (c chain) must(w *World, command string, pod int, p *Pod) {
	GinkgoHelper()
	a := c.call(w, command, pod, p)
	Expect(a.Code).To(BeZero(), "%s of container %d: %s%s", command, pod, a.Stdout, a.Stderr)
}

// live plays the life of two containers. CHECK must pass after ADD, and DEL must remove everything of its container and
// nothing of the other one.
func (c chain) live() {
	w := c.host()
	pods := [2]*Pod{NewPod("one"), NewPod("two")}
	added := c.call(w, "ADD", 0, pods[0])
	if added.Code != 0 {
		c.must(w, "DEL", 0, pods[0])
	}
	check := func(pod int) {
		GinkgoHelper()
		if pods[pod].Result != nil {
			c.must(w, "CHECK", pod, pods[pod])
		}
	}
	check(0)
	before := state(w, pods[1])
	a := c.call(w, "ADD", 1, pods[1])
	Expect(a.Code).To(Equal(added.Code), "ADD of container 0: %s\nof container 1: %s", added.Stdout, a.Stdout)
	check(1)
	if again := *pods[1]; a.Code == 0 {
		Expect(c.call(w, "ADD", 1, &again).Code).NotTo(BeZero(), "a second ADD")
		check(1)
	}
	check(0)
	for range 2 {
		c.must(w, "DEL", 1, pods[1])
		Expect(differs(state(w, pods[1]), before)).To(BeEmpty(), "after DEL")
	}
	check(0)
	if pods[0].Result != nil {
		c.must(w, "GC", 0, pods[0])
		check(0)
	}
	pods[0].Netns = ""
	c.must(w, "DEL", 0, pods[0])
	Expect(w.Run(nstest.Program{Path: "find", Args: []string{"/run/hawser", "/run/cni", "-name", "*.json",
		"!", "-path", "*/failures/*"}}).Stdout).
		To(BeEmpty())
}

// volatile matches files that attachments share, such as last reserved addresses.
var volatile = regexp.MustCompile(`(?m)^.*(lock |/\.hawser|last_reserved_ip).*\n`)

func state(w *World, pod *Pod) string {
	GinkgoHelper()
	return w.Snapshot() + volatile.ReplaceAllString(w.Own(), "") + pod.Snapshot()
}

func differs(have, want string) (diff []string) {
	for sign, side := range map[string][2]string{"+ ": {have, want}, "- ": {want, have}} {
		other := strings.Split(side[1], "\n")
		for line := range strings.Lines(side[0]) {
			if line = strings.TrimSuffix(line, "\n"); !slices.Contains(other, line) {
				diff = append(diff, sign+line)
			}
		}
	}
	return diff
}

// Outputs of calls whose outcome deliberately differs from the reference's (docs/compat.md).
var (
	oursRefuses = regexp.MustCompile(strings.Join([]string{
		`needs a bridge, and interface`,                 // a policy needs a bridge
		`has no address of interface \\"eth0\\"`,        // portmap and sbr would have no effect
		`(has them|has its rules|their tables) already`, // a plugin that is twice in the list
	}, "|"))
	theirsRefuses = regexp.MustCompile(strings.Join([]string{
		`incompatible CNI versions`,           // tap, dummy and vrf do not know 0.3.1
		`already has an IP address different`, // two gateways of one ADD
		`failed to add route .*file exists`,   // isDefaultGateway, and a default route of IPAM
	}, "|"))
)

// compare checks that the reference's result for the same chain is the same.
func (c chain) compare() {
	var answers [2]Answer
	var results [2]string
	for side := range answers {
		w, pod := c.host(), NewPod("one")
		w.Spoiled = true // the reference may leave something
		if side == 1 {
			w = w.With(nstest.Newest())
			w.Version, w.Other = c.version, nil
			w.Other = w.Try
		}
		a := c.call(w, "ADD", 0, pod)
		answers[side] = a
		if a.Code == 0 {
			results[side] = outcome(a.Stdout) + fmt.Sprint(Show(pod.Host, "eth0").Addrs())
		}
	}
	if oursRefuses.MatchString(answers[0].Stdout) || theirsRefuses.MatchString(answers[1].Stdout) {
		return
	}
	Expect(answers[0].Code == 0).To(Equal(answers[1].Code == 0), "ours: %s\ntheirs: %s", answers[0].Stdout,
		answers[1].Stdout)
	Expect(differs(results[0], results[1])).To(BeEmpty(), "result and addresses, compared with the reference's")
}

var hostEnd = regexp.MustCompile(`^veth[0-9a-f]{8}$`)

// outcome returns a result without values that differ between calls.
func outcome(text string) string {
	var r struct {
		Interfaces []struct{ Name, Sandbox string }
		IPs        []struct {
			Address, Gateway string
			Interface        *int
		}
		Routes []struct{ Dst string }
	}
	Expect(json.Unmarshal([]byte(text), &r)).To(Succeed(), text)
	var b strings.Builder
	for _, i := range r.Interfaces {
		fmt.Fprintln(&b, hostEnd.ReplaceAllString(i.Name, "veth"), i.Sandbox != "")
	}
	for _, ip := range r.IPs {
		at := "none"
		if ip.Interface != nil {
			at = strconv.Itoa(*ip.Interface)
		}
		fmt.Fprintln(&b, ip.Address, cmp.Or(ip.Gateway, "-"), at)
	}
	for _, route := range r.Routes { // isDefaultGateway adds its gateway to IPAM's default route
		fmt.Fprintln(&b, route.Dst)
	}
	return b.String()
}

// chain is a random list for each of two containers. Values that only one container can have (a host port, a device, an
// address) differ.
type chain struct {
	version string
	lists   [2]List
}

// perPod returns a value that differs between containers.
type perPod func(pod int) any

// required has the keys that each plugin needs.
var required = map[string]Object{
	"bridge":      {"bridge": "cni0"},
	"ptp":         {},
	"macvlan":     {"master": "up0"},
	"tap":         {},
	"host-device": {"device": perPod(func(pod int) any { return fmt.Sprintf("d%d", pod) })},
	"tuning":      {},
	"portmap": {"runtimeConfig": perPod(func(pod int) any {
		return Object{"portMappings": []Object{{"hostPort": 8080 + pod, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": 5300 + pod, "containerPort": 53, "protocol": "udp"}}}
	})},
	"firewall":  {},
	"bandwidth": {"ingressRate": 8000000, "ingressBurst": 800000},
	"sbr":       {},
}

// optional has values of other keys, of which each list gets some.
var optional = map[string]map[string][]any{
	"bridge": {"isGateway": {true}, "isDefaultGateway": {true}, "ipMasq": {true}, "hairpinMode": {true},
		"promiscMode": {true}, "mtu": {1400, 1500}, "macspoofchk": {true}, "portIsolation": {true},
		"ipMasqBackend": {"iptables", "nftables"}, "mac": {mac(0x10)}, "forceAddress": {true}},
	"ptp":         {"ipMasq": {true}, "ipMasqBackend": {"iptables", "nftables"}, "mtu": {1400}},
	"macvlan":     {"mode": {"bridge", "private", "vepa"}, "mtu": {1400, 1500}, "mac": {mac(0x20)}},
	"tap":         {"mtu": {1400, 1500}, "mac": {mac(0x30)}, "owner": {107}, "multiQueue": {true}},
	"host-device": {},
	"tuning": {"mtu": {1300, 1400}, "mac": {mac(0x40)}, "promisc": {true}, "allmulti": {true}, "txQLen": {77},
		"sysctl": {Object{"net.ipv4.conf.eth0.arp_filter": "1"}, Object{"net.ipv6.conf.eth0.accept_ra": "0",
			"net.ipv4.tcp_keepalive_time": "700"}}},
	"portmap": {"backend": {"iptables", "nftables"}, "snat": {false}, "masqAll": {true}},
	"firewall": {"backend": {"iptables", "nftables"}, "ingressPolicy": {"same-bridge", "isolated", "open"},
		"acceptPublished": {false}},
	"bandwidth": {"egressRate": {16000000}, "egressBurst": {1600000}},
	"sbr":       {"table": {300}, "addSourceHints": {true}},
}

var (
	mains   = []string{"bridge", "bridge", "ptp", "macvlan", "tap", "host-device"}
	chained = []string{"tuning", "portmap", "firewall", "bandwidth", "sbr"}
)

func mac(kind int) perPod {
	return func(pod int) any { return fmt.Sprintf("0a:00:00:00:%02x:%02x", kind, pod+1) }
}

// ipams has configurations of IPAM. The last one assigns no address.
var ipams = []any{
	HostLocal("10.88.0.0/24"), HostLocal("fd00:88::/64"), HostLocal("10.88.0.0/24", "fd00:88::/64"),
	HostLocal("10.88.0.0/24", "10.89.0.0/24"),
	routed(Object{"dst": "0.0.0.0/0"}),
	routed(Object{"dst": "0.0.0.0/0", "mtu": 1280, "advmss": 1200, "priority": 50}, Object{"dst": "192.0.2.0/24"}),
	routed(Object{"dst": "198.51.100.0/24", "table": 254}, Object{"dst": "203.0.113.0/24", "scope": 0}),
	perPod(func(pod int) any {
		return Object{"type": "static", "routes": []Object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
			"addresses": []Object{{"address": fmt.Sprintf("10.88.0.%d/24", 50+pod), "gateway": "10.88.0.1"},
				{"address": fmt.Sprintf("fd00:88::%d/64", 50+pod), "gateway": "fd00:88::1"}}}
	}),
	Object{},
}

func routed(routes ...Object) Object {
	return Merge(HostLocal("10.88.0.0/24", "fd00:88::/64"), Object{"routes": routes})
}

// draw returns a chain of up to five plugins, which are mostly in a useful order.
func draw(seed uint64) chain {
	r := rand.New(rand.NewPCG(seed, 0))
	c := chain{version: []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.1.0"}[r.IntN(5)]}
	for i := range 1 + r.IntN(5) {
		kind := chained
		if likely := r.IntN(8) > 0; likely == (i == 0) {
			kind = mains
		}
		plugin := kind[r.IntN(len(kind))]
		keys := maps.Clone(required[plugin])
		if slices.Contains(mains, plugin) {
			keys["ipam"] = ipams[r.IntN(len(ipams))]
		}
		for _, key := range slices.Sorted(maps.Keys(optional[plugin])) {
			if values := optional[plugin][key]; r.IntN(3) == 0 {
				keys[key] = values[r.IntN(len(values))]
			}
		}
		if slices.ContainsFunc(c.lists[0], func(e Step) bool { return e.Keys["macspoofchk"] != nil }) {
			delete(keys, "mac") // macspoofchk would drop its packets, and CHECK would fail
		}
		for pod := range c.lists {
			c.lists[pod] = append(c.lists[pod], Step{Plugin: plugin, Keys: forPod(keys, pod)})
		}
	}
	return c
}

func forPod(keys Object, pod int) Object {
	keys = maps.Clone(keys)
	for key, value := range keys {
		if of, ok := value.(perPod); ok {
			keys[key] = of(pod)
		}
	}
	return keys
}
