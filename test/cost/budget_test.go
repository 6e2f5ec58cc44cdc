package cost_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// budget is what the calls of a plugin may cost at most. Its costs are those that were
// measured when the table was last tightened, with a few system calls more: to do
// that again, run go test -v ./cost -ginkgo.v and copy what it says below each verb.
type budget struct {
	name    string
	plugin  string
	conf    func(port int) Object
	chained bool // after bridge
	// state is what the calls may read of each other container's, in bytes.
	state int64
	// grows is what costs more the more others are there, by verb.
	grows map[string]growth
	// costs are those of each verb but VERSION, which asks nothing.
	costs map[string]cost
}

// growth is what may grow with the number of others: the system calls, what is
// received from netlink, what is read of files.
type growth struct{ calls, received, read bool }

var (
	// GC compares everything of the network with the list.
	gc = map[string]growth{"GC": {calls: true, received: true, read: true}}
	// The rules and routes of the container's namespace are listed, which has no others', and STATUS
	// lists the host's rules: that is how a kernel without them is known.
	listsRules = map[string]growth{"GC": gc["GC"], "ADD": {received: true},
		"STATUS": {received: true, calls: true}}
	// STATUS lists the chains that may drop what firewall accepts.
	ofChains = map[string]growth{"GC": gc["GC"], "STATUS": {received: true}}
	// The kernel lists the device's routes alone: a default route is lost, and ADD says so.
	ofDevice = map[string]growth{"GC": gc["GC"], "ADD": {received: true}}
	// With iptables the records say who has a host port and who shares a chain.
	readsAll = map[string]growth{"GC": gc["GC"], "ADD": {calls: true, read: true},
		"DEL": {calls: true, read: true}}
	// An attachment that has no element at its address may have one at another.
	gcAndDel = map[string]growth{"GC": gc["GC"], "DEL": {calls: true, received: true}}
)

const (
	restores         = "ip6tables-restore iptables-restore"
	looks            = "ip6tables ip6tables iptables iptables"
	looksAndRestores = "ip6tables ip6tables ip6tables-restore iptables iptables iptables-restore"
)

var budgets = []budget{
	{name: "loopback", plugin: "loopback", conf: same(nil), grows: gc, costs: map[string]cost{
		"ADD":    {sends: 3, messages: 3, dumps: 1, calls: 72},
		"CHECK":  {sends: 2, messages: 2, dumps: 1, calls: 68},
		"STATUS": {calls: 29},
		"GC":     {calls: 29},
		"DEL":    {sends: 2, messages: 2, calls: 66},
	}},
	{name: "host-local, two families", plugin: "host-local", conf: same(ipam(dual)),
		state: 48, grows: gc, costs: map[string]cost{
			"ADD":    {calls: 85},
			"CHECK":  {calls: 58},
			"STATUS": {calls: 44},
			"GC":     {calls: 83},
			"DEL":    {calls: 66},
		}},
	{name: "static, two families", plugin: "static", conf: same(fixed("10.88.0.5/16", "fd00:88::5/64")),
		grows: gc, costs: map[string]cost{
			"ADD":    {calls: 29},
			"CHECK":  {calls: 29},
			"STATUS": {calls: 29},
			"GC":     {calls: 29},
			"DEL":    {calls: 29},
		}},
	{name: "dhcp, beside its daemon", plugin: "dhcp", conf: same(Object{"ipam": Object{"type": "dhcp"}}),
		chained: true, grows: gc, costs: map[string]cost{
			"ADD":    {calls: 40},
			"CHECK":  {calls: 38},
			"STATUS": {calls: 38},
			"GC":     {calls: 38},
			"DEL":    {calls: 38},
		}},
	{name: "bandwidth, both directions", plugin: "bandwidth", conf: same(limited),
		chained: true, grows: gc, costs: map[string]cost{
			"ADD":    {sends: 12, messages: 12, calls: 117},
			"CHECK":  {sends: 6, messages: 6, dumps: 1, calls: 97},
			"STATUS": {sends: 1, messages: 1, calls: 48},
			"GC":     {sends: 1, messages: 1, dumps: 1, calls: 51},
			"DEL":    {sends: 9, messages: 9, dumps: 1, calls: 86},
		}},
	{name: "bandwidth, no limits", plugin: "bandwidth", conf: same(nil),
		chained: true, grows: gc, costs: map[string]cost{
			"ADD":    {calls: 41},
			"CHECK":  {calls: 40},
			"STATUS": {sends: 1, messages: 1, calls: 48},
			"GC":     {sends: 1, messages: 1, dumps: 1, calls: 50},
			"DEL":    {sends: 5, messages: 5, calls: 71},
		}},
	{name: "tuning, a sysctl and the MAC", plugin: "tuning", conf: tuning,
		chained: true, state: 200, grows: gc, costs: map[string]cost{
			"ADD":    {sends: 3, messages: 3, calls: 115},
			"CHECK":  {sends: 1, messages: 1, calls: 68},
			"STATUS": {calls: 34},
			"GC":     {calls: 64},
			"DEL":    {sends: 2, messages: 2, calls: 99},
		}},
	{name: "sbr, two families", plugin: "sbr", conf: same(nil),
		chained: true, grows: listsRules, costs: map[string]cost{
			"ADD":    {sends: 16, messages: 16, dumps: 3, calls: 152},
			"CHECK":  {sends: 4, messages: 4, dumps: 3, calls: 100},
			"STATUS": {sends: 1, messages: 1, dumps: 1, calls: 54},
			"GC":     {calls: 57},
			"DEL":    {sends: 16, messages: 16, dumps: 3, calls: 151},
		}},
	{name: "portmap", plugin: "portmap", conf: one, chained: true, state: 128, grows: gc, costs: map[string]cost{
		"ADD":    {sends: 26, messages: 34, dumps: 14, calls: 240},
		"CHECK":  {sends: 28, messages: 31, dumps: 11, calls: 168},
		"STATUS": {sends: 10, messages: 10, dumps: 8, calls: 97},
		"GC":     {sends: 14, messages: 14, dumps: 13, calls: 158},
		"DEL":    {sends: 13, messages: 24, dumps: 4, calls: 188},
	}},
	{name: "portmap, ten ports", plugin: "portmap", conf: tenPorts,
		chained: true, state: 128, grows: gc, costs: map[string]cost{
			"ADD":    {sends: 28, messages: 72, dumps: 16, calls: 300},
			"CHECK":  {sends: 28, messages: 67, dumps: 11, calls: 205},
			"STATUS": {sends: 10, messages: 10, dumps: 8, calls: 98},
			"GC":     {sends: 14, messages: 14, dumps: 13, calls: 158},
			"DEL":    {sends: 15, messages: 134, dumps: 6, calls: 279},
		}},
	{name: "portmap, iptables", plugin: "portmap", conf: oneByIPTables,
		chained: true, state: 128, grows: readsAll, costs: map[string]cost{
			"ADD":    {programs: restores, sends: 17, messages: 18, dumps: 7, calls: 435},
			"CHECK":  {programs: looks, sends: 9, messages: 9, dumps: 1, calls: 315},
			"STATUS": {calls: 95},
			"GC":     {programs: looks, sends: 12, messages: 12, dumps: 11, calls: 332},
			"DEL":    {sends: 13, messages: 20, dumps: 4, calls: 208},
		}},
	{name: "firewall", plugin: "firewall", conf: same(nil),
		chained: true, state: 128, grows: ofChains, costs: map[string]cost{
			"ADD":    {sends: 13, messages: 21, dumps: 11, calls: 178},
			"CHECK":  {sends: 17, messages: 20, dumps: 11, calls: 169},
			"STATUS": {sends: 5, messages: 5, dumps: 5, calls: 73},
			"GC":     {sends: 7, messages: 7, dumps: 7, calls: 138},
			"DEL":    {sends: 9, messages: 16, dumps: 2, calls: 133},
		}},
	{name: "firewall, isolated", plugin: "firewall", conf: same(Object{"ingressPolicy": "isolated"}),
		chained: true, state: 128, grows: ofChains, costs: map[string]cost{
			"ADD":    {sends: 27, messages: 35, dumps: 11, calls: 254},
			"CHECK":  {sends: 27, messages: 30, dumps: 11, calls: 227},
			"STATUS": {sends: 5, messages: 5, dumps: 5, calls: 73},
			"GC":     {sends: 9, messages: 9, dumps: 8, calls: 147},
			"DEL":    {sends: 11, messages: 18, dumps: 2, calls: 152},
		}},
	{name: "firewall, iptables", plugin: "firewall", conf: same(Object{"backend": "iptables"}),
		chained: true, state: 128, grows: readsAll, costs: map[string]cost{
			"ADD":    {programs: looksAndRestores, sends: 9, messages: 9, dumps: 1, calls: 540},
			"CHECK":  {programs: looks, sends: 10, messages: 10, dumps: 1, calls: 336},
			"STATUS": {calls: 95},
			"GC":     {sends: 8, messages: 8, dumps: 8, calls: 142},
			"DEL":    {programs: restores, calls: 200},
		}},
	{name: "bridge", plugin: "bridge", conf: same(bridge(single)), grows: gcAndDel, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 15, messages: 15, dumps: 1, calls: 234},
		"CHECK":  {programs: "host-local", sends: 9, messages: 9, dumps: 3, calls: 162},
		"STATUS": {programs: "host-local", sends: 1, messages: 1, calls: 92},
		"GC":     {programs: "host-local", sends: 8, messages: 8, dumps: 6, calls: 151},
		"DEL":    {programs: "host-local", sends: 11, messages: 11, dumps: 3, calls: 166},
	}},
	{name: "bridge, masquerade", plugin: "bridge", conf: same(bridge(single, masquerade)),
		grows: gc, costs: map[string]cost{
			"ADD":    {programs: "host-local", sends: 19, messages: 21, dumps: 3, calls: 260},
			"CHECK":  {programs: "host-local", sends: 14, messages: 14, dumps: 5, calls: 184},
			"STATUS": {programs: "host-local", sends: 2, messages: 2, dumps: 1, calls: 107},
			"GC":     {programs: "host-local", sends: 8, messages: 8, dumps: 6, calls: 151},
			"DEL":    {programs: "host-local", sends: 13, messages: 15, dumps: 2, calls: 174},
		}},
	{name: "bridge, masquerade, two families", plugin: "bridge", conf: same(bridge(dual, masquerade)),
		grows: gc, costs: map[string]cost{
			"ADD":    {programs: "host-local", sends: 24, messages: 28, dumps: 4, calls: 312},
			"CHECK":  {programs: "host-local", sends: 17, messages: 18, dumps: 7, calls: 198},
			"STATUS": {programs: "host-local", sends: 2, messages: 2, dumps: 1, calls: 107},
			"GC":     {programs: "host-local", sends: 8, messages: 8, dumps: 6, calls: 151},
			"DEL":    {programs: "host-local", sends: 15, messages: 20, dumps: 3, calls: 182},
		}},
	{name: "bridge, masquerade by iptables, two families", plugin: "bridge", conf: bridgeByIPTables,
		grows: gcAndDel, costs: map[string]cost{
			"ADD":    {programs: "host-local " + restores, sends: 21, messages: 21, dumps: 1, calls: 521},
			"CHECK":  {programs: "host-local " + looks, sends: 12, messages: 12, dumps: 4, calls: 393},
			"STATUS": {programs: "host-local", sends: 1, messages: 1, calls: 133},
			"GC":     {programs: "host-local " + looks, sends: 8, messages: 8, dumps: 6, calls: 345},
			"DEL":    {programs: "host-local", sends: 19, messages: 26, dumps: 7, calls: 215},
		}},
	{name: "macvlan", plugin: "macvlan", conf: same(onUplink(single)), grows: gc, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 8, messages: 8, calls: 225},
		"CHECK":  {programs: "host-local", sends: 4, messages: 4, dumps: 1, calls: 147},
		"STATUS": {programs: "host-local", sends: 2, messages: 2, calls: 98},
		"GC":     {programs: "host-local", calls: 97},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 121},
	}},
	{name: "macvlan, two families", plugin: "macvlan", conf: same(onUplink(dual)), grows: gc, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 9, messages: 9, calls: 236},
		"CHECK":  {programs: "host-local", sends: 4, messages: 4, dumps: 1, calls: 147},
		"STATUS": {programs: "host-local", sends: 2, messages: 2, calls: 98},
		"GC":     {programs: "host-local", calls: 97},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 121},
	}},
	{name: "tap, two families", plugin: "tap", conf: same(ipam(dual)), grows: gc, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 7, messages: 7, calls: 241},
		"CHECK":  {programs: "host-local", sends: 3, messages: 3, dumps: 1, calls: 144},
		"STATUS": {programs: "host-local", calls: 81},
		"GC":     {programs: "host-local", calls: 97},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 121},
	}},
	{name: "host-device", plugin: "host-device", conf: hostDevice, grows: ofDevice, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 11, messages: 11, dumps: 2, calls: 256},
		"CHECK":  {programs: "host-local", sends: 3, messages: 3, dumps: 1, calls: 142},
		"STATUS": {programs: "host-local", sends: 1, messages: 1, calls: 111},
		"GC":     {programs: "host-local", calls: 112},
		"DEL":    {programs: "host-local", sends: 7, messages: 7, calls: 168},
	}},
	{name: "ptp", plugin: "ptp", conf: same(ptp(single)), grows: gcAndDel, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 14, messages: 14, calls: 214},
		"CHECK":  {programs: "host-local", sends: 8, messages: 8, dumps: 5, calls: 159},
		"STATUS": {programs: "host-local", calls: 74},
		"GC":     {programs: "host-local", sends: 6, messages: 6, dumps: 6, calls: 164},
		"DEL":    {programs: "host-local", sends: 8, messages: 8, dumps: 3, calls: 160},
	}},
	{name: "ptp, masquerade", plugin: "ptp", conf: same(ptp(single, masquerade)), grows: gc, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 18, messages: 20, dumps: 2, calls: 240},
		"CHECK":  {programs: "host-local", sends: 13, messages: 13, dumps: 7, calls: 181},
		"STATUS": {programs: "host-local", sends: 1, messages: 1, dumps: 1, calls: 89},
		"GC":     {programs: "host-local", sends: 6, messages: 6, dumps: 6, calls: 164},
		"DEL":    {programs: "host-local", sends: 10, messages: 12, dumps: 2, calls: 168},
	}},
	{name: "ptp, masquerade, two families", plugin: "ptp", conf: same(ptp(dual, masquerade)),
		grows: gc, costs: map[string]cost{
			"ADD":    {programs: "host-local", sends: 28, messages: 32, dumps: 3, calls: 337},
			"CHECK":  {programs: "host-local", sends: 16, messages: 17, dumps: 9, calls: 195},
			"STATUS": {programs: "host-local", sends: 1, messages: 1, dumps: 1, calls: 89},
			"GC":     {programs: "host-local", sends: 6, messages: 6, dumps: 6, calls: 164},
			"DEL":    {programs: "host-local", sends: 12, messages: 17, dumps: 3, calls: 176},
		}},
	{name: "ptp, masquerade by iptables, two families", plugin: "ptp", conf: same(ptp(dual, iptables)),
		grows: gcAndDel, costs: map[string]cost{
			"ADD":    {programs: "host-local " + restores, sends: 23, messages: 23, calls: 521},
			"CHECK":  {programs: "host-local " + looks, sends: 11, messages: 11, dumps: 6, calls: 390},
			"STATUS": {programs: "host-local", calls: 115},
			"GC":     {programs: "host-local " + looks, sends: 6, messages: 6, dumps: 6, calls: 341},
			"DEL":    {programs: "host-local", sends: 16, messages: 23, dumps: 7, calls: 209},
		}},
}

var bridgeByIPTables = same(bridge(dual, iptables))

func hostDevice(port int) Object {
	return Merge(ipam(single), Object{"device": fmt.Sprintf("dev%d", port)})
}

func one(port int) Object { return portmap(port) }

func oneByIPTables(port int) Object { return portmap(port, Object{"backend": "iptables"}) }

func tenPorts(port int) Object {
	return ports(port, "tcp", "udp", "tcp", "udp", "tcp", "udp", "tcp", "udp", "tcp", "udp")
}

func same(conf Object) func(int) Object {
	return func(int) Object { return Merge(conf) }
}

// kernelBudgets are those of plugins for which some kernels lack a feature, by the feature.
var kernelBudgets = map[string]budget{
	"vrf": {name: "vrf, two families", plugin: "vrf", conf: same(Object{"vrfname": "red"}),
		chained: true, grows: listsRules, costs: map[string]cost{
			// Who waits for the kernel's worker, which routes IPv6 addresses, looks again at each event: 16 and 10
			// messages, 141 and 124 calls without.
			"ADD":    {sends: 22, messages: 22, dumps: 8, calls: 190},
			"CHECK":  {sends: 3, messages: 3, dumps: 3, calls: 84},
			"STATUS": {sends: 1, messages: 1, calls: 52},
			"GC":     {calls: 55},
			"DEL":    {sends: 16, messages: 16, dumps: 6, calls: 170},
		}},
	"ipvlan": {name: "ipvlan, two families", plugin: "ipvlan", conf: same(onUplink(dual)), costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 9, messages: 9, calls: 251},
		"CHECK":  {programs: "host-local", sends: 4, messages: 4, dumps: 1, calls: 147},
		"STATUS": {programs: "host-local", sends: 2, messages: 2, calls: 99},
		"GC":     {programs: "host-local", calls: 98},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 122},
	}},
	"8021q": {name: "vlan, two families", plugin: "vlan", conf: ownVLAN, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 9, messages: 9, calls: 237},
		"CHECK":  {programs: "host-local", sends: 4, messages: 4, dumps: 1, calls: 147},
		"STATUS": {programs: "host-local", sends: 2, messages: 2, calls: 99},
		"GC":     {programs: "host-local", calls: 98},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 122},
	}},
	"dummy": {name: "dummy, two families", plugin: "dummy", conf: same(ipam(dual)), costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 7, messages: 7, calls: 231},
		"CHECK":  {programs: "host-local", sends: 3, messages: 3, dumps: 1, calls: 144},
		"STATUS": {programs: "host-local", sends: 1, messages: 1, calls: 96},
		"GC":     {programs: "host-local", calls: 98},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 122},
	}},
}

func ownVLAN(port int) Object { return Merge(onUplink(dual), Object{"vlanId": port - 8000}) }

// On a quiet node alone: where such a kernel is in a virtual machine, a busy one takes minutes.
var _ = Describe("a call that needs a feature of the kernel", Ordered, ContinueOnFailure, Label("kernel"), func() {
	var n node
	BeforeAll(func() { n = newNode(1) })
	for feature, b := range kernelBudgets {
		It("asks of the kernel no more than its budget: "+b.name, func() {
			nstest.Need(feature)
			b.isKept(func(try int) map[string]string {
				records := n.measure(b, try)
				return b.faults(records, records)
			})
		})
	}
})
