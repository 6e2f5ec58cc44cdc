package faults_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// switches are the sysctls that plugins write, and some that they must not.
var switches = []string{"ipv4/ip_forward", "ipv4/tcp_keepalive_time",
	"ipv4/conf/*/forwarding", "ipv4/conf/*/route_localnet", "ipv4/conf/*/arp_notify", "ipv4/conf/*/arp_filter",
	"ipv4/conf/*/rp_filter",
	"ipv6/conf/*/forwarding", "ipv6/conf/*/accept_ra", "ipv6/conf/*/accept_dad", "ipv6/conf/*/disable_ipv6",
	"ipv6/conf/*/keep_addr_on_down", "ipv6/conf/*/ndisc_notify", "ipv6/conf/*/proxy_ndp"}

func sysctls(h *nstest.Host) string {
	var b strings.Builder
	h.Do(func() {
		const dir = "/proc/sys/net/"
		for _, pattern := range switches {
			paths, _ := filepath.Glob(dir + pattern)
			for _, path := range paths {
				if value, err := os.ReadFile(path); err == nil { // else its link is gone
					b.WriteString(strings.TrimPrefix(path, dir) + ":" + string(value))
				}
			}
		}
	})
	return b.String()
}

// files are kept on the host, each with its mode and its lines. host-local's index, and the lock of
// those who make the same interface, may be missing at any time; of what tells where to begin, or is
// made from the rest, the content may differ.
func files(h *nstest.Host) string {
	var b strings.Builder
	kept := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(path, "/var/lib/cni/networks/.hawser") {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		fmt.Fprintln(&b, info.Mode(), path)
		if info.Mode().IsRegular() && !strings.HasPrefix(entry.Name(), "last_reserved_ip.") {
			content, _ := os.ReadFile(path)
			for line := range strings.Lines(string(content)) {
				fmt.Fprintf(&b, "%s:%s\n", path, strings.TrimSuffix(line, "\n"))
			}
		}
		return nil
	}
	h.Do(func() {
		for _, dir := range []string{"/run/hawser", "/run/cni", "/var/lib/cni"} {
			_ = filepath.WalkDir(dir, kept) // which returns none
		}
	})
	return b.String()
}

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
	add("host", sysctls(n.host))
	add("host", n.host.Cmd("tc", "qdisc", "show"))
	add("host", files(n.host))
	add("container", n.conts[victim].Snapshot(ofContainer...))
	add("container", sysctls(n.conts[victim]))
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

// superseded: a sysctl has one value only, so one that is shared replaces the one from before.
func superseded(line string, shared state) bool {
	key, _, ok := strings.Cut(line, ":")
	return ok && strings.Contains(key, " ipv") &&
		slices.ContainsFunc(shared, func(l string) bool { return strings.HasPrefix(l, key+":") })
}

func (s state) outside() state { return s.without("container ") }

func (s state) without(text string) state {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool { return strings.Contains(line, text) })
}
