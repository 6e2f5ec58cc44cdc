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
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 3, 3, 1, 59},
		"CHECK":   {"", 2, 2, 1, 55},
		"STATUS":  {"", 0, 0, 0, 28},
		"GC":      {"", 0, 0, 0, 28},
		"DEL":     {"", 2, 2, 0, 54},
	}},
	{"host-local, two families", "host-local", same(ipam(dual)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"", 0, 0, 0, 89},
		"CHECK":   {"", 0, 0, 0, 56},
		"STATUS":  {"", 0, 0, 0, 51},
		"GC":      {"", 0, 0, 0, 84},
		"DEL":     {"", 0, 0, 0, 70},
	}},
	{"tuning, a sysctl and the MAC", "tuning", tuning, true, 200, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 32},
		"ADD":     {"", 3, 3, 0, 106},
		"CHECK":   {"", 1, 1, 0, 57},
		"STATUS":  {"", 0, 0, 0, 36},
		"GC":      {"", 0, 0, 0, 55},
		"DEL":     {"", 2, 2, 0, 107},
	}},
	{"portmap", "portmap", one, true, 128, gcAndAdd, map[string]cost{
		"VERSION": {"", 0, 0, 0, 32},
		"ADD":     {"", 23, 28, 10, 193},
		"CHECK":   {"", 33, 33, 11, 186},
		"STATUS":  {"", 18, 18, 8, 109},
		"GC":      {"", 12, 12, 9, 119},
		"DEL":     {"", 19, 24, 2, 159},
	}},
	{"portmap, ten ports", "portmap", func(port int) object { return ports(port, ten...) }, true, 128, gcAndAdd, map[string]cost{
		"VERSION": {"", 0, 0, 0, 32},
		"ADD":     {"", 25, 30, 12, 204},
		"CHECK":   {"", 33, 69, 11, 223},
		"STATUS":  {"", 18, 18, 8, 110},
		"GC":      {"", 12, 12, 9, 121},
		"DEL":     {"", 21, 134, 4, 242},
	}},
	{"portmap, iptables", "portmap", func(port int) object { return portmap(port, object{"backend": "iptables"}) }, true, 128, gcAndAdd, map[string]cost{
		"VERSION": {"", 0, 0, 0, 32},
		"ADD":     {"iptables-restore ip6tables-restore", 18, 18, 3, 364},
		"CHECK":   {"iptables ip6tables", 11, 11, 1, 266},
		"STATUS":  {"", 0, 0, 0, 88},
		"GC":      {"iptables ip6tables", 12, 12, 9, 263},
		"DEL":     {"", 16, 22, 2, 157},
	}},
	{"bridge", "bridge", same(bridge(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 21, 21, 1, 208},
		"CHECK":   {"host-local", 9, 9, 3, 133},
		"STATUS":  {"host-local", 1, 1, 0, 91},
		"GC":      {"host-local", 7, 7, 5, 129},
		"DEL":     {"host-local", 12, 12, 2, 148},
	}},
	{"bridge, masquerade", "bridge", same(bridge(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 25, 27, 3, 233},
		"CHECK":   {"host-local", 14, 14, 5, 154},
		"STATUS":  {"host-local", 3, 3, 1, 105},
		"GC":      {"host-local", 7, 7, 5, 129},
		"DEL":     {"host-local", 14, 16, 1, 160},
	}},
	{"bridge, masquerade, two families", "bridge", same(bridge(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 33, 36, 4, 286},
		"CHECK":   {"host-local", 18, 18, 7, 171},
		"STATUS":  {"host-local", 3, 3, 1, 105},
		"GC":      {"host-local", 7, 7, 5, 130},
		"DEL":     {"host-local", 18, 21, 2, 173},
	}},
	{"bridge, masquerade by iptables, two families", "bridge", same(bridge(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local iptables-restore ip6tables-restore", 27, 27, 1, 430},
		"CHECK":   {"host-local iptables ip6tables", 12, 12, 4, 300},
		"STATUS":  {"host-local", 3, 3, 0, 154},
		"GC":      {"iptables ip6tables host-local", 7, 7, 5, 282},
		"DEL":     {"iptables-restore ip6tables-restore host-local", 14, 14, 2, 320},
	}},
	{"ptp", "ptp", same(ptp(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 23, 23, 0, 199},
		"CHECK":   {"host-local", 8, 8, 5, 132},
		"STATUS":  {"host-local", 0, 0, 0, 82},
		"GC":      {"host-local", 6, 6, 5, 132},
		"DEL":     {"host-local", 8, 8, 2, 139},
	}},
	{"ptp, masquerade", "ptp", same(ptp(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 27, 29, 2, 226},
		"CHECK":   {"host-local", 13, 13, 7, 153},
		"STATUS":  {"host-local", 2, 2, 1, 96},
		"GC":      {"host-local", 6, 6, 5, 132},
		"DEL":     {"host-local", 10, 12, 1, 151},
	}},
	{"ptp, masquerade, two families", "ptp", same(ptp(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 36, 39, 3, 275},
		"CHECK":   {"host-local", 17, 17, 9, 170},
		"STATUS":  {"host-local", 2, 2, 1, 96},
		"GC":      {"host-local", 6, 6, 5, 132},
		"DEL":     {"host-local", 14, 17, 2, 164},
	}},
	{"ptp, masquerade by iptables, two families", "ptp", same(ptp(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local iptables-restore ip6tables-restore", 32, 32, 0, 439},
		"CHECK":   {"iptables ip6tables host-local", 11, 11, 6, 301},
		"STATUS":  {"host-local", 2, 2, 0, 144},
		"GC":      {"iptables ip6tables host-local", 6, 6, 5, 278},
		"DEL":     {"iptables-restore ip6tables-restore host-local", 10, 10, 2, 309},
	}},
}

func one(port int) object { return portmap(port) }

func same(conf object) func(int) object {
	return func(int) object { return plugintest.Merge(conf) }
}
