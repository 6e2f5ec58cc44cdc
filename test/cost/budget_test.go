package cost_test

import "github.com/hawser-cni/plugins/pkg/nstest/plugintest"

// budget is what the calls of a plugin may cost at most. Its costs are those that were
// measured when the table was last tightened, with a few system calls more: to do
// that again, run go test -v ./cost -ginkgo.v and copy what it says below each verb.
type budget struct {
	name    string
	plugin  string
	conf    func(port int) object
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
	// Known: the value of route_localnet is looked for in the records of all.
	gcAndAdd = map[string]growth{"GC": {true, true, true}, "ADD": {calls: true, read: true}}
	// An attachment that has no element at its address may have one at another.
	gcAndDel = map[string]growth{"GC": {true, true, true}, "DEL": {calls: true, received: true}}
	ten      = []string{"tcp", "udp", "tcp", "udp", "tcp", "udp", "tcp", "udp", "tcp", "udp"}
)

var budgets = []budget{
	{"loopback", "loopback", same(nil), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"", 3, 3, 1, 55},
		"CHECK":   {"", 2, 2, 1, 51},
		"STATUS":  {"", 0, 0, 0, 29},
		"GC":      {"", 0, 0, 0, 29},
		"DEL":     {"", 2, 2, 0, 50},
	}},
	{"host-local, two families", "host-local", same(ipam(dual)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"", 0, 0, 0, 90},
		"CHECK":   {"", 0, 0, 0, 57},
		"STATUS":  {"", 0, 0, 0, 52},
		"GC":      {"", 0, 0, 0, 87},
		"DEL":     {"", 0, 0, 0, 71},
	}},
	{"tuning, a sysctl and the MAC", "tuning", tuning, true, 200, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 33},
		"ADD":     {"", 3, 3, 0, 96},
		"CHECK":   {"", 1, 1, 0, 51},
		"STATUS":  {"", 0, 0, 0, 36},
		"GC":      {"", 0, 0, 0, 55},
		"DEL":     {"", 2, 2, 0, 101},
	}},
	{"portmap", "portmap", one, true, 128, gcAndAdd, map[string]cost{
		"VERSION": {"", 0, 0, 0, 33},
		"ADD":     {"", 23, 28, 10, 172},
		"CHECK":   {"", 33, 33, 11, 152},
		"STATUS":  {"", 18, 18, 8, 92},
		"GC":      {"", 12, 12, 9, 107},
		"DEL":     {"", 19, 24, 2, 140},
	}},
	{"portmap, ten ports", "portmap", func(port int) object { return ports(port, ten...) }, true, 128, gcAndAdd, map[string]cost{
		"VERSION": {"", 0, 0, 0, 33},
		"ADD":     {"", 25, 30, 12, 184},
		"CHECK":   {"", 33, 69, 11, 188},
		"STATUS":  {"", 18, 18, 8, 92},
		"GC":      {"", 12, 12, 9, 107},
		"DEL":     {"", 21, 134, 4, 224},
	}},
	{"portmap, iptables", "portmap", func(port int) object { return portmap(port, object{"backend": "iptables"}) }, true, 128, gcAndAdd, map[string]cost{
		"VERSION": {"", 0, 0, 0, 33},
		"ADD":     {"ip6tables-restore iptables-restore", 18, 18, 3, 309},
		"CHECK":   {"ip6tables iptables", 11, 11, 1, 216},
		"STATUS":  {"", 0, 0, 0, 87},
		"GC":      {"ip6tables iptables", 12, 12, 9, 215},
		"DEL":     {"", 16, 22, 2, 141},
	}},
	{"bridge", "bridge", same(bridge(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 15, 20, 1, 154},
		"CHECK":   {"host-local", 9, 12, 3, 105},
		"STATUS":  {"host-local", 1, 1, 0, 66},
		"GC":      {"host-local", 7, 7, 5, 101},
		"DEL":     {"host-local", 12, 15, 2, 116},
	}},
	{"bridge, masquerade", "bridge", same(bridge(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 19, 26, 3, 175},
		"CHECK":   {"host-local", 14, 17, 5, 120},
		"STATUS":  {"host-local", 3, 3, 1, 80},
		"GC":      {"host-local", 7, 7, 5, 103},
		"DEL":     {"host-local", 14, 19, 1, 130},
	}},
	{"bridge, masquerade, two families", "bridge", same(bridge(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 25, 33, 4, 201},
		"CHECK":   {"host-local", 18, 21, 7, 133},
		"STATUS":  {"host-local", 3, 3, 1, 80},
		"GC":      {"host-local", 7, 7, 5, 101},
		"DEL":     {"host-local", 18, 24, 2, 134},
	}},
	{"bridge, masquerade by iptables, two families", "bridge", same(bridge(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local ip6tables-restore iptables-restore", 21, 26, 1, 339},
		"CHECK":   {"host-local ip6tables iptables", 12, 15, 4, 243},
		"STATUS":  {"host-local", 3, 3, 0, 128},
		"GC":      {"host-local ip6tables iptables", 7, 7, 5, 229},
		"DEL":     {"host-local ip6tables-restore iptables-restore", 14, 17, 2, 257},
	}},
	{"ptp", "ptp", same(ptp(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 14, 18, 0, 144},
		"CHECK":   {"host-local", 8, 11, 5, 105},
		"STATUS":  {"host-local", 0, 0, 0, 60},
		"GC":      {"host-local", 6, 6, 5, 111},
		"DEL":     {"host-local", 8, 11, 2, 109},
	}},
	{"ptp, masquerade", "ptp", same(ptp(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 18, 24, 2, 164},
		"CHECK":   {"host-local", 13, 16, 7, 121},
		"STATUS":  {"host-local", 2, 2, 1, 73},
		"GC":      {"host-local", 6, 6, 5, 111},
		"DEL":     {"host-local", 10, 15, 1, 121},
	}},
	{"ptp, masquerade, two families", "ptp", same(ptp(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 29, 36, 3, 217},
		"CHECK":   {"host-local", 17, 20, 9, 134},
		"STATUS":  {"host-local", 2, 2, 1, 74},
		"GC":      {"host-local", 6, 6, 5, 111},
		"DEL":     {"host-local", 14, 20, 2, 133},
	}},
	{"ptp, masquerade by iptables, two families", "ptp", same(ptp(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local ip6tables-restore iptables-restore", 23, 27, 0, 341},
		"CHECK":   {"host-local ip6tables iptables", 11, 14, 6, 241},
		"STATUS":  {"host-local", 2, 2, 0, 121},
		"GC":      {"host-local ip6tables iptables", 6, 6, 5, 225},
		"DEL":     {"host-local ip6tables-restore iptables-restore", 10, 13, 2, 254},
	}},
}

func one(port int) object { return portmap(port) }

func same(conf object) func(int) object {
	return func(int) object { return plugintest.Merge(conf) }
}
