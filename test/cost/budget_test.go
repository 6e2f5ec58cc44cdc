package cost_test

import (
	"strings"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

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
	// With iptables the records say who has a host port and who shares a chain.
	readsAll = map[string]growth{"GC": {true, true, true}, "ADD": {calls: true, read: true},
		"DEL": {calls: true, read: true}}
	// An attachment that has no element at its address may have one at another.
	gcAndDel = map[string]growth{"GC": {true, true, true}, "DEL": {calls: true, received: true}}
	ten      = []string{"tcp", "udp", "tcp", "udp", "tcp", "udp", "tcp", "udp", "tcp", "udp"}
)

var budgets = []budget{
	{"loopback", "loopback", same(nil), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"", 3, 3, 1, 72},
		"CHECK":   {"", 2, 2, 1, 67},
		"STATUS":  {"", 0, 0, 0, 29},
		"GC":      {"", 0, 0, 0, 29},
		"DEL":     {"", 2, 2, 0, 65},
	}},
	{"host-local, two families", "host-local", same(ipam(dual)), false, 48, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"", 0, 0, 0, 90},
		"CHECK":   {"", 0, 0, 0, 63},
		"STATUS":  {"", 0, 0, 0, 54},
		"GC":      {"", 0, 0, 0, 91},
		"DEL":     {"", 0, 0, 0, 71},
	}},
	{"tuning, a sysctl and the MAC", "tuning", tuning, true, 200, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 33},
		"ADD":     {"", 3, 3, 0, 126},
		"CHECK":   {"", 1, 1, 0, 68},
		"STATUS":  {"", 0, 0, 0, 36},
		"GC":      {"", 0, 0, 0, 64},
		"DEL":     {"", 2, 2, 0, 106},
	}},
	{"portmap", "portmap", one, true, 128, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 33},
		"ADD":     {"", 32, 37, 12, 282},
		"CHECK":   {"", 33, 33, 11, 208},
		"STATUS":  {"", 18, 18, 8, 113},
		"GC":      {"", 14, 14, 11, 130},
		"DEL":     {"", 19, 24, 2, 160},
	}},
	{"portmap, ten ports", "portmap", func(port int) object { return ports(port, ten...) }, true, 128, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 33},
		"ADD":     {"", 34, 93, 14, 354},
		"CHECK":   {"", 33, 69, 11, 244},
		"STATUS":  {"", 18, 18, 8, 113},
		"GC":      {"", 14, 14, 11, 130},
		"DEL":     {"", 21, 134, 4, 248},
	}},
	{"portmap, iptables", "portmap", func(port int) object { return portmap(port, object{"backend": "iptables"}) }, true, 128, readsAll, map[string]cost{
		"VERSION": {"", 0, 0, 0, 33},
		"ADD":     {"ip6tables-restore iptables-restore", 22, 22, 5, 446},
		"CHECK":   {strings.Repeat("ip6tables ", 8) + strings.Repeat("iptables ", 7) + "iptables", 11, 11, 1, 850},
		"STATUS":  {"", 0, 0, 0, 96},
		"GC":      {"ip6tables ip6tables iptables iptables", 14, 14, 11, 335},
		"DEL":     {"", 16, 22, 2, 195},
	}},
	{"bridge", "bridge", same(bridge(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 17, 17, 1, 251},
		"CHECK":   {"host-local", 12, 12, 3, 151},
		"STATUS":  {"host-local", 1, 1, 0, 76},
		"GC":      {"host-local", 7, 7, 5, 117},
		"DEL":     {"host-local", 14, 14, 2, 140},
	}},
	{"bridge, masquerade", "bridge", same(bridge(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 21, 23, 3, 278},
		"CHECK":   {"host-local", 17, 17, 5, 176},
		"STATUS":  {"host-local", 3, 3, 1, 91},
		"GC":      {"host-local", 7, 7, 5, 117},
		"DEL":     {"host-local", 16, 18, 1, 149},
	}},
	{"bridge, masquerade, two families", "bridge", same(bridge(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 27, 30, 4, 333},
		"CHECK":   {"host-local", 21, 21, 7, 195},
		"STATUS":  {"host-local", 3, 3, 1, 92},
		"GC":      {"host-local", 7, 7, 5, 117},
		"DEL":     {"host-local", 20, 23, 2, 159},
	}},
	{"bridge, masquerade by iptables, two families", "bridge", same(bridge(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local ip6tables-restore iptables-restore", 23, 23, 1, 465},
		"CHECK":   {"host-local ip6tables ip6tables ip6tables iptables iptables iptables", 15, 15, 4, 461},
		"STATUS":  {"host-local", 3, 3, 0, 115},
		"GC":      {"host-local ip6tables ip6tables iptables iptables", 7, 7, 5, 334},
		"DEL":     {"host-local", 23, 29, 6, 195},
	}},
	{"ptp", "ptp", same(ptp(single)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 14, 14, 0, 211},
		"CHECK":   {"host-local", 11, 11, 5, 148},
		"STATUS":  {"host-local", 0, 0, 0, 60},
		"GC":      {"host-local", 6, 6, 5, 126},
		"DEL":     {"host-local", 11, 11, 2, 143},
	}},
	{"ptp, masquerade", "ptp", same(ptp(single, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 18, 20, 2, 238},
		"CHECK":   {"host-local", 16, 16, 7, 173},
		"STATUS":  {"host-local", 2, 2, 1, 73},
		"GC":      {"host-local", 6, 6, 5, 126},
		"DEL":     {"host-local", 13, 15, 1, 152},
	}},
	{"ptp, masquerade, two families", "ptp", same(ptp(dual, masquerade)), false, 0, gc, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local", 29, 32, 3, 348},
		"CHECK":   {"host-local", 20, 20, 9, 192},
		"STATUS":  {"host-local", 2, 2, 1, 74},
		"GC":      {"host-local", 6, 6, 5, 126},
		"DEL":     {"host-local", 17, 20, 2, 162},
	}},
	{"ptp, masquerade by iptables, two families", "ptp", same(ptp(dual, iptables)), false, 0, gcAndDel, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		"ADD":     {"host-local ip6tables-restore iptables-restore", 23, 23, 0, 455},
		"CHECK":   {"host-local ip6tables ip6tables ip6tables iptables iptables iptables", 14, 14, 6, 458},
		"STATUS":  {"host-local", 2, 2, 0, 96},
		"GC":      {"host-local ip6tables ip6tables iptables iptables", 6, 6, 5, 332},
		"DEL":     {"host-local", 20, 26, 6, 186},
	}},
}

func one(port int) object { return portmap(port) }

func same(conf object) func(int) object {
	return func(int) object { return plugintest.Merge(conf) }
}
