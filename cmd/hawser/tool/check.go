package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
)

// problem is an error or a doubtful value in a network list.
type problem struct {
	Severity string `json:"severity"` // broken or doubtful: "error" or "warning"
	File     string `json:"file"`
	Key      string `json:"key,omitempty"` // for example plugins[1].ipam.ranges[0][0].subnet; empty for the whole file
	What     string `json:"what"`
	Advice   string `json:"advice,omitempty"`
}

// checker collects the problems of network lists.
type checker struct {
	node   *node.Node
	found  []problem
	files  map[string]string // the file of each network
	ranges []usedRange
}

type usedRange struct {
	ranges.Range
	network, file string
}

// location is a key of a file, or a whole file if the key is empty.
type location struct {
	*checker
	file, key string
}

func checkCommand(s *session) *cobra.Command {
	return s.command("check [FILE|DIR]", "Find mistakes in network lists before a runtime does",
		func(name string) error {
			c := checker{node: s.Node, files: map[string]string{}}
			err := c.checkPath(cmp.Or(name, s.ConfDir))
			err = errors.Join(err, s.show(c.found, func(t table) {
				for _, f := range c.found {
					s.finding(t, f.Severity, joinNonempty(": ", f.File, f.Key, f.What), f.Advice)
				}
				if len(c.found) == 0 && err == nil {
					t.row("nothing is wrong")
				}
			}))
			if err == nil && slices.ContainsFunc(c.found, func(f problem) bool { return f.Severity == broken }) {
				return exitStatus(1)
			}
			return err
		})
}

// path returns the full path of a key below the location.
func (s location) path(key string) string {
	if s.key == "" || key == "" || key[0] == '[' {
		return s.key + key
	}
	return s.key + "." + key
}

// report adds a problem with a key below the location, unless the key already has one of this severity.
func (s location) report(severity, key, what, advice string) {
	f := problem{severity, s.file, s.path(key), what, advice}
	same := func(old problem) bool { return old.File == f.File && old.Key == f.Key && old.Severity == severity }
	if !slices.ContainsFunc(s.found, same) {
		s.found = append(s.found, f)
	}
}

func (c *checker) locate(e node.Entry) location { return location{c, e.File, e.Key} }

// checkPath checks a file or all lists of a directory. It returns the errors of files that cannot be read.
func (c *checker) checkPath(name string) error {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return c.checkFile(name)
	}
	files, err := node.ListFiles(name)
	if err == nil && len(files) == 0 {
		return fmt.Errorf("%s has no network list: no file ends in .conflist, .conf or .json", name)
	}
	for _, file := range files {
		err = errors.Join(err, c.checkFile(file))
	}
	return err
}

func (c *checker) checkFile(file string) error {
	list, err := node.ReadList(file)
	if _, isUnread := errors.AsType[*fs.PathError](err); isUnread {
		return err
	}
	s := location{c, file, ""}
	if err != nil {
		what, isOwn := strings.CutPrefix(err.Error(), file+": ") // false if another file of the list is wrong
		p := cni.Problem{Reason: what}
		if first := cni.ProblemsOf(err)[0]; isOwn && first.Key != "" {
			p = first
		}
		s.report(broken, p.Key, p.Reason, "correct the file: no runtime can use the list")
		return nil
	}
	s.checkName(list.Name)
	s.checkList(list)
	return nil
}

// checkName reports a name that an earlier list has.
func (s location) checkName(name string) {
	if other := s.files[name]; other != "" {
		s.report(doubtful, "name", fmt.Sprintf("%q is also the name of the network in %s", name, other),
			"rename or remove one of them: runtimes differ in which one they use")
	}
	s.files[name] = s.file
}

// checkShape reports a list that no runtime can use: it has no plugin, no valid name, or an entry without a type.
func (s location) checkShape(list node.List) {
	if len(list.Plugins) == 0 {
		s.report(broken, "plugins", "has no plugin, and the file has no type: it is not a network list",
			"write a list of plugins, or move the file to another directory")
		return
	}
	if !cni.ValidName(list.Name) {
		s.report(broken, "name", fmt.Sprintf("%q is not a valid network name", list.Name),
			"start with a letter or digit and continue with letters, digits, '_', '.' and '-'")
	}
	for _, e := range list.Plugins {
		if !cni.ValidType(e.Type) {
			s.locate(e).checkType(e)
		}
	}
}

func (s location) checkList(list node.List) {
	s.checkShape(list)
	if len(list.Plugins) == 0 {
		return
	}
	var versions []string
	_ = json.Unmarshal(list.Raw["cniVersions"], &versions)
	if i := slices.IndexFunc(versions, func(v string) bool { return !cni.Supports(v) }); i >= 0 {
		s.report(doubtful, fmt.Sprintf("cniVersions[%d]", i),
			fmt.Sprintf("Hawser's plugins do not know version %q", versions[i]),
			"use versions of "+strings.Join(cni.Versions(), ", "))
	}
	booleans := []string{"disableCheck", "disableGC", "loadOnlyInlinedPlugins"}
	known := append(booleans, "name", "cniVersion", "cniVersions", "plugins")
	for _, key := range slices.Sorted(maps.Keys(list.Raw)) {
		i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, key) })
		value := strings.ToLower(strings.Trim(string(list.Raw[key]), `"`))
		switch {
		case i < 0 || list.Raw["type"] != nil:
		case key != known[i]:
			s.report(broken, cni.KeyIn("", key), "is ignored by runtimes, because case matters here", "write "+known[i])
		case i < len(booleans) && value != "true" && value != "false":
			s.report(broken, key, "is neither true nor false", "write true or false")
		}
	}
	for i, e := range list.Plugins {
		if !cni.ValidType(e.Type) {
			continue
		}
		s.checkEntry(list, i)
		s.checkOrder(list, i)
		s.locate(e).checkOverlaps(list.Name, e)
		s.locate(e).checkDelegates(list, e)
	}
	s.checkCombination(list)
}

// checkEntry checks that the programs of an entry exist, and has Hawser's plugins check the configuration that they
// receive.
func (s location) checkEntry(list node.List, i int) {
	e, used := list.Plugins[i], []string{}
	for _, named := range []struct{ key, plugin string }{{"type", e.Type}, {"ipam.type", e.IPAM.Type}} {
		if named.plugin == "" {
			continue
		}
		p, isOurs := s.node.Plugin(named.plugin)
		file, err := s.node.Find(named.plugin)
		if err == nil && !isOurs && sameFile("/proc/self/exe", file) {
			err = fmt.Errorf("%q is not a plugin of %s, which is this program", named.plugin, file)
		}
		if err != nil {
			advice := installAdvice(s.node, named.plugin) + ", or correct the name"
			s.locate(e).report(broken, named.key, err.Error(), advice)
		} else if dir := installedDir(s.node); dir != "" && s.node.IsReference(file) {
			s.locate(e).report(doubtful, named.key,
				file+" is a plugin of the reference, although Hawser is installed in "+dir, replaceAdvice("", dir))
		} else if dir != "" && p.Name == named.plugin && !s.node.IsOurs(file) {
			s.locate(e).report(doubtful, named.key, file+" is another program, although Hawser is installed in "+dir,
				replaceAdvice(" --force", dir))
		}
		if !isOurs || !s.node.HasPlugin(e.Type) { // other plugins may complete ipam before they call it
			continue
		}
		used = append(used, p.Traits().Capabilities...)
		for _, f := range p.CheckConfig(list.Conf(i, nil), i == 0 && list.Raw["plugins"] != nil) {
			loc := s.locate(e)
			if f.Key == "name" || f.Key == "cniVersion" { // keys of the list
				loc = s
			}
			severity := broken
			if f.Warning {
				severity = doubtful
			}
			loc.report(severity, f.Key, f.Reason, f.Suggestion)
		}
	}
	s.locate(e).checkCapabilities(e, used)
}

// checkCapabilities compares the capabilities that an entry declares with those that its plugins use.
func (s location) checkCapabilities(e node.Entry, used []string) {
	p, isOurs := s.node.Plugin(e.Type)
	isIPAMOurs := s.node.HasPlugin(cmp.Or(e.IPAM.Type, e.Type))
	for _, name := range slices.Sorted(maps.Keys(e.Capabilities)) {
		if isOurs && isIPAMOurs && e.Capabilities[name] && !slices.Contains(used, name) {
			s.report(doubtful, cni.KeyIn("capabilities", name), "is not used by "+e.Type,
				"declare it in the entry of the plugin that uses it; case matters")
		}
	}
	needed := map[string]string{"portmap": "portMappings", "bandwidth": "bandwidth"}[cmp.Or(p.Name, e.Type)]
	isConfigured := e.Raw["runtimeConfig"] != nil || e.Raw["ingressRate"] != nil || e.Raw["egressRate"] != nil
	if needed != "" && !e.Capabilities[needed] && !isConfigured {
		s.report(doubtful, "capabilities", "does not have "+needed+": the runtime sends none, so "+e.Type+
			" does nothing", fmt.Sprintf(`write "capabilities": {%q: true}`, needed))
	}
}

// checkOrder checks the position of a plugin in the list. loopback may be anywhere, because it works without other
// plugins.
func (s location) checkOrder(list node.List, i int) {
	e := list.Plugins[i]
	p, isOurs := s.node.Plugin(e.Type)
	if !isOurs || p.Name == "loopback" || p.Traits().Chained {
		return
	}
	if p.Traits().IPAM {
		s.locate(e).report(broken, "type", e.Type+" creates no interface",
			"write it as ipam.type of a plugin that creates one")
		return
	}
	for _, earlier := range list.Plugins[:i] {
		switch other, isOurs := s.node.Plugin(earlier.Type); {
		case !isOurs || other.Name == "loopback":
		case other.Traits().Chained:
			s.locate(earlier).report(broken, "type", earlier.Type+" is before "+e.Type+", which creates the interface",
				"move it after "+e.Type)
		default:
			s.locate(e).report(broken, "type", e.Type+" creates an interface, but "+earlier.Type+
				" has already created it", "write a list for each")
		}
	}
}

// checkOverlaps compares the ranges of an entry with those of other networks.
func (s location) checkOverlaps(network string, e node.Entry) {
	for _, set := range (node.List{Plugins: []node.Entry{e}}).RangeSets() {
		for _, r := range set {
			overlaps := func(o usedRange) bool { return o.network != network && r.Overlaps(o.Range) }
			if k := slices.IndexFunc(s.ranges, overlaps); k >= 0 {
				o := s.ranges[k]
				what := fmt.Sprintf("%s overlaps %s of network %q in %s", r.Subnet, o.Subnet, o.network, o.file)
				s.report(broken, r.Key+".subnet", what,
					"use different subnets: otherwise two containers get the same address")
			}
			s.ranges = append(s.ranges, usedRange{r, network, e.File})
		}
	}
}

// checkDelegates checks the lists in an entry of multus, and the list that flannel derives from its delegate. It does
// not check networks that these plugins read elsewhere, for example from the cluster.
func (s location) checkDelegates(list node.List, e node.Entry) {
	var inner []json.RawMessage
	var network string
	switch e.Type {
	case "multus", "multus-shim":
		if json.Unmarshal(e.Raw["delegates"], &inner) != nil && e.Raw["delegates"] != nil {
			s.report(broken, "delegates", "is not a list", "write a list of networks")
		}
		for i, raw := range inner {
			s.checkDelegate(fmt.Sprintf("delegates[%d]", i), list, raw)
		}
		_ = json.Unmarshal(e.Raw["clusterNetwork"], &network)
		network = strings.TrimPrefix(network, "/host") // the pod of multus mounts the host's root at /host
		if _, err := os.Stat(network); err != nil && strings.HasPrefix(network, "/") {
			s.report(doubtful, "clusterNetwork", err.Error(), "write the list of that network")
		}
	case "flannel":
		e.ResolveFlannel("")
		raw, _ := json.Marshal(e.Raw) // decoded values can be encoded
		s.checkDelegate("delegate", list, raw)
	}
}

func (s location) checkDelegate(key string, outer node.List, raw []byte) {
	s.key = s.path(key)
	list, err := node.ParseList(raw)
	if err != nil {
		s.report(broken, cni.ProblemsOf(err)[0].Key, cni.ProblemsOf(err)[0].Reason, "")
		return
	}
	list.Name, list.CNIVersion = cmp.Or(list.Name, outer.Name), cmp.Or(list.CNIVersion, outer.CNIVersion)
	for i, e := range list.Plugins {
		list.Plugins[i].File, list.Plugins[i].Key = s.file, s.path(e.Key)
	}
	s.checkList(list)
}
