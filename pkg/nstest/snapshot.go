package nstest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"golang.org/x/sys/unix"
)

// lists has the sections of a snapshot that come from ip(8), in their order: the commands without a family and for
// IPv6.
var lists = []struct{ name, both, six string }{
	{"links", "link", ""}, {"addresses", "addr", ""}, {"routes", "route show table all", "route show table all"},
	{"rules", "rule", "rule"},
}

// others has the sections that follow those of lists.
var others = []struct {
	name string
	read func(h *Host) []string
}{{"nftables", (*Host).ruleset}, {"iptables-legacy", (*Host).legacy}, {"sysctls", (*Host).sysctls}}

// Snapshot renders the state of the network namespace as sorted text, for comparing before and after: links, addresses,
// routes, rules, nftables (which shows iptables-nft too), iptables-legacy and sysctls. Names select sections.
// It omits values that change by themselves (indexes, counters, timers, carrier, progress of address detection), and
// addresses and routes that the kernel adds some time after a link is up or has an IPv6 address.
func (h *Host) Snapshot(names ...string) string {
	ginkgo.GinkgoHelper()
	var b strings.Builder
	write := func(name string, lines []string) {
		fmt.Fprintf(&b, "## %s\n", name)
		for _, line := range lines {
			b.WriteString(line + "\n")
		}
	}
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	var both, six []string
	for _, l := range lists {
		if wanted(l.name) {
			both = append(both, l.both)
			if l.six != "" {
				six = append(six, l.six)
			}
		}
	}
	listed, listed6 := h.listed(both, "-j", "-d"), h.listed(six, "-6", "-j", "-d")
	for _, l := range lists {
		if wanted(l.name) {
			lines := <-listed
			if l.six != "" {
				lines = append(lines, <-listed6...)
			}
			write(l.name, lines)
		}
	}
	for _, s := range others {
		if wanted(s.name) {
			write(s.name, s.read(h))
		}
	}
	return b.String()
}

// byItself reports whether the kernel adds an address or a route by itself: the link-local address of the MAC address,
// and the routes that a kernel worker adds for an IPv6 address or a link.
func byItself(o map[string]any) bool {
	local, _ := o["local"].(string)
	dst, _ := o["dst"].(string)
	switch {
	case strings.HasPrefix(local, "fe80:"):
		return strings.Contains(local, "ff:fe")
	case strings.Contains(dst, ":"):
		return dst == "fe80::/64" || o["type"] == "local" || o["type"] == "anycast" || o["type"] == "multicast"
	}
	return false
}

// listed runs several list commands of ip(8) in one process. It returns the objects of each command, one per line.
func (h *Host) listed(commands []string, options ...string) <-chan []string {
	ginkgo.GinkgoHelper()
	all := make(chan []string, len(commands))
	if len(commands) == 0 {
		return all
	}
	out := h.Run(Program{Path: "ip", Args: append(options, "-batch", "-"), Stdin: strings.Join(commands, "\n") + "\n"})
	if out.Exit != 0 {
		ginkgo.Fail(fmt.Sprintf("%s: ip -batch: exit %d: %s", h.Name, out.Exit, out.Stderr))
	}
	for decoder := json.NewDecoder(strings.NewReader(out.Stdout)); len(all) < len(commands); {
		var list []map[string]any
		if err := decoder.Decode(&list); err != nil {
			ginkgo.Fail(fmt.Sprintf("%s: ip -batch %q: %v\n%s", h.Name, commands, err, out.Stdout))
		}
		lines := make([]string, 0, len(list))
		for _, o := range list {
			if o["addr_info"] != nil { // the other values are in the section of links
				o = map[string]any{"ifname": o["ifname"], "addr_info": o["addr_info"]}
			}
			if line := render(o); line != "" && !byItself(o) {
				lines = append(lines, line)
			}
		}
		slices.Sort(lines)
		all <- lines
	}
	return all
}

// volatile has the keys of ip(8)'s output that a snapshot omits.
var volatile = []string{
	"ifindex", "link_index", "operstate", "state", "qdisc", "bridge_id", "root_id", "root_port", "root_path_cost",
	"designated_bridge", "designated_root", "designated_port", "no", "id", "topology_change",
	"topology_change_detected", "hello_timer", "tcn_timer", "topology_change_timer", "gc_timer", "hold_timer",
	"message_age_timer", "forward_delay_timer", "topology_change_ack", "config_pending", "valid_life_time",
	"preferred_life_time", "tentative", "dadfailed", "used", "expires", "fdb_n_learned",
}

// carrier has the link flags that depend on the other end of a cable.
var carrier = []string{"NO-CARRIER", "LOWER_UP", "M-DOWN", "RUNNING", "linkdown"}

func render(o map[string]any) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if slices.Contains(volatile, key) {
			continue
		}
		if word := renderValue(o[key]); word != "" {
			words = append(words, key+"="+word)
		}
	}
	return strings.Join(words, " ")
}

func renderValue(v any) string {
	switch v := v.(type) {
	case map[string]any:
		return "{" + render(v) + "}"
	case []any:
		var words []string
		for _, e := range v {
			if s, ok := e.(string); ok && slices.Contains(carrier, s) {
				continue
			}
			if o, ok := e.(map[string]any); ok && byItself(o) {
				continue
			}
			if word := renderValue(e); word != "{}" {
				words = append(words, word)
			}
		}
		slices.Sort(words)
		return "[" + strings.Join(words, " ") + "]"
	case float64:
		return json.Number(fmt.Sprintf("%.0f", v)).String()
	default:
		return fmt.Sprint(v)
	}
}

func (h *Host) ruleset() []string {
	ginkgo.GinkgoHelper()
	if _, err := exec.LookPath("nft"); err != nil {
		return []string{"unknown: " + err.Error()}
	}
	for end := time.Now().Add(Patience(Hang)); ; {
		rules := lines(h.Cmd("nft", "-s", "list", "ruleset"))
		if !twice(rules) || time.Now().After(end) {
			return rules
		}
	}
}

// twice reports whether a ruleset has an element twice, which the kernel may list while a worker resizes the set.
func twice(rules []string) bool {
	last := ""
	for _, line := range rules {
		line = strings.TrimRight(strings.TrimPrefix(strings.TrimSpace(line), "elements = { "), ", }")
		if line == last && strings.Contains(line, `comment "`) && !strings.HasPrefix(line, "comment") {
			return true
		}
		last = line
	}
	return false
}

// legacy lists the rules and the user-defined chains of the tables that exist. Reading a table that does not exist
// would create it.
func (h *Host) legacy() []string {
	ginkgo.GinkgoHelper()
	var out []string
	for _, family := range []string{"ip", "ip6"} {
		var names []byte
		h.Do(func() { names, _ = os.ReadFile("/proc/thread-self/net/" + family + "_tables_names") })
		for _, table := range lines(string(names)) {
			for _, line := range lines(h.Cmd(family+"tables-legacy", "-t", table, "-S")) {
				if !strings.HasPrefix(line, "-P ") || !strings.HasSuffix(line, " ACCEPT") {
					out = append(out, family+" "+table+" "+line)
				}
			}
		}
	}
	return out
}

// sysctls lists the forwarding switches and every per-interface value of IPv4 and IPv6.
func (h *Host) sysctls() []string {
	ginkgo.GinkgoHelper()
	var out []string
	h.Do(func() {
		paths := []string{"/proc/sys/net/ipv4/ip_forward"}
		for _, family := range []string{"ipv4", "ipv6"} {
			found, _ := filepath.Glob("/proc/sys/net/" + family + "/conf/*/*")
			paths = append(paths, found...)
		}
		for _, path := range paths {
			// Some are write-only, and stable_secret cannot be read before it is set.
			if value, ok := readSysctl(path); ok {
				out = append(out, strings.TrimPrefix(path, "/proc/sys/")+"="+strings.TrimSpace(value))
			}
		}
	})
	return out
}

// readSysctl is os.ReadFile without the runtime's poller, which takes most of the time for so many small files.
func readSysctl(path string) (string, bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	buf := make([]byte, 512)
	n, err := unix.Read(fd, buf)
	return string(buf[:max(n, 0)]), err == nil
}

// Files lists the files below these directories of the Host, one path per line with its mode and, for a regular file,
// its content.
func (h *Host) Files(dirs ...string) string {
	ginkgo.GinkgoHelper()
	var b strings.Builder
	h.Do(func() {
		for _, dir := range dirs {
			_ = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
				if err != nil || IsEvidence(path) && dir != evidence {
					return nil
				}
				content := ""
				if info.Mode().IsRegular() {
					data, _ := os.ReadFile(path)
					content = fmt.Sprintf(" %q", data)
				}
				fmt.Fprintf(&b, "%s %s%s\n", path, info.Mode(), content)
				return nil
			})
		}
	})
	return b.String()
}

// evidence is the directory with the records of failed calls.
const evidence = "/run/hawser/failures"

// IsEvidence reports whether a file or directory may exist only because of failed calls, and therefore does not belong
// to an attachment.
func IsEvidence(path string) bool {
	return path == "/run/hawser" || path == evidence || strings.HasPrefix(path, evidence+"/")
}

func lines(s string) []string {
	s = strings.TrimRight(s, "\n")
	if s == "" {
		return nil
	}
	return strings.Split(s, "\n")
}

// Missing returns the lines of a that are not in b, each as often as it is missing.
func Missing(a, b []string) (lines []string) {
	counts := map[string]int{}
	for _, line := range b {
		counts[line]++
	}
	for _, line := range a {
		if counts[line]--; counts[line] < 0 {
			lines = append(lines, line)
		}
	}
	return lines
}
