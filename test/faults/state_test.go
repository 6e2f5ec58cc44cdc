package faults_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// state is what there is on a node, sorted: a thing a line, behind "host" or
// "container". Two nodes on which the same happened have the same state.
type state []string

// What is looked at of a host, and of a container, beside the switches.
var (
	ofHost      = []string{"links", "addresses", "routes", "rules", "nftables", "iptables-legacy"}
	ofContainer = []string{"links", "addresses", "routes", "rules"}
)

const (
	// switches are the sysctls that plugins write, and some that they must not.
	switches = `cd /proc/sys/net && grep -r . ipv4/ip_forward ipv4/tcp_keepalive_time \
ipv4/conf/*/forwarding ipv4/conf/*/route_localnet ipv4/conf/*/arp_notify ipv4/conf/*/arp_filter ipv4/conf/*/rp_filter \
ipv6/conf/*/forwarding ipv6/conf/*/accept_ra ipv6/conf/*/accept_dad ipv6/conf/*/disable_ipv6 \
ipv6/conf/*/keep_addr_on_down ipv6/conf/*/ndisc_notify ipv6/conf/*/proxy_ndp`

	// files are kept on the host. host-local's index, and the lock of those who make
	// the same interface, may be missing at any time; of what tells where to begin, or is
	// made from the rest, the content may differ.
	files = `find /run/hawser /run/cni /var/lib/cni ! -path '/var/lib/cni/networks/.hawser*' -printf '%M %p\n' \
! -name 'last_reserved_ip.*' -type f -exec grep -H '' {} +`
)

func (n *node) state() state {
	var s state
	add := func(where, text string) {
		for line := range strings.Lines(text) {
			line = element.ReplaceAllString(strings.TrimSpace(n.normal(line)), "$1")
			if !kernels.MatchString(line) {
				s = append(s, where+" "+line)
			}
		}
	}
	add("host", n.host.Snapshot(ofHost...))
	add("host", n.host.Cmd("sh", "-c", switches))
	add("host", n.host.Cmd("tc", "qdisc", "show"))
	add("host", n.host.Run(nstest.Program{Path: "sh", Args: []string{"-c", files}}).Stdout)
	add("container", n.conts[victim].Snapshot(ofContainer...))
	add("container", n.conts[victim].Cmd("sh", "-c", switches))
	slices.Sort(s)
	return s
}

var (
	macs = regexp.MustCompile(`\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
	// numbers differ from case to case, as a DHCP server's answer does. A namespace's cookie may be
	// missing: then it is known again by the others.
	numbers = regexp.MustCompile(`"(?:since|cookie|inode|device|link)": ?\d+,?|` +
		`"(?:ack|server|MAC)": ?"[^"]*",?|# handle \d+`)
	// element is one of a set, which nft lists in any order.
	element = regexp.MustCompile(`^(?:elements = \{ )?(.*?)(?:,| \})?$`)
	// kernels are addresses and routes that the kernel adds a little later.
	kernels = regexp.MustCompile(`fe80::|ff00::/8|dst=multicast|dst=[0-9a-f]*:.* protocol=kernel .*type=local`)
)

// normal is text without what differs from node to node.
func (n *node) normal(text string) string {
	for _, c := range n.conts {
		text = strings.ReplaceAll(text, `"`+c.Path+`"`, `"NETNS"`)
	}
	return numbers.ReplaceAllString(macs.ReplaceAllString(text, "MAC"), "")
}

// differs says what a state has more or less than it should. What is in shared may
// be there besides, and the bridge as it is half made.
func (s state) differs(want, shared state) error {
	var diff []string
	for _, line := range s {
		half := shared != nil && strings.Contains(line, "cni0")
		if !half && !slices.Contains(want, line) && !slices.Contains(shared, line) {
			diff = append(diff, "+ "+line)
		}
	}
	for _, line := range want {
		if !slices.Contains(s, line) && !superseded(line, shared) {
			diff = append(diff, "- "+line)
		}
	}
	if diff == nil {
		return nil
	}
	return errors.New(strings.Join(diff, "\n        "))
}

// superseded: a sysctl has one value only, so one that is shared replaces the one
// from before.
func superseded(line string, shared state) bool {
	key, _, ok := strings.Cut(line, ":")
	return ok && strings.Contains(key, " ipv") &&
		slices.ContainsFunc(shared, func(l string) bool { return strings.HasPrefix(l, key+":") })
}

func (s state) outside() state { return s.without("container ") }

// without leaves out the lines with a text.
func (s state) without(text string) state {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool { return strings.Contains(line, text) })
}
