package tool

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// titleOf names a list.
func titleOf(l node.List) string {
	if l.File == "" {
		return fmt.Sprintf("network %q, as a runtime remembers it", l.Name)
	}
	return fmt.Sprintf("%s, network %q", l.File, l.Name)
}

// missingPlugins are programs that a list names and no runtime can start.
func missingPlugins(f *facts) {
	seen := map[string]bool{}
	for _, list := range f.all {
		for _, plugin := range typesOf(list) {
			err := f.programs[plugin].err
			if err == nil || plugin == "" || seen[plugin] {
				continue
			}
			seen[plugin] = true
			f.say("missing-plugin", "%s: %v", titleOf(list), err)
		}
	}
}

// badLists are lists that no runtime can use, or not as it is written there.
func badLists(f *facts) {
	for _, err := range f.damaged {
		f.say("bad-file", "%v", err)
	}
	if len(f.lists) == 0 && len(f.problems) == 0 {
		f.say("no-list", "no network list in %s can be used", f.ConfDir)
	}
	files := map[string]string{}
	for _, list := range f.lists {
		noType := func(e node.Entry) bool { return !cni.ValidType(e.Type) }
		switch {
		case !cni.ValidName(list.Name):
			f.say("bad-file", "%s: name %q is not one of letters, digits, dots, dashes and underscores", list.File,
				list.Name)
		case len(list.Plugins) == 0 || slices.ContainsFunc(list.Plugins, noType):
			f.say("bad-file", "%s: an entry has no type, or there is none", titleOf(list))
		case files[list.Name] != "":
			f.say("name-twice", "%s: %s has the name too", titleOf(list), files[list.Name])
		}
		files[list.Name] = list.File
	}
}

// noSubnets are files that flannel does not find: each ADD fails.
func noSubnets(f *facts) {
	for _, list := range f.lists {
		for _, e := range list.Plugins {
			if _, err := os.Stat(e.SubnetFile); e.SubnetFile != "" && err != nil {
				f.say("no-subnet", "%s: flannel takes the node's subnet from a file: %v", titleOf(list), err)
			}
		}
	}
}

// unknownVersions are those of lists that a plugin of theirs does not know.
func unknownVersions(f *facts) {
	for _, list := range f.lists {
		for _, plugin := range typesOf(list) {
			known := f.programs[plugin].versions
			if list.CNIVersion == "" || len(known) == 0 || slices.Contains(known, list.CNIVersion) {
				continue
			}
			f.say("unknown-version", "%s: cniVersion %q is unknown to %s, which knows %s", titleOf(list),
				list.CNIVersion, f.programs[plugin].path, strings.Join(known, ", "))
			break
		}
	}
}

// refusedLists are those that our plugins refuse: an error where ours are installed.
func refusedLists(f *facts) {
	for _, list := range f.lists {
		if list.CNIVersion != "" && !cni.Supports(list.CNIVersion) {
			continue // unknown-version
		}
		for i, e := range list.Plugins {
			for _, plugin := range []string{e.Type, e.IPAM.Type} {
				p, isOurs := f.Own(plugin)
				if !isOurs || !f.Has(e.Type) { // other plugins complete their ipam
					continue
				}
				found := p.CheckConfig(list.Conf(i, nil), i == 0)
				if k := slices.IndexFunc(found, func(f skel.Finding) bool { return !f.Warning }); k >= 0 {
					id := map[bool]string{true: "refused-list", false: "refused-later"}[f.programs[plugin].kind == ours]
					key := spot{key: e.Key}.path(found[k].Key)
					f.say(id, "%s: %s: %s: %s", titleOf(list), plugin, key, found[k].Reason)
				}
			}
		}
	}
}

// fullRanges are sets of which more than nine tenths are lent.
func fullRanges(f *facts) {
	for _, list := range f.lists {
		for _, u := range list.Usage(f.attached) {
			if len(u.Set) == 0 || u.Used*10 < u.Size*9 {
				continue
			}
			id := "nearly-full-range"
			if u.Used >= u.Size {
				id = "full-range"
			}
			said := f.say(id, "%s: %.0f of %.0f addresses of %s are lent", titleOf(list), u.Used, u.Size,
				subnetsOf(u.Set))
			isOf := func(a *node.Attachment) bool { return a.Network == list.Name && a.Orphan == "" }
			if u.Size == 1 && slices.ContainsFunc(f.attached, isOf) {
				said.Severity = doubtful // it is meant for one container
			}
		}
	}
}

func subnetsOf(set ranges.Set) string {
	var names []string
	for _, r := range set {
		names = append(names, r.Subnet.String())
	}
	return strings.Join(slices.Compact(names), " ")
}

// overlaps are ranges of two networks with the same addresses, and those that the host reaches elsewhere.
func overlaps(f *facts) {
	for i, list := range f.lists {
		for _, r := range slices.Concat(list.RangeSets()...) {
			for _, other := range f.lists[:i] {
				if other.Name != list.Name && slices.ContainsFunc(slices.Concat(other.RangeSets()...), r.Overlaps) {
					f.say("overlapping-ranges", "%s: %s overlaps a range of %s", titleOf(list), r.Subnet,
						titleOf(other))
				}
			}
			f.routedElsewhere(list, r)
		}
	}
}

// routedElsewhere finds a route of the host to addresses of the range that does not lead to the list's own interface.
// On a child's master it is right.
func (f *facts) routedElsewhere(list node.List, r ranges.Range) {
	own, hasOwn := ownBridge(list)
	for _, l := range f.links {
		if !hasOwn || l.Name == own || strings.HasPrefix(l.Name, own+".") {
			continue
		}
		for _, route := range f.routes[l.Name] {
			isLent := !route.Dst.IsSingleIP() || route.Dst.Addr() != r.Subnet.Masked().Addr() // flannel.1 has that
			if route.Dst.Bits() == 0 || !isLent || !route.Dst.Overlaps(r.Subnet) || route.Type > unix.RTN_LOCAL {
				continue
			}
			id := "covered-route"
			if route.Dst.Bits() >= r.Subnet.Bits() {
				id = "overlapping-route"
			}
			f.say(id, "%s: the host has %s on %q, which overlaps %s", titleOf(list), route, l.Name, r.Subnet)
			break
		}
	}
}

// ownBridge is the interface of the host that leads to containers of the list; empty for one of each container. It is
// not ok for lists whose containers are on a network of the host.
func ownBridge(list node.List) (name string, ok bool) {
	if len(list.Plugins) == 0 {
		return "", false
	}
	first := list.Plugins[0]
	if first.Is("bridge") {
		name = "cni0"
		_ = json.Unmarshal(first.Raw["bridge"], &name)
	}
	return name, first.Is("bridge") || first.Is("ptp")
}
