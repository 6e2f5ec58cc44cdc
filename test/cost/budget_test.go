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
	// looksAtAll are the verbs that cost more when others are there.
	looksAtAll []string
	costs      map[string]cost // programs, sends, messages, dumps, system calls
}

var (
	gc = []string{"GC"}
	// Known: the value of route_localnet is looked for in the records of all.
	gcAndAdd = []string{"GC", "ADD"}
	// An attachment that has no element at its address may have one at another.
	gcAndDel = []string{"GC", "DEL"}
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
		"ADD":     {"iptables-restore ip6tables-restore", 18, 18, 3, 309},
		"CHECK":   {"iptables ip6tables", 11, 11, 1, 216},
		"STATUS":  {"", 0, 0, 0, 87},
		"GC":      {"iptables ip6tables", 12, 12, 9, 215},
		"DEL":     {"", 16, 22, 2, 141},
	}},
	{"bridge", "bridge", same(bridge(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 21, 21, 1, 158},
		"CHECK":   {"host-local", 9, 9, 3, 105},
		"STATUS":  {"host-local", 1, 1, 0, 66},
		"GC":      {"host-local", 7, 7, 5, 101},
		"DEL":     {"host-local", 12, 12, 2, 116},
	}},
	{"bridge, masquerade", "bridge", same(bridge(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 25, 27, 3, 179},
		"CHECK":   {"host-local", 14, 14, 5, 120},
		"STATUS":  {"host-local", 3, 3, 1, 80},
		"GC":      {"host-local", 7, 7, 5, 103},
		"DEL":     {"host-local", 14, 16, 1, 125},
	}},
	{"bridge, masquerade, two families", "bridge", same(bridge(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 31, 34, 4, 207},
		"CHECK":   {"host-local", 18, 18, 7, 133},
		"STATUS":  {"host-local", 3, 3, 1, 80},
		"GC":      {"host-local", 7, 7, 5, 101},
		"DEL":     {"host-local", 18, 21, 2, 134},
	}},
	{"bridge, masquerade by iptables, two families", "bridge", same(bridge(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local iptables-restore ip6tables-restore", 27, 27, 1, 345},
		"CHECK":   {"host-local iptables ip6tables", 12, 12, 4, 238},
		"STATUS":  {"host-local", 3, 3, 0, 128},
		"GC":      {"iptables ip6tables host-local", 7, 7, 5, 229},
		"DEL":     {"iptables-restore ip6tables-restore host-local", 14, 14, 2, 257},
	}},
	{"ptp", "ptp", same(ptp(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 23, 23, 0, 157},
		"CHECK":   {"host-local", 8, 8, 5, 105},
		"STATUS":  {"host-local", 0, 0, 0, 60},
		"GC":      {"host-local", 6, 6, 5, 111},
		"DEL":     {"host-local", 8, 8, 2, 109},
	}},
	{"ptp, masquerade", "ptp", same(ptp(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 27, 29, 2, 178},
		"CHECK":   {"host-local", 13, 13, 7, 121},
		"STATUS":  {"host-local", 2, 2, 1, 75},
		"GC":      {"host-local", 6, 6, 5, 111},
		"DEL":     {"host-local", 10, 12, 1, 121},
	}},
	{"ptp, masquerade, two families", "ptp", same(ptp(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 36, 39, 3, 217},
		"CHECK":   {"host-local", 17, 17, 9, 134},
		"STATUS":  {"host-local", 2, 2, 1, 74},
		"GC":      {"host-local", 6, 6, 5, 111},
		"DEL":     {"host-local", 14, 17, 2, 128},
	}},
	{"ptp, masquerade by iptables, two families", "ptp", same(ptp(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local iptables-restore ip6tables-restore", 32, 32, 0, 354},
		"CHECK":   {"iptables ip6tables host-local", 11, 11, 6, 236},
		"STATUS":  {"host-local", 2, 2, 0, 121},
		"GC":      {"iptables ip6tables host-local", 6, 6, 5, 225},
		"DEL":     {"iptables-restore ip6tables-restore host-local", 10, 10, 2, 247},
	}},
}

func one(port int) object { return portmap(port) }

func same(conf object) func(int) object {
	return func(int) object { return plugintest.Merge(conf) }
}
