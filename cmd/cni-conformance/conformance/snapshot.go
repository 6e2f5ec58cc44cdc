package conformance

import (
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

// snapshot is the state of a host or a container: lines with a section's name first. Values that change by themselves
// are absent.
type snapshot []string

// diff returns the lines that only one of the snapshots has.
func (s snapshot) diff(now snapshot) (lines []string) {
	for _, line := range s {
		hasFiles := func(l string) bool { return strings.HasPrefix(l, line+"/") } // an empty directory before
		if !slices.Contains(now, line) && !slices.ContainsFunc(now, hasFiles) {
			lines = append(lines, "missing: "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(s, line) {
			lines = append(lines, "left: "+line)
		}
	}
	return lines
}

// only returns the lines of some sections.
func (s snapshot) only(sections ...string) (some snapshot) {
	for _, line := range s {
		if slices.ContainsFunc(sections, func(name string) bool { return strings.HasPrefix(line, name+" ") }) {
			some = append(some, line)
		}
	}
	return some
}

// hostState returns the state of the host, with files and processes.
func (w *world) hostState() snapshot {
	return slices.Concat(w.netState(""), w.rules(), w.files(), processes())
}

// netState returns the links, addresses, routes and rules of a namespace.
func (w *world) netState(netns string) (s snapshot) {
	for _, l := range w.listing(netns, "-d", "link") {
		info, _ := l["linkinfo"].(object)
		mac := text(l, "address")
		if text(info, "info_kind") == "bridge" { // it follows the ports
			mac = ""
		}
		s = append(s, fmt.Sprintf("link %s %s mac %s mtu %v master %v up %t", text(l, "ifname"),
			text(info, "info_kind"), mac, l["mtu"], l["master"], isUp(l)))
	}
	for _, l := range w.listing(netns, "addr") {
		for _, a := range list(l, "addr_info") {
			if text(a, "scope") != "link" {
				s = append(s, fmt.Sprintf("address %s on %s", prefixOf(a), text(l, "ifname")))
			}
		}
	}
	for _, r := range w.routes(netns) {
		s = append(s, fmt.Sprintf("route %v via %v dev %v table %v type %v", r["dst"], r["gateway"], r["dev"],
			r["table"], r["type"]))
	}
	for _, family := range []string{"-4", "-6"} {
		for _, r := range w.listing(netns, family, "rule") {
			s = append(s, fmt.Sprintf("rule %s %v: from %v/%v to %v iif %v fwmark %v table %v", family, r["priority"],
				r["src"], r["srclen"], r["dst"], r["iif"], r["fwmark"], r["table"]))
		}
	}
	return s
}

func isUp(link object) bool { return slices.Contains(anyList(link["flags"]), any("UP")) }

func prefixOf(a object) string { return fmt.Sprintf("%v/%v", a["local"], a["prefixlen"]) }

// routes returns the routes of all tables without those that the kernel adds for addresses and links of IPv6.
func (w *world) routes(netns string) (all []object) {
	for _, family := range []string{"-4", "-6"} {
		for _, r := range w.listing(netns, family, "-d", "route", "show", "table", "all") {
			byKernel := r["type"] != "unicast" || strings.HasPrefix(text(r, "dst"), "fe80:")
			if family == "-4" || !byKernel {
				all = append(all, r)
			}
		}
	}
	return all
}

// listing returns the output of ip(8) as objects.
func (w *world) listing(netns string, args ...string) (all []object) {
	args = append([]string{"-j"}, args...)
	if netns != "" {
		args = append([]string{"-n", netns}, args...)
	}
	out, err := command("", "ip", args...)
	w.noError(err)
	if strings.TrimSpace(out) == "" {
		return nil
	}
	w.noError(json.Unmarshal([]byte(out), &all))
	return slices.DeleteFunc(all, func(o object) bool { return len(o) == 0 })
}

// rules returns the queueing disciplines and the packet filter.
func (w *world) rules() (s snapshot) {
	add := func(section, name string, args ...string) {
		if _, err := exec.LookPath(name); err != nil {
			return
		}
		out, err := command("", name, args...)
		if err != nil {
			return // the kernel or the namespace lacks it
		}
		chain := ""
		for line := range strings.Lines(out) {
			line = strings.TrimSpace(line)
			if strings.HasSuffix(line, "{") { // the same rule of two chains is two lines
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
			add("iptables", family+"tables-legacy-save")
		}
	}
	return s
}

// files lists what is below the directories in memory.
func (w *world) files() (s snapshot) {
	for _, dir := range w.Subject.Options.inMemory() {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
			case path == own || path == netnsDir:
				return fs.SkipDir
			case slices.ContainsFunc(w.Subject.Options.Ignore, func(pattern string) bool {
				ok, _ := filepath.Match(pattern, path)
				return ok
			}):
				if d.IsDir() {
					return fs.SkipDir
				}
			case !d.IsDir() || isEmpty(path):
				s = append(s, "file "+path)
			}
			return nil
		})
	}
	return s
}

func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

// processes lists the names of the processes in the case's PID namespace, without zombies.
func processes() (s snapshot) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		_, after, ok := strings.Cut(string(data), ") ")
		if err == nil && ok && !strings.HasPrefix(after, "Z") && path != "/proc/1/stat" {
			before, _, _ := strings.Cut(string(data), ") ")
			s = append(s, "process "+before+")")
		}
	}
	return s
}

// namespace returns the name of the container's namespace for ip(8), or "" for the host.
func (a *attachment) namespace() string {
	if a == nil {
		return ""
	}
	return a.id
}

// link returns a link of a container or, if a is nil, of the host; nil if it does not exist.
func (w *world) link(a *attachment, name string) object {
	for _, l := range w.listing(a.namespace(), "-d", "addr") {
		if l["ifname"] == name {
			return l
		}
	}
	return nil
}

// links returns the names of the links of a container or, if a is nil, of the host.
func (w *world) links(a *attachment) (names []string) {
	for _, l := range w.listing(a.namespace(), "link") {
		names = append(names, text(l, "ifname"))
	}
	return names
}

// warmHost attaches and detaches a container, so that what may stay exists, and returns the host's state.
func (w *world) warmHost() snapshot {
	w.finish(w.attach("warm"))
	return w.hostState()
}

// same checks that two states are equal.
func (w *world) same(before, now snapshot, what string) {
	const most = 12
	diff := before.diff(now)
	if n := len(diff); n > most {
		diff = append(diff[:most:most], fmt.Sprintf("and %d more lines", n-most))
	}
	w.expect(len(diff) == 0, "%s:\n    %s", what, strings.Join(diff, "\n    "))
}

// settles checks that the host returns to its state before. It waits, because the kernel removes a namespace and its
// links in the background.
func (w *world) settles(before snapshot, when string) {
	w.settlesTo(before, w.hostState, when)
}

// settlesTo is settles for the part of the host's state that state returns.
func (w *world) settlesTo(before snapshot, state func() snapshot, when string) {
	const limit = 20 * time.Second
	now := state()
	for end := time.Now().Add(limit); len(before.diff(now)) > 0 && time.Now().Before(end); now = state() {
		<-time.After(100 * time.Millisecond)
	}
	w.same(before, now, when+", the host differs from before ADD")
}

// bothStates returns the states of the host and of a container.
func (w *world) bothStates(a *attachment) snapshot {
	return slices.Concat(w.hostState(), w.netState(a.id).in(a.id))
}

// in returns the lines with the name of their namespace.
func (s snapshot) in(netns string) (named snapshot) {
	for _, line := range s {
		named = append(named, line+", in "+netns)
	}
	return named
}
