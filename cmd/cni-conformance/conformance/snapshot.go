package conformance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// snapshot has a line for each object of a host or a container. A line begins with its section: link, address, route,
// rule, nftables, iptables, qdisc, file or process. It omits values that change by themselves.
type snapshot []string

// diff returns the lines that only one of the snapshots has: lines of s as missing, lines of now as left.
func (s snapshot) diff(now snapshot) (lines []string) {
	left := slices.Clone(now)
	for _, line := range s {
		hasFiles := func(l string) bool { return strings.HasPrefix(l, line+"/") } // line was an empty directory
		if i := slices.Index(left, line); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else if !slices.ContainsFunc(now, hasFiles) {
			lines = append(lines, "missing: "+line)
		}
	}
	for _, line := range left {
		lines = append(lines, "left: "+line)
	}
	return lines
}

// only returns the lines of these sections.
func (s snapshot) only(sections ...string) snapshot {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool {
		section, _, _ := strings.Cut(line, " ")
		return !slices.Contains(sections, section)
	})
}

// about returns the lines about a device, or if isAbout is false all other lines.
func (s snapshot) about(dev string, isAbout bool) snapshot {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool {
		return strings.Contains(line+" ", " dev "+dev+" ") != isAbout
	})
}

// hostState returns the state of the host, with files and processes.
func (w *world) hostState() snapshot {
	return slices.Concat(w.netState(""), w.rules(), w.files(), processes())
}

// bothStates returns a function that returns the states of the host and of a container.
func (w *world) bothStates(a *attachment) func() snapshot {
	return func() snapshot {
		all := w.hostState()
		for _, line := range w.netState(a.id) {
			all = append(all, line+", in "+a.id)
		}
		return all
	}
}

// netState returns the links, addresses, routes and rules of a namespace.
func (w *world) netState(netns string) (s snapshot) {
	add := func(section string, o object, keys ...string) {
		for _, key := range keys {
			if o[key] != nil && o[key] != "" {
				section += fmt.Sprintf(" %s %v", key, o[key])
			}
		}
		s = append(s, section)
	}
	for _, l := range w.listing(netns, "-d", "addr") {
		info, _ := l["linkinfo"].(object)
		l["dev"], l["kind"], l["up"] = l["ifname"], info["info_kind"], isUp(l)
		if l["kind"] == "bridge" { // its address changes with its ports
			delete(l, "address")
		}
		add("link", l, "dev", "kind", "address", "mtu", "master", "up")
		for _, a := range list(l, "addr_info") {
			if a["dev"] = l["dev"]; text(a, "scope") != "link" {
				add("address", a, "local", "prefixlen", "dev")
			}
		}
	}
	for _, family := range []string{"-4", "-6"} {
		for _, r := range w.listing(netns, family, "-d", "route", "show", "table", "all") {
			isByKernel := slices.Contains([]any{"anycast", "local", "multicast"}, r["type"]) ||
				strings.HasPrefix(text(r, "dst"), "fe80:") // added with an address
			r["gateway"] = strings.Join(gateways(r), " ")
			if family == "-4" || !isByKernel {
				add("route", r, "dst", "gateway", "dev", "table", "type")
			}
		}
		for _, r := range w.listing(netns, family, "rule") {
			if _, isByKernel := r["l3mdev"]; !isByKernel { // created with the first VRF, never removed
				add("rule "+family, r, "priority", "src", "srclen", "dst", "iif", "fwmark", "table")
			}
		}
	}
	return s
}

// gateways returns the gateways of a route and of its next hops. ip(8) lists a gateway of the other family under via.
func gateways(route object) (all []string) {
	for _, hop := range append(list(route, "nexthops"), route) {
		via, _ := hop["via"].(object)
		if gw := cmp.Or(text(hop, "gateway"), text(via, "host")); gw != "" {
			all = append(all, gw)
		}
	}
	return all
}

func isUp(link object) bool { return slices.Contains(anyList(link["flags"]), any("UP")) }

// listing returns the output of ip(8) as objects.
func (w *world) listing(netns string, args ...string) (all []object) {
	args = append([]string{"-j"}, args...)
	if netns != "" {
		args = append([]string{"-n", netns}, args...)
	}
	out, err := command("", "ip", args...)
	w.noError(err)
	w.noError(json.Unmarshal([]byte(cmp.Or(strings.TrimSpace(out), "[]")), &all))
	return slices.DeleteFunc(all, func(o object) bool { return len(o) == 0 })
}

// needPrograms skips the case if a program that reads the host's state is missing.
func (w *world) needPrograms(names ...string) {
	for _, name := range names {
		_, err := exec.LookPath(name)
		w.need(err == nil, "the program "+name+" is missing, without which the suite cannot compare the packet filter")
	}
}

// rules returns the queueing disciplines and the packet filter.
func (w *world) rules() (s snapshot) {
	add := func(section, name string, args ...string) {
		out, err := command("", name, args...)
		if err != nil {
			return // the program or the kernel's support is missing
		}
		chain := ""
		for line := range strings.Lines(out) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, ":") { // a chain, which has counters
				line, _, _ = strings.Cut(line, " [")
			}
			if strings.HasSuffix(line, "{") { // part of each line, because two chains may have equal rules
				chain = line
			}
			if line != "" && line != "}" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "qdisc noqueue") {
				s = append(s, section+" "+chain+" "+line)
			}
		}
	}
	add("qdisc", "tc", "qdisc", "show")
	add("nftables", "nft", "-s", "list", "ruleset")
	for _, family := range []string{"ip", "ip6"} {
		names, err := os.ReadFile("/proc/net/" + family + "_tables_names")
		if err == nil && len(names) > 0 { // reading a table that does not exist would create it
			w.needPrograms(family + "tables-legacy-save")
			add("iptables", family+"tables-legacy-save")
		}
	}
	return s
}

// files lists the files and the empty directories on each tmpfs.
func (w *world) files() (s snapshot) {
	for _, dir := range tmpfsDirs() {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if path == suiteDir || path == netnsDir {
				return fs.SkipDir
			}
			entries, _ := os.ReadDir(path) // a file has none
			if err == nil && len(entries) == 0 && !w.Subject.Options.Ignore.MatchString(path) {
				s = append(s, "file "+path)
			}
			return nil
		})
	}
	return s
}

// processes lists the names of the processes in the case's PID namespace, without zombies.
func processes() (s snapshot) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, _ := os.ReadFile(path)
		name, state, ok := strings.Cut(string(data), ") ")
		if ok && !strings.HasPrefix(state, "Z") && path != "/proc/1/stat" {
			s = append(s, "process "+name[strings.Index(name, "(")+1:])
		}
	}
	return s
}

// link returns a link of a container, or of the host if a has no ID; nil if it does not exist.
func (w *world) link(a *attachment, name string) object {
	for _, l := range w.listing(a.id, "-d", "addr") {
		if l["ifname"] == name {
			return l
		}
	}
	return nil
}

// addresses returns the addresses of a link, except link-local ones.
func addresses(link object) (all []string) {
	for _, addr := range list(link, "addr_info") {
		if text(addr, "scope") != "link" {
			all = append(all, fmt.Sprintf("%v/%v", addr["local"], addr["prefixlen"]))
		}
	}
	return all
}

// warmHost attaches and detaches a container, so that shared objects exist, and returns the host's state.
func (w *world) warmHost() snapshot {
	w.detach(w.attach())
	return w.hostState()
}

// unchanged calls do, and fails the case with the message if state then returns another snapshot than before.
func (w *world) unchanged(state func() snapshot, message string, do func()) {
	before := state()
	do()
	w.awaitNoDiff(message, func() []string { return before.diff(state()) })
}

// settles checks that the host returns to its state before.
func (w *world) settles(before snapshot, when string) {
	w.awaitNoDiff(when+", the host differs from before ADD", func() []string { return before.diff(w.hostState()) })
}

// added returns a function that lists new objects of the host. Other plugins' devices may disappear with a namespace.
func (w *world) added(before snapshot) func() []string {
	return func() []string {
		isMissing := func(line string) bool { return strings.HasPrefix(line, "missing: ") }
		return slices.DeleteFunc(before.diff(w.hostState()), isMissing)
	}
}

// remaining waits up to limit until diff returns nothing, because the kernel removes links in the background.
func remaining(limit time.Duration, diff func() []string) []string {
	lines := diff()
	for end := time.Now().Add(limit); len(lines) > 0 && time.Now().Before(end); lines = diff() {
		<-time.After(100 * time.Millisecond)
	}
	return lines
}

// awaitNoDiff fails the case if diff still returns a difference after 20 seconds.
func (w *world) awaitNoDiff(message string, diff func() []string) {
	lines := remaining(20*time.Second, diff)
	if n := len(lines); n > 12 {
		lines = append(lines[:12:12], fmt.Sprintf("and %d more lines", n-12))
	}
	w.expect(len(lines) == 0, "%s:\n    %s", message, strings.Join(lines, "\n    "))
}
