package cost_test

import (
	"fmt"

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
	costs map[string]cost // programs, sends, messages, dumps, system calls
}

// growth is what may grow with the number of others: the system calls, what is
// received from netlink, what is read of files.
type growth struct{ calls, received, read bool }

var (
	// GC compares everything of the network with the list.
	gc = map[string]growth{"GC": {true, true, true}}
	// The rules and routes of the container's namespace are listed, which has no others', and STATUS
	// lists the host's rules: that is how a kernel without them is known.
	listsRules = map[string]growth{"GC": {true, true, true}, "ADD": {received: true},
		"STATUS": {received: true, calls: true}}
	// STATUS lists the chains that may drop what firewall accepts.
	ofChains = map[string]growth{"GC": {true, true, true}, "STATUS": {received: true}}
	// The kernel lists the device's routes alone: a default route is lost, and ADD says so.
	ofDevice = map[string]growth{"GC": {true, true, true}, "ADD": {received: true}}
	// With iptables the records say who has a host port and who shares a chain.
	readsAll = map[string]growth{"GC": {true, true, true}, "ADD": {calls: true, read: true},
		"DEL": {calls: true, read: true}}
	// An attachment that has no element at its address may have one at another.
	gcAndDel = map[string]growth{"GC": {true, true, true}, "DEL": {calls: true, received: true}}
)

var budgets = []budget{
	{"loopback", "loopback", same(nil), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"", 3, 3, 1, 72},
		"CHECK":   {"", 2, 2, 1, 68},
		"STATUS":  {"", 0, 0, 0, 29},
		"GC":      {"", 0, 0, 0, 29},
		"DEL":     {"", 2, 2, 0, 66},
	}},
	{"host-local, two families", "host-local", same(ipam(dual)), false, 48, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"", 0, 0, 0, 85},
		"CHECK":   {"", 0, 0, 0, 58},
		"STATUS":  {"", 0, 0, 0, 44},
		"GC":      {"", 0, 0, 0, 83},
		"DEL":     {"", 0, 0, 0, 66},
	}},
	{"static, two families", "static", same(fixed("10.88.0.5/16", "fd00:88::5/64")), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"", 0, 0, 0, 29},
		"CHECK":   {"", 0, 0, 0, 29},
		"STATUS":  {"", 0, 0, 0, 29},
		"GC":      {"", 0, 0, 0, 29},
		"DEL":     {"", 0, 0, 0, 29},
	}},
	{"dhcp, beside its daemon", "dhcp", same(Object{"ipam": Object{"type": "dhcp"}}), true, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 0, 0, 0, 40},
		"CHECK":   {"", 0, 0, 0, 38},
		"STATUS":  {"", 0, 0, 0, 38},
		"GC":      {"", 0, 0, 0, 38},
		"DEL":     {"", 0, 0, 0, 38},
	}},
	{"bandwidth, both directions", "bandwidth", same(limited), true, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 12, 12, 0, 117},
		"CHECK":   {"", 6, 6, 1, 97},
		"STATUS":  {"", 1, 1, 0, 48},
		"GC":      {"", 1, 1, 1, 51},
		"DEL":     {"", 9, 9, 1, 86},
	}},
	{"bandwidth, no limits", "bandwidth", same(nil), true, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 0, 0, 0, 41},
		"CHECK":   {"", 0, 0, 0, 40},
		"STATUS":  {"", 1, 1, 0, 48},
		"GC":      {"", 1, 1, 1, 50},
		"DEL":     {"", 5, 5, 0, 71},
	}},
	{"tuning, a sysctl and the MAC", "tuning", tuning, true, 200, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 3, 3, 0, 115},
		"CHECK":   {"", 1, 1, 0, 68},
		"STATUS":  {"", 0, 0, 0, 34},
		"GC":      {"", 0, 0, 0, 64},
		"DEL":     {"", 2, 2, 0, 99},
	}},
	{"sbr, two families", "sbr", same(nil), true, 0, listsRules, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 16, 16, 3, 152},
		"CHECK":   {"", 4, 4, 3, 100},
		"STATUS":  {"", 1, 1, 1, 54},
		"GC":      {"", 0, 0, 0, 57},
		"DEL":     {"", 16, 16, 3, 151},
	}},
	{"portmap", "portmap", one, true, 128, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 28, 37, 14, 286},
		"CHECK":   {"", 28, 31, 11, 168},
		"STATUS":  {"", 10, 10, 8, 97},
		"GC":      {"", 14, 14, 13, 158},
		"DEL":     {"", 13, 24, 4, 188},
	}},
	{"portmap, ten ports", "portmap", tenPorts, true, 128, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 30, 93, 16, 359},
		"CHECK":   {"", 28, 67, 11, 205},
		"STATUS":  {"", 10, 10, 8, 98},
		"GC":      {"", 14, 14, 13, 158},
		"DEL":     {"", 15, 134, 6, 279},
	}},
	{"portmap, iptables", "portmap", oneByIPTables, true, 128, readsAll, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"ip6tables-restore iptables-restore", 19, 20, 7, 454},
		"CHECK":   {"ip6tables-restore iptables-restore", 11, 11, 3, 262},
		"STATUS":  {"", 0, 0, 0, 95},
		"GC":      {"ip6tables-save iptables-save", 14, 14, 13, 322},
		"DEL":     {"", 13, 22, 4, 208},
	}},
	{"firewall", "firewall", same(nil), true, 128, ofChains, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 13, 21, 11, 178},
		"CHECK":   {"", 17, 20, 11, 169},
		"STATUS":  {"", 5, 5, 5, 73},
		"GC":      {"", 7, 7, 7, 138},
		"DEL":     {"", 9, 16, 2, 133},
	}},
	{"firewall, isolated", "firewall", same(Object{"ingressPolicy": "isolated"}), true, 128, ofChains, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 27, 35, 11, 254},
		"CHECK":   {"", 27, 30, 11, 227},
		"STATUS":  {"", 5, 5, 5, 73},
		"GC":      {"", 9, 9, 8, 147},
		"DEL":     {"", 11, 18, 2, 152},
	}},
	{"firewall, iptables", "firewall", same(Object{"backend": "iptables"}), true, 128, readsAll, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"ip6tables-restore ip6tables-save iptables-restore iptables-save", 9, 9, 1, 605},
		"CHECK":   {"ip6tables-save iptables-save", 10, 10, 1, 336},
		"STATUS":  {"", 0, 0, 0, 95},
		"GC":      {"", 8, 8, 8, 142},
		"DEL":     {"", 6, 12, 4, 161},
	}},
	{"bridge", "bridge", same(bridge(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 15, 15, 1, 234},
		"CHECK":   {"host-local", 9, 9, 3, 162},
		"STATUS":  {"host-local", 1, 1, 0, 92},
		"GC":      {"host-local", 8, 8, 6, 151},
		"DEL":     {"host-local", 11, 11, 3, 166},
	}},
	{"bridge, masquerade", "bridge", same(bridge(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 19, 21, 3, 260},
		"CHECK":   {"host-local", 14, 14, 5, 184},
		"STATUS":  {"host-local", 2, 2, 1, 107},
		"GC":      {"host-local", 8, 8, 6, 151},
		"DEL":     {"host-local", 13, 15, 2, 174},
	}},
	{"bridge, masquerade, two families", "bridge", same(bridge(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 24, 28, 4, 312},
		"CHECK":   {"host-local", 17, 18, 7, 198},
		"STATUS":  {"host-local", 2, 2, 1, 107},
		"GC":      {"host-local", 8, 8, 6, 151},
		"DEL":     {"host-local", 15, 20, 3, 182},
	}},
	{"bridge, masquerade by iptables, two families", "bridge", bridgeByIPTables, false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local ip6tables-restore iptables-restore", 21, 21, 1, 521},
		"CHECK":   {"host-local ip6tables-restore iptables-restore", 12, 12, 4, 323},
		"STATUS":  {"host-local", 3, 3, 0, 133},
		"GC":      {"host-local ip6tables-save iptables-save", 8, 8, 6, 340},
		"DEL":     {"host-local", 19, 26, 7, 215},
	}},
	{"macvlan", "macvlan", same(onUplink(single)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 8, 8, 0, 225},
		"CHECK":   {"host-local", 4, 4, 1, 147},
		"STATUS":  {"host-local", 2, 2, 0, 98},
		"GC":      {"host-local", 0, 0, 0, 97},
		"DEL":     {"host-local", 2, 2, 0, 121},
	}},
	{"macvlan, two families", "macvlan", same(onUplink(dual)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 9, 9, 0, 236},
		"CHECK":   {"host-local", 4, 4, 1, 147},
		"STATUS":  {"host-local", 2, 2, 0, 98},
		"GC":      {"host-local", 0, 0, 0, 97},
		"DEL":     {"host-local", 2, 2, 0, 121},
	}},
	{"tap, two families", "tap", same(ipam(dual)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 7, 7, 0, 241},
		"CHECK":   {"host-local", 3, 3, 1, 144},
		"STATUS":  {"host-local", 0, 0, 0, 81},
		"GC":      {"host-local", 0, 0, 0, 97},
		"DEL":     {"host-local", 2, 2, 0, 121},
	}},
	{"host-device", "host-device", hostDevice, false, 0, ofDevice, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 11, 11, 2, 256},
		"CHECK":   {"host-local", 3, 3, 1, 142},
		"STATUS":  {"host-local", 1, 1, 0, 111},
		"GC":      {"host-local", 0, 0, 0, 112},
		"DEL":     {"host-local", 7, 7, 0, 168},
	}},
	{"ptp", "ptp", same(ptp(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 14, 14, 0, 214},
		"CHECK":   {"host-local", 8, 8, 5, 159},
		"STATUS":  {"host-local", 0, 0, 0, 74},
		"GC":      {"host-local", 6, 6, 6, 164},
		"DEL":     {"host-local", 8, 8, 3, 160},
	}},
	{"ptp, masquerade", "ptp", same(ptp(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 18, 20, 2, 240},
		"CHECK":   {"host-local", 13, 13, 7, 181},
		"STATUS":  {"host-local", 1, 1, 1, 89},
		"GC":      {"host-local", 6, 6, 6, 164},
		"DEL":     {"host-local", 10, 12, 2, 168},
	}},
	{"ptp, masquerade, two families", "ptp", same(ptp(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local", 28, 32, 3, 337},
		"CHECK":   {"host-local", 16, 17, 9, 195},
		"STATUS":  {"host-local", 1, 1, 1, 89},
		"GC":      {"host-local", 6, 6, 6, 164},
		"DEL":     {"host-local", 12, 17, 3, 176},
	}},
	{"ptp, masquerade by iptables, two families", "ptp", same(ptp(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 29},
		"ADD":     {"host-local ip6tables-restore iptables-restore", 23, 23, 0, 521},
		"CHECK":   {"host-local ip6tables-restore iptables-restore", 11, 11, 6, 320},
		"STATUS":  {"host-local", 2, 2, 0, 115},
		"GC":      {"host-local ip6tables-save iptables-save", 6, 6, 6, 336},
		"DEL":     {"host-local", 16, 23, 7, 209},
	}},
}

var bridgeByIPTables = same(bridge(dual, iptables))

// hostDevice takes a device of its own for each container.
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
