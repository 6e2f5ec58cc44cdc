package tool

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// titleOf names a list in findings.
func titleOf(l node.List) string {
	if l.File == "" {
		return fmt.Sprintf("network %q in libcni's cache", l.Name)
	}
	return fmt.Sprintf("%s, network %q", l.File, l.Name)
}

// missingPlugins finds programs that a list names and no runtime can execute.
func missingPlugins(f *facts) {
	seen := map[string]bool{}
	for _, list := range f.allLists {
		for _, plugin := range typesOf(list) {
			err := f.programs[plugin].err
			if err == nil || plugin == "" || seen[plugin] {
				continue
			}
			seen[plugin] = true
			f.add("missing-plugin", "%s: %v", titleOf(list), err).advise(installAdvice(f.Node, plugin))
		}
	}
}

func installAdvice(n *node.Node, plugin string) string {
	dir := cmp.Or(append(filepath.SplitList(n.Path), "DIR")...)
	if _, isOurs := skel.FindProgram(n.Programs, plugin); isOurs {
		return "install it: hawser install --to " + dir
	}
	if cni.IsPlugin(plugin, node.Separate) {
		return "copy cluster-local from its own archive (hawser-cluster-local-linux-...) to " +
			filepath.Join(dir, plugin)
	}
	return "install it with its own project's installer, because Hawser does not have it"
}

// badLists finds lists that no runtime can use, names and ranges that several lists have, and entries of a list that
// are valid individually, but together make ADD fail or have no effect.
func badLists(f *facts) {
	for _, err := range f.damaged {
		item := f.add("bad-file", "%v", err)
		if record, _, _ := strings.Cut(err.Error(), ": "); strings.HasPrefix(record, f.CacheDir+"/") {
			item.Advice = "delete its container and then this file, and run hawser gc --yes"
		}
	}
	if len(f.lists) == 0 && len(f.problems) == 0 {
		f.add("no-list", "no usable network list in %s", f.ConfDir)
	}
	c := &checker{node: f.Node, files: map[string]string{}}
	for _, list := range f.lists {
		s := location{c, list.File, ""}
		s.checkShape(list)
		f.addChecked("bad-file", list, c)
		s.checkName(list.Name)
		f.addChecked("name-twice", list, c)
		for _, e := range list.Plugins {
			s.locate(e).checkOverlaps(list.Name, e)
		}
		f.addChecked("overlapping-ranges", list, c)
		if len(list.Plugins) > 0 {
			s.checkCombination(list)
		}
		f.addChecked("list-conflict", list, c)
	}
}

// addChecked adds what the checker has found in a list.
func (f *facts) addChecked(id string, list node.List, c *checker) {
	for _, p := range c.found {
		item := f.add(id, "%s: %s %s", titleOf(list), p.Key, p.What)
		item.Severity, item.Advice = p.Severity, p.Advice
	}
	c.found = nil
}

// noSubnets finds missing subnet files of flannel. Without such a file, each ADD fails.
func noSubnets(f *facts) {
	for _, list := range f.lists {
		for _, e := range list.Plugins {
			if _, err := os.Stat(e.SubnetFile); e.SubnetFile != "" && err != nil {
				f.add("no-subnet", "%s: flannel reads the node's subnet from a file: %v", titleOf(list), err)
			}
		}
	}
}

// unknownVersions finds versions of lists that a plugin of the list does not support.
func unknownVersions(f *facts) {
	for _, list := range f.lists {
		for _, plugin := range typesOf(list) {
			supported := f.programs[plugin].versions
			if list.CNIVersion == "" || len(supported) == 0 || slices.Contains(supported, list.CNIVersion) {
				continue
			}
			item := f.add("unknown-version", "%s: cniVersion %q is not supported by %s, which supports %s",
				titleOf(list), list.CNIVersion, f.programs[plugin].path, strings.Join(supported, ", "))
			lacks := func(v string) bool {
				return slices.ContainsFunc(typesOf(list), func(other string) bool {
					versions := f.programs[other].versions
					return len(versions) > 0 && !slices.Contains(versions, v)
				})
			}
			if common := slices.DeleteFunc(slices.Sorted(slices.Values(supported)), lacks); len(common) > 0 {
				item.Advice = fmt.Sprintf("write cniVersion %q, which all plugins of the list support, or install "+
					"newer plugins", common[len(common)-1])
			}
			break
		}
	}
}

// refusedLists finds lists that Hawser's plugins refuse. A refusal is an error only if Hawser's plugin is installed.
func refusedLists(f *facts) {
	for _, list := range f.lists {
		if list.CNIVersion != "" && !cni.Supports(list.CNIVersion) {
			continue // reported as unknown-version
		}
		for i, e := range list.Plugins {
			for _, plugin := range []string{e.Type, e.IPAM.Type} {
				p, isOurs := f.Plugin(plugin)
				if !isOurs || !f.HasPlugin(e.Type) { // other plugins may complete ipam before they call it
					continue
				}
				found := p.CheckConfig(list.Conf(i, nil), i == 0)
				if k := slices.IndexFunc(found, func(f skel.Finding) bool { return !f.Warning }); k >= 0 {
					id := "refused-later"
					if f.programs[plugin].kind == ours {
						id = "refused-list"
					}
					key := location{key: e.Key}.path(found[k].Key)
					f.add(id, "%s: %s: %s: %s", titleOf(list), plugin, key, found[k].Reason).advise(list.File)
				}
			}
		}
	}
}

// fullRanges finds range sets of which at least nine tenths are leased.
func fullRanges(f *facts) {
	for _, list := range f.lists {
		for _, u := range list.Usage(f.attachments) {
			if len(u.Set) == 0 || u.Used*10 < u.Size*9 {
				continue
			}
			id := "nearly-full-range"
			if u.Used >= u.Size {
				id = "full-range"
			}
			item := f.add(id, "%s: %.0f of %.0f addresses of %s are leased", titleOf(list), u.Used, u.Size,
				subnetsOf(u.Set))
			item.advise(list.Name)
			isLive := func(a *node.Attachment) bool { return a.Network == list.Name && a.Orphan == "" }
			if u.Size == 1 && slices.ContainsFunc(f.attachments, isLive) {
				item.Severity = doubtful // the set is intended for one container
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

// overlaps finds ranges that the host routes elsewhere.
func overlaps(f *facts) {
	for _, list := range f.lists {
		for _, r := range slices.Concat(list.RangeSets()...) {
			f.findOtherRoutes(list, r)
		}
	}
}

// findOtherRoutes finds routes of the host to addresses of the range that do not use the list's own bridge. It finds
// nothing if the host is not the containers' router, as with macvlan or a bridge without gateway. Their network is also
// the host's or another machine's, so a route through another interface is correct.
func (f *facts) findOtherRoutes(list node.List, r ranges.Range) {
	bridge, hasOwn := ownBridge(list)
	for _, l := range f.links {
		// The bridge, a VLAN interface on it, or, if bridge names a VLAN interface, the bridge below it.
		isOwn := l.Name == bridge || strings.HasPrefix(l.Name, bridge+".") || strings.HasPrefix(bridge, l.Name+".")
		if !hasOwn || !isRouted(list) || isOwn {
			continue
		}
		for _, route := range f.routes[l.Name] {
			// flannel.1 has the subnet's network address
			isFlannel := route.Dst.IsSingleIP() && route.Dst.Addr() == r.Subnet.Masked().Addr()
			isOther := route.Type > unix.RTN_LOCAL // such as broadcast
			if route.Dst.Bits() == 0 || isFlannel || isOther || !route.Dst.Overlaps(r.Subnet) {
				continue
			}
			id := "covered-route"
			if route.Dst.Bits() >= r.Subnet.Bits() {
				id = "overlapping-route"
			}
			f.add(id, "%s: the host has %s on %q, which overlaps %s", titleOf(list), route, l.Name, r.Subnet)
			break
		}
	}
}

// ownBridge returns the host's interface in the network of the list's containers: the bridge, or the gateway in the
// VLAN of its ports. It is empty if each container has its own interface on the host (ptp). ok is false if the
// containers are attached to a network of the host.
func ownBridge(list node.List) (name string, ok bool) {
	if len(list.Plugins) == 0 {
		return "", false
	}
	first := list.Plugins[0]
	if first.Is("bridge") {
		var vlan uint16
		if name, vlan = list.Bridge(); vlan != 0 {
			name = fmt.Sprintf("%s.%d", name, vlan)
		}
	}
	return name, first.Is("bridge") || first.Is("ptp")
}
