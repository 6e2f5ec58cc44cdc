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

// complaint is something that is wrong with a network list.
type complaint struct {
	Severity string `json:"severity"` // broken or doubtful
	File     string `json:"file"`
	Key      string `json:"key,omitempty"` // plugins[1].ipam.ranges[0][0].subnet; empty for all of the file
	What     string `json:"what"`
	Advice   string `json:"advice,omitempty"`
}

// checker collects what is wrong with network lists.
type checker struct {
	node.Node
	found  []complaint
	files  map[string]string // of the networks
	ranges []usedRange
}

type usedRange struct {
	ranges.Range
	network, file string
}

// spot is where something stands: a key, or all of a file.
type spot struct {
	*checker
	file, key string
}

func checkCommand(s *session) *cobra.Command {
	return s.command("check [FILE|DIR]", "Say what is wrong with network lists, before a runtime does",
		func(of string) error {
			c := checker{Node: s.Node, files: map[string]string{}}
			err := c.read(cmp.Or(of, s.ConfDir))
			err = errors.Join(err, s.show(c.found, func(t table) {
				for _, f := range c.found {
					s.finding(t, f.Severity, joined(": ", f.File, f.Key, f.What), f.Advice)
				}
				if len(c.found) == 0 && err == nil {
					t.row("nothing is wrong")
				}
			}))
			if err == nil && slices.ContainsFunc(c.found, func(f complaint) bool { return f.Severity == broken }) {
				return exitStatus(1)
			}
			return err
		})
}

// path is that of a key in what stands there.
func (s spot) path(key string) string {
	if s.key == "" || key == "" || key[0] == '[' {
		return s.key + key
	}
	return s.key + "." + key
}

// say adds a complaint about a key of what stands there, but no second one of the same.
func (s spot) say(severity, key, what, advice string) {
	f := complaint{severity, s.file, s.path(key), what, advice}
	same := func(old complaint) bool { return old.File == f.File && old.Key == f.Key && old.Severity == severity }
	if !slices.ContainsFunc(s.found, same) {
		s.found = append(s.found, f)
	}
}

func (c *checker) at(e node.Entry) spot { return spot{c, e.File, e.Key} }

// read checks all files that are to be checked. An error is of one that cannot be read.
func (c *checker) read(name string) error {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return c.file(name)
	}
	files, err := node.ListFiles(name)
	if err == nil && len(files) == 0 {
		return fmt.Errorf("%s has no network list: no file ends in .conflist, .conf or .json", name)
	}
	for _, file := range files {
		err = errors.Join(err, c.file(file))
	}
	return err
}

func (c *checker) file(file string) error {
	list, err := node.ReadList(file)
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return err
	}
	s := spot{c, file, ""}
	if err != nil {
		what, isOwn := strings.CutPrefix(err.Error(), file+": ") // or of a file that belongs to it
		p := cni.Problem{Reason: what}
		if first := cni.ProblemsOf(err)[0]; isOwn && first.Key != "" {
			p = first
		}
		s.say(broken, p.Key, p.Reason, "correct it: no runtime can use the list")
		return nil
	}
	if other := c.files[list.Name]; other != "" {
		s.say(doubtful, "name", fmt.Sprintf("%q is the name of the network in %s too", list.Name, other),
			"give one of them another name, or remove it: each runtime takes another one")
	}
	c.files[list.Name] = file
	s.list(list)
	return nil
}

// list checks a list that stands there.
func (s spot) list(list node.List) {
	if len(list.Plugins) == 0 {
		s.say(broken, "plugins", "has no plugin, and the file no type: it is no network list",
			"write a list of plugins, or move the file")
		return
	}
	var versions []string
	_ = json.Unmarshal(list.Raw["cniVersions"], &versions)
	if i := slices.IndexFunc(versions, func(v string) bool { return !cni.Supports(v) }); i >= 0 {
		s.say(doubtful, fmt.Sprintf("cniVersions[%d]", i), fmt.Sprintf("%q is unknown to our plugins", versions[i]),
			"write some of "+strings.Join(cni.Versions(), ", "))
	}
	if !cni.ValidName(list.Name) {
		s.say(broken, "name", fmt.Sprintf("%q is no network name", list.Name),
			"write a letter or digit, then letters, digits and _.-")
	}
	booleans := []string{"disableCheck", "disableGC", "loadOnlyInlinedPlugins"}
	known := append(booleans, "name", "cniVersion", "cniVersions", "plugins")
	for _, key := range slices.Sorted(maps.Keys(list.Raw)) {
		i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, key) })
		value := strings.ToLower(strings.Trim(string(list.Raw[key]), `"`))
		switch {
		case i < 0 || list.Raw["type"] != nil:
		case key != known[i]:
			s.say(broken, cni.KeyIn("", key), "is read by no runtime: case matters here", "write "+known[i])
		case i < len(booleans) && value != "true" && value != "false":
			s.say(broken, key, "is neither true nor false", "write true or false")
		}
	}
	for i, e := range list.Plugins {
		if !cni.ValidType(e.Type) {
			s.at(e).say(broken, "type", fmt.Sprintf("%q is no plugin's name", e.Type), "write a program's name")
			continue
		}
		s.entry(list, i)
		s.order(list, i)
		s.at(e).overlaps(list.Name, e)
		s.at(e).delegates(list, e)
	}
}

// entry looks for the programs of an entry, and has our plugins look at it as they are given it.
func (s spot) entry(list node.List, i int) {
	e, takes := list.Plugins[i], []string{}
	for _, plugin := range [][2]string{{"type", e.Type}, {"ipam.type", e.IPAM.Type}} {
		if plugin[1] == "" {
			continue
		}
		p, isOurs := s.Own(plugin[1])
		file, err := s.Find(plugin[1])
		if err == nil && !isOurs && isSelf(file) {
			err = fmt.Errorf("%q is not a plugin of %s, which is this program", plugin[1], file)
		}
		if err != nil {
			s.at(e).say(broken, plugin[0], err.Error(), "install it (hawser install), or correct the name")
		} else if dir := installedDir(s.Node); dir != "" && s.IsReference(file) {
			s.at(e).say(doubtful, plugin[0], file+" is a plugin of the reference, although Hawser is installed in "+dir,
				kindNamed("not-replaced").Advice)
		}
		if !isOurs || !s.Has(e.Type) { // others complete their ipam
			continue
		}
		takes = append(takes, p.Traits().Capabilities...)
		for _, f := range p.CheckConfig(list.Conf(i, nil), i == 0 && list.Raw["plugins"] != nil) {
			at := s.at(e)
			if f.Key == "name" || f.Key == "cniVersion" { // the list's
				at = s
			}
			at.say(map[bool]string{true: doubtful, false: broken}[f.Warning], f.Key, f.Reason, f.Suggestion)
		}
	}
	s.at(e).capabilities(e, takes)
}

// isSelf reports whether a file is the running program, possibly under another name.
func isSelf(file string) bool {
	own, err := os.Stat("/proc/self/exe")
	info, failed := os.Stat(file)
	return err == nil && failed == nil && os.SameFile(own, info)
}

// capabilities compares what the runtime sends with what the plugins of an entry take.
func (s spot) capabilities(e node.Entry, takes []string) {
	p, isOurs := s.Own(e.Type)
	isIPAMOurs := s.Has(cmp.Or(e.IPAM.Type, e.Type))
	for _, name := range slices.Sorted(maps.Keys(e.Capabilities)) {
		if isOurs && isIPAMOurs && e.Capabilities[name] && !slices.Contains(takes, name) {
			s.say(doubtful, cni.KeyIn("capabilities", name), "is nothing that "+e.Type+" takes",
				"write it into the entry of the plugin that does, in the case of its man page")
		}
	}
	wants := map[string]string{"portmap": "portMappings", "bandwidth": "bandwidth"}[cmp.Or(p.Name, e.Type)]
	isGiven := e.Raw["runtimeConfig"] != nil || e.Raw["ingressRate"] != nil || e.Raw["egressRate"] != nil
	if wants != "" && !e.Capabilities[wants] && !isGiven {
		s.say(doubtful, "capabilities", "does not have "+wants+": the runtime sends none, and "+e.Type+" does nothing",
			fmt.Sprintf(`write "capabilities": {%q: true}`, wants))
	}
}

// order compares a plugin's place in the list with what it needs. loopback needs nobody, nor does anybody need it.
func (s spot) order(list node.List, i int) {
	e := list.Plugins[i]
	p, isOurs := s.Own(e.Type)
	if !isOurs || p.Name == "loopback" || p.Traits().Chained {
		return
	}
	if p.Traits().IPAM {
		s.at(e).say(broken, "type", e.Type+" makes no interface", "write it as ipam.type of a plugin that does")
		return
	}
	for _, before := range list.Plugins[:i] {
		switch other, isOurs := s.Own(before.Type); {
		case !isOurs || other.Name == "loopback":
		case other.Traits().Chained:
			s.at(before).say(broken, "type", before.Type+" stands before "+e.Type+", which makes the interface",
				"write it behind that")
		default:
			s.at(e).say(broken, "type", e.Type+" makes an interface, and "+before.Type+" has made it",
				"give each a list of its own")
		}
	}
}

// overlaps compares the ranges of an entry with those of other networks.
func (s spot) overlaps(network string, e node.Entry) {
	for _, set := range (node.List{Plugins: []node.Entry{e}}).RangeSets() {
		for _, r := range set {
			same := func(o usedRange) bool { return o.network != network && r.Overlaps(o.Range) }
			if k := slices.IndexFunc(s.ranges, same); k >= 0 {
				o := s.ranges[k]
				what := fmt.Sprintf("%s overlaps %s of network %q in %s", r.Subnet, o.Subnet, o.network, o.file)
				s.say(broken, r.Key+".subnet", what,
					"give each a subnet of its own: two containers get the same address")
			}
			s.ranges = append(s.ranges, usedRange{r, network, e.File})
		}
	}
}

// delegates checks the lists in an entry of multus, and what flannel makes of its delegate. What they read elsewhere,
// from the cluster for example, is not looked at.
func (s spot) delegates(list node.List, e node.Entry) {
	var inner []json.RawMessage
	var network string
	switch e.Type {
	case "multus", "multus-shim":
		if json.Unmarshal(e.Raw["delegates"], &inner) != nil && e.Raw["delegates"] != nil {
			s.say(broken, "delegates", "is no list", "write a list of networks")
		}
		for i, raw := range inner {
			s.delegate(fmt.Sprintf("delegates[%d]", i), list, raw)
		}
		_ = json.Unmarshal(e.Raw["clusterNetwork"], &network)
		network = strings.TrimPrefix(network, "/host") // its pod sees the host there
		if _, err := os.Stat(network); err != nil && strings.HasPrefix(network, "/") {
			s.say(doubtful, "clusterNetwork", err.Error(), "write that network's list")
		}
	case "flannel":
		e.Call("")
		raw, _ := json.Marshal(e.Raw) // what was decoded can be encoded
		s.delegate("delegate", list, raw)
	}
}

// delegate checks a list in a key of an entry.
func (s spot) delegate(key string, outer node.List, raw []byte) {
	s.key = s.path(key)
	list, err := node.ParseList(raw)
	if err != nil {
		s.say(broken, cni.ProblemsOf(err)[0].Key, cni.ProblemsOf(err)[0].Reason, "")
		return
	}
	list.Name, list.CNIVersion = cmp.Or(list.Name, outer.Name), cmp.Or(list.CNIVersion, outer.CNIVersion)
	for i, e := range list.Plugins {
		list.Plugins[i].File, list.Plugins[i].Key = s.file, s.path(e.Key)
	}
	s.list(list)
}
