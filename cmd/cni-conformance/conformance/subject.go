package conformance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// subject is a plugin or a list under test.
type subject struct {
	Kind      Kinds    // 0 if the probe must find out whether the plugin is an interface or a chained plugin
	Name      string   // of the executable, or of the list
	Network   string   // the configuration's name
	Plugins   []object // the configuration of one plugin, or of each plugin of the list
	Preceding []object // the plugins that precede this one in its list
	Options   options
}

// options apply to all subjects of a run.
type options struct {
	Path     []string // directories with plugins
	IfName   string
	Setup    string         // shell commands that prepare the host of a case
	Ignore   *regexp.Regexp // matches the paths of files that are not leftovers
	Parallel int            // attachments of the concurrency case
	Disabled object         // commands that a runtime must not call: disableCheck and disableGC of the list
}

// info is the result of the probe.
type info struct {
	Kind            Kinds
	Spec            string        // the version of the specification to test
	Supported       []string      // values of cniVersion
	ManyAttachments bool          // the configuration allows two attachments or more at a time
	FixedAddresses  bool          // the configuration gives all attachments the same addresses
	AddTime         time.Duration // duration of ADD
}

// load reads a configuration. It returns each plugin as a subject, and also a list that has several plugins.
func load(o settings) (all []subject, err error) {
	file := cmp.Or(o.list, o.config)
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var conf object
	if err := json.Unmarshal(data, &conf); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	name, plugins := text(conf, "name"), list(conf, "plugins")
	isIPAM := ipamType(conf) == o.plugin && text(conf, "type") != o.plugin // conf belongs to the plugin that calls it
	o.Disabled = object{"CHECK": conf["disableCheck"], "GC": conf["disableGC"]}
	switch {
	case !regexp.MustCompile(`^[[:alnum:]][[:alnum:]_.-]*$`).MatchString(name):
		return nil, fmt.Errorf("%s has the name %q, which the specification does not allow", file, name)
	case (o.list == "") != (plugins == nil):
		return nil, fmt.Errorf("%s: pass a list of plugins with --list, and another file with --config", file)
	case o.list == "" && isIPAM:
		_, err := find(o.Path, o.plugin)
		return []subject{{Kind: IPAM, Name: o.plugin, Network: name, Plugins: []object{conf}, Options: o.options}}, err
	case o.list == "":
		plugins = []object{clone(conf, object{"type": o.plugin})}
	}
	for i, p := range plugins {
		s := subject{Name: text(p, "type"), Network: name, Plugins: plugins[i : i+1], Preceding: plugins[:i],
			Options: o.options}
		if i > 0 {
			s.Kind = Chained
		}
		all = append(all, s)
		if _, err := find(o.Path, s.Name); err != nil {
			return nil, err
		}
	}
	if len(plugins) > 1 {
		all = append(all, subject{Kind: List, Name: name, Network: name, Plugins: plugins, Options: o.options})
	}
	return all, nil
}

func find(dirs []string, name string) (string, error) {
	if name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("%q is not the name of a plugin, which is not empty and has no slash", name)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("no executable %s in %s; pass its directory with --path", name, strings.Join(dirs, ":"))
}

func ipamType(conf object) string {
	ipam, _ := conf["ipam"].(object)
	return text(ipam, "type")
}

// capabilityArgs returns values for declared capabilities of CONVENTIONS.md, except addresses, which may not suit.
func capabilityArgs(conf object) object {
	known := object{
		"mac":          "02:ca:fe:00:00:01",
		"portMappings": []any{object{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    object{"ingressRate": 8e6, "ingressBurst": 8e6, "egressRate": 8e6, "egressBurst": 8e6},
		"dns":          object{"servers": []any{"192.0.2.53"}, "searches": []any{"example.com"}},
		"aliases":      []any{"conformance"},
	}
	declared, _ := conf["capabilities"].(object)
	maps.DeleteFunc(known, func(name string, _ any) bool { return declared[name] != true })
	return known
}
