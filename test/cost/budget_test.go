package cost_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// budget is the cost that the calls of a plugin may have, plus a tenth (withSlack). The costs are those that were
// measured when the table was last tightened, plus a few system calls. To tighten it, run go test -v ./cost -ginkgo.v
// and copy the cost that it prints below each verb.
type budget struct {
	name    string
	plugin  string
	conf    func(port int) Object
	chained bool // after bridge
	// state is what the calls may read of each other container's, in bytes.
	state int64
	// grows is what costs more the more others are there, by verb.
	grows map[string]growth
	// delegate is what each verb runs, and programs what some run beside it.
	delegate string
	programs map[string]string
	costs    costs
}

// costs are those of ADD, CHECK, STATUS, GC and DEL. VERSION asks nothing.
type costs [5]count

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
	hostLocal        = "host-local"
	leaseBytes       = 48 // of another's lease in host-local's index
	restores         = "ip6tables-restore iptables-restore"
	looks            = "ip6tables ip6tables iptables iptables"
	looksAndRestores = "ip6tables ip6tables ip6tables-restore iptables iptables iptables-restore"
)

var budgets = []budget{
	{name: "loopback", plugin: "loopback", conf: same(nil), grows: gc,
		costs: costs{{72, 3, 3, 1}, {68, 2, 2, 1}, {29, 0, 0, 0}, {29, 0, 0, 0}, {66, 2, 2, 0}}},
	{name: "host-local, two families", plugin: "host-local", conf: same(ipam(dual)), state: leaseBytes, grows: gc,
		costs: costs{{92, 0, 0, 0}, {58, 0, 0, 0}, {44, 0, 0, 0}, {83, 0, 0, 0}, {66, 0, 0, 0}}},
	{name: "static, two families", plugin: "static", conf: same(fixed("10.88.0.5/16", "fd00:88::5/64")), grows: gc,
		costs: costs{{29, 0, 0, 0}, {29, 0, 0, 0}, {29, 0, 0, 0}, {29, 0, 0, 0}, {29, 0, 0, 0}}},
	{name: "dhcp, beside its daemon", plugin: "dhcp", conf: same(Object{"ipam": Object{"type": "dhcp"}}),
		chained: true, grows: gc,
		costs: costs{{40, 0, 0, 0}, {38, 0, 0, 0}, {38, 0, 0, 0}, {38, 0, 0, 0}, {38, 0, 0, 0}}},
	{name: "bandwidth, both directions", plugin: "bandwidth", conf: same(limited), chained: true, grows: gc,
		costs: costs{{117, 12, 12, 0}, {97, 6, 6, 1}, {48, 2, 2, 0}, {51, 1, 1, 1}, {86, 9, 9, 1}}},
	{name: "bandwidth, no limits", plugin: "bandwidth", conf: same(nil), chained: true, grows: gc,
		costs: costs{{39, 0, 0, 0}, {40, 0, 0, 0}, {48, 1, 1, 0}, {50, 1, 1, 1}, {71, 5, 5, 0}}},
	{name: "tuning, a sysctl and the MAC", plugin: "tuning", conf: tuning, chained: true, state: 200, grows: gc,
		costs: costs{{115, 3, 3, 0}, {68, 1, 1, 0}, {34, 0, 0, 0}, {64, 0, 0, 0}, {99, 2, 2, 0}}},
	{name: "sbr, two families", plugin: "sbr", conf: same(nil), chained: true, grows: listsRules,
		costs: costs{{152, 16, 16, 3}, {100, 4, 4, 3}, {54, 1, 1, 1}, {57, 0, 0, 0}, {151, 16, 16, 3}}},
	{name: "portmap", plugin: "portmap", conf: one, chained: true, state: 128, grows: gc,
		costs: costs{{240, 26, 34, 14}, {168, 28, 31, 11}, {97, 10, 10, 8}, {158, 14, 14, 13}, {188, 13, 24, 4}}},
	{name: "portmap, ten ports", plugin: "portmap", conf: tenPorts, chained: true, state: 128, grows: gc,
		costs: costs{{300, 28, 72, 16}, {205, 28, 67, 11}, {98, 10, 10, 8}, {158, 14, 14, 13}, {279, 15, 134, 6}}},
	{name: "portmap, iptables", plugin: "portmap", conf: oneByIPTables, chained: true, state: 128, grows: readsAll,
		programs: map[string]string{"ADD": restores, "CHECK": looks, "GC": looks},
		costs:    costs{{435, 20, 21, 7}, {315, 9, 9, 1}, {129, 1, 2, 0}, {332, 12, 12, 11}, {208, 13, 20, 4}}},
	{name: "firewall", plugin: "firewall", conf: same(nil), chained: true, state: 128, grows: ofChains,
		costs: costs{{178, 13, 21, 11}, {169, 17, 20, 11}, {73, 5, 5, 5}, {139, 8, 11, 7}, {137, 9, 20, 2}}},
	{name: "firewall, isolated", plugin: "firewall", conf: same(Object{"ingressPolicy": "isolated"}),
		chained: true, state: 128, grows: ofChains,
		costs: costs{{254, 27, 35, 11}, {227, 27, 30, 11}, {73, 5, 5, 5}, {148, 10, 13, 8}, {152, 11, 22, 2}}},
	{name: "firewall, iptables", plugin: "firewall", conf: same(Object{"backend": "iptables"}),
		chained: true, state: 128, grows: readsAll,
		programs: map[string]string{"ADD": looksAndRestores, "CHECK": looks, "DEL": restores},
		costs:    costs{{540, 9, 9, 1}, {336, 10, 10, 1}, {119, 1, 2, 0}, {143, 9, 12, 8}, {200, 0, 0, 0}}},
	{name: "bridge", plugin: "bridge", conf: same(bridge(single)), grows: gcAndDel, delegate: hostLocal,
		costs: costs{{238, 15, 15, 1}, {162, 9, 9, 3}, {92, 2, 2, 0}, {152, 8, 11, 6}, {168, 12, 16, 3}}},
	{name: "bridge, masquerade", plugin: "bridge", conf: same(bridge(single, masquerade)), grows: gc,
		delegate: hostLocal,
		costs:    costs{{264, 19, 21, 3}, {184, 14, 14, 5}, {107, 3, 3, 1}, {152, 8, 11, 6}, {174, 13, 17, 2}}},
	{name: "bridge, masquerade, two families", plugin: "bridge", conf: same(bridge(dual, masquerade)), grows: gc,
		delegate: hostLocal,
		costs:    costs{{318, 25, 29, 4}, {198, 17, 18, 7}, {109, 3, 3, 1}, {152, 8, 11, 6}, {183, 17, 27, 3}}},
	{name: "bridge, masquerade by iptables, two families", plugin: "bridge", conf: bridgeByIPTables, grows: gcAndDel,
		delegate: hostLocal, programs: map[string]string{"ADD": restores, "CHECK": looks, "GC": looks},
		costs: costs{{527, 22, 22, 1}, {393, 12, 12, 4}, {157, 3, 4, 0}, {347, 8, 11, 6}, {215, 19, 30, 7}}},
	{name: "macvlan", plugin: "macvlan", conf: same(onUplink(single)), grows: gc, delegate: hostLocal,
		costs: costs{{202, 12, 12, 2}, {147, 4, 4, 1}, {106, 6, 6, 2}, {97, 0, 0, 0}, {121, 2, 2, 0}}},
	{name: "macvlan, two families", plugin: "macvlan", conf: same(onUplink(dual)), grows: gc, delegate: hostLocal,
		costs: costs{{232, 15, 15, 2}, {147, 4, 4, 1}, {111, 6, 6, 2}, {97, 0, 0, 0}, {121, 2, 2, 0}}},
	{name: "tap, two families", plugin: "tap", conf: same(ipam(dual)), grows: gc, delegate: hostLocal,
		costs: costs{{235, 7, 7, 0}, {144, 3, 3, 1}, {81, 0, 0, 0}, {97, 0, 0, 0}, {121, 2, 2, 0}}},
	{name: "tc-redirect-tap, two families", plugin: "tc-redirect-tap", conf: same(nil), chained: true, grows: gc,
		costs: costs{{126, 9, 9, 0}, {88, 6, 6, 2}, {54, 0, 0, 0}, {53, 0, 0, 0}, {99, 6, 6, 1}}},
	{name: "host-device", plugin: "host-device", conf: hostDevice, grows: ofDevice, delegate: hostLocal,
		costs: costs{{247, 11, 11, 2}, {142, 3, 3, 1}, {111, 1, 1, 0}, {112, 0, 0, 0}, {168, 7, 7, 0}}},
	{name: "ptp", plugin: "ptp", conf: same(ptp(single)), grows: gcAndDel, delegate: hostLocal,
		costs: costs{{214, 16, 16, 0}, {159, 8, 8, 5}, {92, 1, 1, 0}, {165, 7, 10, 6}, {162, 9, 13, 3}}},
	{name: "ptp, masquerade", plugin: "ptp", conf: same(ptp(single, masquerade)), grows: gc, delegate: hostLocal,
		costs: costs{{240, 20, 22, 2}, {181, 13, 13, 7}, {109, 2, 2, 1}, {165, 7, 10, 6}, {168, 10, 14, 2}}},
	{name: "ptp, masquerade, two families", plugin: "ptp", conf: same(ptp(dual, masquerade)), grows: gc,
		delegate: hostLocal,
		costs:    costs{{337, 32, 36, 3}, {195, 16, 17, 9}, {107, 2, 2, 1}, {165, 7, 10, 6}, {176, 12, 21, 3}}},
	{name: "ptp, masquerade by iptables, two families", plugin: "ptp", conf: same(ptp(dual, iptables)),
		grows:    gcAndDel,
		delegate: hostLocal, programs: map[string]string{"ADD": restores, "CHECK": looks, "GC": looks},
		costs: costs{{521, 31, 31, 0}, {390, 11, 11, 6}, {157, 2, 3, 0}, {345, 7, 10, 6}, {209, 16, 27, 7}}},
}

// inProcess is added to the budget of system calls where host-local runs in the same process: its own calls, less those
// of a process start.
var inProcess = map[string]int{"ADD": 17, "CHECK": -13, "STATUS": -31, "GC": 17, "DEL": -9}

// withoutHandles is added to ADD's where the kernel has no handles of namespaces, which tell the cookie (before Linux
// 6.18): who wants it has to enter the namespace.
const withoutHandles = 12

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
		chained: true, grows: listsRules,
		// Who waits for the kernel's worker, which routes IPv6 addresses, looks again at each event: 16 and 10
		// messages, 141 and 124 calls without.
		costs: costs{{190, 22, 22, 8}, {84, 3, 3, 3}, {53, 1, 1, 0}, {55, 0, 0, 0}, {170, 16, 16, 6}}},
	"ipvlan": {name: "ipvlan, two families", plugin: "ipvlan", conf: same(onUplink(apart)), delegate: hostLocal,
		costs: costs{{251, 15, 15, 2}, {147, 4, 4, 1}, {101, 6, 6, 2}, {98, 0, 0, 0}, {122, 2, 2, 0}}},
	"8021q": {name: "vlan, two families", plugin: "vlan", conf: ownVLAN, delegate: hostLocal,
		costs: costs{{237, 15, 15, 2}, {147, 4, 4, 1}, {101, 6, 6, 2}, {98, 0, 0, 0}, {122, 2, 2, 0}}},
	"netkit": {name: "ptp, netkit, masquerade", plugin: "ptp", conf: same(ptp(single, masquerade,
		Object{"deviceType": "netkit"})), grows: gc, delegate: hostLocal,
		costs: costs{{240, 20, 22, 2}, {181, 13, 13, 7}, {109, 2, 2, 1}, {165, 7, 10, 6}, {168, 10, 14, 2}}},
	"dummy": {name: "dummy, two families", plugin: "dummy", conf: same(ipam(dual)), delegate: hostLocal,
		costs: costs{{231, 7, 7, 0}, {144, 3, 3, 1}, {98, 1, 1, 0}, {98, 0, 0, 0}, {122, 2, 2, 0}}},
}

func ownVLAN(port int) Object { return Merge(onUplink(dual), Object{"vlanId": port - 8000}) }

// On a quiet node alone: where such a kernel is in a virtual machine, a busy one takes minutes.
var _ = Describe("a call that needs a feature of the kernel", Ordered, ContinueOnFailure, Label("kernel"), func() {
	var n node
	BeforeAll(func() { n = newNode(1) })
	for feature, b := range kernelBudgets {
		labels := Label()
		if feature == "netkit" {
			labels = Label("netkit")
		}
		It("asks of the kernel no more than its budget: "+b.name, labels, func() {
			nstest.Need(feature)
			b.isKept(func(try int) map[string]string {
				records := n.measure(b, try)
				return b.faults(records, records)
			})
		})
	}
})
