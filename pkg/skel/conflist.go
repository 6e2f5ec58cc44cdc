package skel

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// wireList is a list of configurations (specification, section 1).
type wireList struct {
	CNIVersion             string            `json:"cniVersion" help:"version of the specification" schema:"enum=0.1.0|0.2.0|0.3.0|0.3.1|0.4.0|1.0.0|1.1.0"`
	CNIVersions            []string          `json:"cniVersions" help:"more versions, of which the runtime takes the newest that it knows" each:"enum=0.1.0|0.2.0|0.3.0|0.3.1|0.4.0|1.0.0|1.1.0"`
	Name                   string            `json:"name" help:"the network, unique on this host" schema:"required format=name"`
	DisableCheck           json.RawMessage   `json:"disableCheck" help:"the runtime calls no CHECK" default:"false" schema:"format=switch"`
	DisableGC              json.RawMessage   `json:"disableGC" help:"the runtime calls no GC" default:"false" schema:"format=switch"`
	LoadOnlyInlinedPlugins json.RawMessage   `json:"loadOnlyInlinedPlugins" help:"plugins is all; no directory of the network's name is read" default:"false" schema:"format=switch"`
	Plugins                []json.RawMessage `json:"plugins" help:"the configurations, in the order of ADD" schema:"required nonempty"`
}

// list checks a list, which no plugin is ever given, and this plugin's entries
// in it as the runtime would hand them out.
func (c *checker) list(data []byte, object map[string]json.RawMessage) {
	var w wireList
	c.problems.Add(cni.Unmarshal(data, &w))
	c.require(object, "name")
	if len(w.CNIVersions) == 0 {
		c.require(object, "cniVersion")
	}
	if _, ok := object["name"]; ok {
		c.problems.Add(checkName(w.Name))
	}
	version := c.newest(w)
	c.problems.Add(checkSwitch("disableCheck", w.DisableCheck))
	c.problems.Add(checkSwitch("disableGC", w.DisableGC))
	c.problems.Add(checkSwitch("loadOnlyInlinedPlugins", w.LoadOnlyInlinedPlugins))
	if len(w.Plugins) == 0 {
		c.problems.Add(cni.Refuse("plugins", nil, "has no entries"))
	}
	h := hinter{left: hintMax, found: func(h hint) {
		h.read = false // these libcni reads by their exact names
		c.hint("")(h)
	}}
	known := keyTree(reflect.TypeFor[wireList](), "")
	h.names(object, known, "")
	c.misplaced(object, known)
	name := w.Name
	if !cni.ValidName(name) {
		name = "list" // what is wrong with it is said once
	}
	for i, raw := range w.Plugins {
		c.inList(raw, fmt.Sprintf("plugins[%d].", i), cni.Config{Name: name, CNIVersion: version})
	}
	switch {
	case len(c.entries) > 0 || len(w.Plugins) == 0:
	case c.plugin.IPAM:
		c.note("plugins", fmt.Sprintf("has no entry with ipam.type %q", c.plugin.Name))
	default:
		c.note("plugins", "has no entry for "+c.plugin.Name)
	}
}

// misspeltList refuses what would be a list but for the spelling of plugins,
// which runtimes read by its exact name.
func (c *checker) misspeltList(object map[string]json.RawMessage) bool {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if meant, _ := closest(name, []key{{name: "plugins"}}); meant != "" && object["type"] == nil {
			c.problems.Add(cni.Refuse(cni.KeyIn("", name), nil, "is unknown, and there is neither plugins nor type").Suggest("%s", didYouMean(meant)))
			return true
		}
	}
	return false
}

// misplaced warns of keys of configurations beside their list: nobody is given
// them. A runtime may have put args there for itself.
func (c *checker) misplaced(object map[string]json.RawMessage, ofList []key) {
	known := append(keyTree(reflect.TypeFor[wireEntry](), ""), keyTree(reflect.TypeOf(c.plugin.Config), "")...)
	known = append(known, key{name: "ipMasq"})
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if _, read := closest(name, ofList); read || name == "args" {
			continue
		}
		if _, belongs := closest(name, known); belongs {
			c.warn(cni.KeyIn("", name), "is given to no plugin, since it stands beside plugins", "it belongs into an entry of plugins")
		}
	}
}

// newest is the version that a runtime of today would choose of those that the
// list names.
func (c *checker) newest(w wireList) string {
	best := -1
	look := func(key, version string) {
		if !cni.Supports(version) {
			c.problems.Add(unsupported(key, version))
		}
		best = max(best, slices.Index(cni.Versions(), version))
	}
	if w.CNIVersion != "" {
		look("cniVersion", w.CNIVersion)
	}
	for i, v := range w.CNIVersions {
		look(fmt.Sprintf("cniVersions[%d]", i), v)
	}
	if best < 0 {
		return cni.Newest
	}
	return cni.Versions()[best]
}

// checkSwitch refuses what libcni does not take for true or false; it takes
// text, too.
func checkSwitch(key string, raw json.RawMessage) error {
	switch strings.ToLower(string(raw)) {
	case "", "true", "false", `"true"`, `"false"`:
		return nil
	}
	return cni.Refuse(key, raw, "is neither true nor false")
}

// inList checks an entry of a list: one of another plugin only for what any
// plugin can judge. The list's name and version win, as the runtime does it.
func (c *checker) inList(raw json.RawMessage, prefix string, list cni.Config) {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil || object == nil {
		c.problems.Add(cni.Refuse(strings.TrimSuffix(prefix, "."), raw, "is no object"))
		return
	}
	c.common(raw, prefix)
	if !c.isOwn(raw) {
		c.stranger(raw, prefix)
		return
	}
	object["name"], object["cniVersion"] = json.RawMessage(quote(list.Name)), json.RawMessage(quote(list.CNIVersion))
	if conf, err := json.Marshal(object); err == nil {
		c.entry(conf, prefix)
	}
}
