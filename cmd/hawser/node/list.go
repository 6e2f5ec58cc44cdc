package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// List is a network configuration list (specification, section 1), or a single configuration as a list of one.
type List struct {
	File       string // empty for one that a runtime remembers
	Name       string
	CNIVersion string
	// NoCheck and NoGC say that the runtime must not call CHECK and GC.
	NoCheck, NoGC bool
	Plugins       []Entry
}

// Entry is a plugin's entry of a list.
type Entry struct {
	Type string `json:"type"`
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
	Capabilities map[string]bool `json:"capabilities"`
	Raw          map[string]json.RawMessage
}

// Lists are the network lists of the node, in the order in which runtimes read them: by the names of their files. What
// could be read comes beside an error.
func (n Node) Lists() (lists []List, err error) {
	entries, err := os.ReadDir(n.ConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		list, err := ReadList(filepath.Join(n.ConfDir, e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lists = append(lists, list)
	}
	return lists, errors.Join(errs...)
}

// ReadList reads the list of a file, with the plugins of the directory beside it that has the network's name
// (specification, section 1: loadOnlyInlinedPlugins).
func ReadList(file string) (List, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return List{}, err
	}
	list, err := ParseList(data)
	if err != nil {
		return List{}, fmt.Errorf("%s: %w", file, err)
	}
	list.File = file
	return list, nil
}

// ParseList reads a list, or a single configuration.
func ParseList(data []byte) (list List, err error) {
	var doc struct {
		Name         string                       `json:"name"`
		CNIVersion   string                       `json:"cniVersion"`
		DisableCheck bool                         `json:"disableCheck"`
		DisableGC    bool                         `json:"disableGC"`
		Type         string                       `json:"type"`
		Plugins      []map[string]json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return list, err
	}
	list = List{Name: doc.Name, CNIVersion: doc.CNIVersion, NoCheck: doc.DisableCheck, NoGC: doc.DisableGC}
	if doc.Type != "" && doc.Plugins == nil {
		var single map[string]json.RawMessage
		if err := json.Unmarshal(data, &single); err != nil {
			return list, err
		}
		doc.Plugins = []map[string]json.RawMessage{single}
	}
	for i, raw := range doc.Plugins {
		text, err := json.Marshal(raw)
		if err != nil {
			return list, err
		}
		e := Entry{Raw: raw}
		if err := json.Unmarshal(text, &e); err != nil {
			return list, fmt.Errorf("plugins[%d]: %w", i, err)
		}
		list.Plugins = append(list.Plugins, e)
	}
	return list, nil
}

// Conf is what a runtime writes to the standard input of the plugin of an entry: its keys, the list's name and version,
// and more keys of the call.
func (l List) Conf(entry int, more map[string]any) []byte {
	conf := map[string]any{}
	for key, value := range l.Plugins[entry].Raw {
		conf[key] = value
	}
	conf["name"], conf["cniVersion"] = l.Name, l.CNIVersion
	maps.Copy(conf, more)
	data, _ := json.Marshal(conf) // what was decoded can be encoded
	return data
}
