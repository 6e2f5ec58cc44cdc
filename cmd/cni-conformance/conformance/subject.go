package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// subject is a plugin or a list under test.
type subject struct {
	Kind    Kinds
	Name    string   // of the executable, or of the list
	Network string   // the configuration's name
	Plugins []object // the configuration of one plugin, or the entries of a list
	Before  []object // the plugins that precede this one in its list
	Options options
}

// options apply to all subjects of a run.
type options struct {
	Path     []string // directories with plugins
	IfName   string
	Setup    string   // shell commands that prepare a host
	Writable []string // more directories in memory
	Ignore   []string // patterns of files that are not leftovers
	Parallel int      // attachments of the concurrency cases
}

// info is what the probe found out about a subject.
type info struct {
	Kind      Kinds
	Supported []string      // versions
	Many      bool          // the configuration allows two attachments at a time
	Fixed     bool          // the configuration gives all attachments the same addresses
	Took      time.Duration // of an ADD
	Present   bool          // the interface exists before ADD, as lo does
}

// loadPlugin reads the configuration of one plugin.
func loadPlugin(name, file string, o options) (subject, error) {
	conf, err := loadJSON(file)
	if err != nil {
		return subject{}, err
	}
	if conf["plugins"] != nil {
		return subject{}, fmt.Errorf("%s is a list of plugins; pass it with --list", file)
	}
	s := subject{Name: name, Network: text(conf, "name"), Options: o}
	if ipamType(conf) == name && text(conf, "type") != name {
		s.Kind = IPAM
	} else {
		conf["type"] = name
	}
	s.Plugins = []object{conf}
	return s, s.check()
}

// loadList reads a list. It returns each plugin as a subject, and the list itself if it has several plugins.
func loadList(file string, o options) ([]subject, error) {
	conf, err := loadJSON(file)
	if err != nil {
		return nil, err
	}
	plugins := list(conf, "plugins")
	if len(plugins) == 0 {
		return nil, fmt.Errorf("%s has no plugins; pass a plugin's configuration with --config", file)
	}
	var all []subject
	for i, p := range plugins {
		s := subject{Name: text(p, "type"), Network: text(conf, "name"), Plugins: []object{p}, Before: plugins[:i],
			Options: o}
		if i > 0 {
			s.Kind = Chained
		}
		all = append(all, s)
	}
	if len(plugins) > 1 {
		all = append(all, subject{Kind: List, Name: text(conf, "name"), Network: text(conf, "name"), Plugins: plugins,
			Options: o})
	}
	for _, s := range all {
		err = errors.Join(err, s.check())
	}
	return all, err
}

func loadJSON(file string) (object, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var conf object
	if err := json.Unmarshal(data, &conf); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return conf, nil
}

func (s subject) check() error {
	if s.Network == "" {
		return errors.New("the configuration has no name")
	}
	for _, p := range append(slices.Clone(s.Before), s.Plugins...) {
		if _, err := find(s.Options.Path, s.program(p)); err != nil {
			return err
		}
	}
	return nil
}

// program returns the name of the executable for a configuration.
func (s subject) program(conf object) string {
	if s.Kind == IPAM {
		return s.Name
	}
	return text(conf, "type")
}

// find returns the path of an executable.
func find(dirs []string, name string) (string, error) {
	if name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("%q is not the name of a plugin", name)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("no executable %s in %s; pass its directory with --path", name, strings.Join(dirs, ":"))
}

// ipamType returns the name of the IPAM plugin of a configuration.
func ipamType(conf object) string {
	ipam, _ := conf["ipam"].(object)
	return text(ipam, "type")
}

// request derives the configuration of a call from a plugin's configuration.
func (s subject) request(conf object, version string) object {
	return clone(conf, object{"cniVersion": version, "name": s.Network, "capabilities": nil})
}

// capabilityArgs returns values for the capabilities that a configuration declares, by CONVENTIONS.md. The suite cannot
// know addresses that suit the plugin, so ips and ipRanges are absent.
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
