package node

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// List is a network configuration list (specification, section 1), or a single configuration as a list of one.
type List struct {
	File       string // empty for a list from libcni's cache
	Name       string
	CNIVersion string
	NoCheck    bool // the runtime must not call CHECK
	Plugins    []Entry
	Raw        map[string]json.RawMessage
	isInlined  bool // the directory that has the network's name is not read
}

// Entry is a plugin's entry of a list.
type Entry struct {
	Type string `json:"type"`
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
	Capabilities map[string]bool            `json:"capabilities"`
	Raw          map[string]json.RawMessage `json:"-"`
	// File and Key locate the entry, for example plugins[0] of the list's file. Key is empty if the entry is the whole
	// file.
	File, Key string `json:"-"`
	// SubnetFile is the file from which flannel reads the ranges of an entry that it delegates to; otherwise empty.
	SubnetFile string `json:"-"`
}

// Is reports whether the entry's type is the plugin, by cni.IsPlugin.
func (e Entry) Is(plugin string) bool { return cni.IsPlugin(e.Type, plugin) }

// HasIPAM reports whether the entry's ipam.type is the plugin, by cni.IsPlugin.
func (e Entry) HasIPAM(plugin string) bool { return cni.IsPlugin(e.IPAM.Type, plugin) }

// Lists returns the network lists of the node, in the order in which runtimes read them: by the names of their files.
// With an error it returns the lists that could be read.
func (n *Node) Lists() (lists []List, err error) {
	files, err := ListFiles(n.ConfDir)
	errs := []error{err}
	for _, file := range files {
		list, err := ReadList(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lists = append(lists, list)
	}
	return lists, errors.Join(errs...)
}

// CachedLists returns the lists with which attachments were created, without duplicates.
func CachedLists(cached []*Attachment) (lists []List) {
	seen := map[string]bool{}
	for _, c := range cached {
		if seen[string(c.Config)] {
			continue
		}
		seen[string(c.Config)] = true
		if list, err := ParseList(c.Config); err == nil {
			lists = append(lists, list)
		}
	}
	return lists
}

// FindList returns the list of a network, or a list that has only the name.
func FindList(lists []List, network string) List {
	if i := slices.IndexFunc(lists, func(l List) bool { return l.Name == network }); i >= 0 {
		return lists[i]
	}
	return List{Name: network}
}

// ListFiles returns the files of a directory that runtimes read as network lists.
func ListFiles(dir string) ([]string, error) { return filesIn(dir, ".conf", ".conflist", ".json") }

// filesIn returns the files of a directory with one of the extensions, sorted by name; none if the directory does not
// exist.
func filesIn(dir string, extensions ...string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(extensions, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// ReadList reads the list in a file, and the plugins in the directory next to the file that has the network's name
// (specification, section 1: loadOnlyInlinedPlugins).
func ReadList(file string) (list List, err error) {
	err = readFile(file, func(data []byte) error {
		list, err = ParseList(data)
		return err
	})
	list.File = file
	for i := range list.Plugins {
		list.Plugins[i].File = file
	}
	if err != nil || list.isInlined || !cni.ValidName(list.Name) {
		return list, err
	}
	files, err := filesIn(filepath.Join(filepath.Dir(file), list.Name), ".conf")
	for _, name := range files {
		e := Entry{File: name}
		if err := readFile(name, e.parse); err != nil {
			return list, err
		}
		list.Plugins = append(list.Plugins, e)
	}
	return list, err
}

func readFile(file string, parse func([]byte) error) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := parse(data); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// unmarshal calls cni.Unmarshal and adds the line to a syntax error.
func unmarshal(data []byte, v any) error {
	err := cni.Unmarshal(data, v)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
			return fmt.Errorf("%w: the file begins with a byte order mark", syntax)
		}
		return fmt.Errorf("%w (line %d)", syntax, 1+bytes.Count(data[:syntax.Offset], []byte("\n")))
	}
	return err
}

func (e *Entry) parse(data []byte) error {
	if err := unmarshal(data, e); err != nil {
		return err
	}
	return json.Unmarshal(data, &e.Raw)
}

// ParseList parses a list or a single configuration. If there are several versions, it selects the newest one that it
// knows, as runtimes do.
func ParseList(data []byte) (list List, err error) {
	if err := unmarshal(data, &list.Raw); err != nil {
		return list, err
	}
	var doc struct {
		Name         string   `json:"name"`
		CNIVersion   string   `json:"cniVersion"`
		CNIVersions  []string `json:"cniVersions"`
		DisableCheck any      `json:"disableCheck"`
		Inlined      any      `json:"loadOnlyInlinedPlugins"`
		Type         string   `json:"type"`
		Plugins      []Entry  `json:"plugins"`
	}
	if err := unmarshal(data, &doc); err != nil {
		return list, err
	}
	for _, v := range doc.CNIVersions {
		if v <= cni.Newest && (v > doc.CNIVersion || doc.CNIVersion > cni.Newest) {
			doc.CNIVersion = v
		}
	}
	isTrue := func(v any) bool { return strings.EqualFold(fmt.Sprint(v), "true") } // libcni also accepts a string
	list.Name, list.CNIVersion, list.Plugins = doc.Name, doc.CNIVersion, doc.Plugins
	list.NoCheck, list.isInlined = isTrue(doc.DisableCheck), isTrue(doc.Inlined)
	if doc.Type != "" && doc.Plugins == nil {
		list.Plugins, list.isInlined = make([]Entry, 1), true
		return list, list.Plugins[0].parse(data)
	}
	var raw struct{ Plugins []map[string]json.RawMessage }
	err = json.Unmarshal(data, &raw)
	for i := range raw.Plugins {
		list.Plugins[i].Key, list.Plugins[i].Raw = fmt.Sprintf("plugins[%d]", i), raw.Plugins[i]
	}
	return list, err
}

// Conf returns the document that a runtime writes to the standard input of an entry's plugin: the entry's keys, the
// list's name and version, and more keys of the call.
func (l List) Conf(entry int, more map[string]any) []byte {
	conf := map[string]any{}
	for key, value := range l.Plugins[entry].Raw {
		conf[key] = value
	}
	conf["name"], conf["cniVersion"] = l.Name, l.CNIVersion
	maps.Copy(conf, more)
	data, _ := json.Marshal(conf) // decoded values can be encoded
	return data
}

// Usage is a range set with the numbers of its addresses and of its leased addresses.
type Usage struct {
	ranges.Set
	Used, Size float64
}

// Usage returns the usage of the list's range sets, in the order of RangeSets.
func (l List) Usage(all []*Attachment) (sets []Usage) {
	var leased []netip.Addr
	for _, a := range all {
		for _, text := range a.Held(cni.HeldAddress) {
			if addr, err := netip.ParseAddr(FirstWord(text)); err == nil && a.Network == l.Name {
				leased = append(leased, addr)
			}
		}
	}
	for _, set := range l.RangeSets() {
		u := Usage{Set: set}
		for _, r := range set {
			u.Size += r.Size()
			for _, a := range leased {
				if r.Contains(a) {
					u.Used++
				}
			}
		}
		sets = append(sets, u)
	}
	return sets
}

// Bridge returns the name of the bridge that the list's first plugin uses, and the VLAN of its ports; 0 = none.
// That plugin must be bridge.
func (l List) Bridge() (name string, vlan uint16) {
	name = "cni0"
	_ = json.Unmarshal(l.Plugins[0].Raw["bridge"], &name) // bridge refuses other types
	_ = json.Unmarshal(l.Plugins[0].Raw["vlan"], &vlan)
	return name, vlan
}

// RangeSets returns the range sets of a list's host-local, in the order of host-local's files last_reserved_ip.N. It
// omits ranges that the runtime sends, and invalid ranges.
func (l List) RangeSets() (sets []ranges.Set) {
	for _, e := range l.Plugins {
		var ipam struct {
			ranges.Wire
			Ranges  [][]ranges.Wire
			Exclude []string
		}
		if !e.HasIPAM("host-local") || json.Unmarshal(e.Raw["ipam"], &ipam) != nil {
			continue
		}
		exclude, _ := cni.ParseNetworks("exclude", ipam.Exclude)
		parse := func(key string, w ranges.Wire) ranges.Set {
			r, err := w.Parse(key)
			if err != nil {
				return nil
			}
			return ranges.Set{r}.Subtract(exclude)
		}
		if ipam.Subnet != nil {
			sets = append(sets, parse("ipam", ipam.Wire))
		}
		for i, wires := range ipam.Ranges {
			var set ranges.Set
			for j, w := range wires {
				set = append(set, parse(fmt.Sprintf("ipam.ranges[%d][%d]", i, j), w)...)
			}
			sets = append(sets, set)
		}
	}
	return sets
}

// LeaseDir returns the directory of the leases of the list's host-local, or "" without host-local.
func (l List) LeaseDir() string {
	i := slices.IndexFunc(l.Plugins, func(e Entry) bool { return e.HasIPAM("host-local") })
	if i < 0 {
		return ""
	}
	var ipam struct{ DataDir string }
	_ = json.Unmarshal(l.Plugins[i].Raw["ipam"], &ipam) // host-local refuses other types
	return filepath.Join(cmp.Or(ipam.DataDir, "/var/lib/cni/networks"), l.Name)
}

// ResolveFlannel replaces each flannel entry of the list, in place, by the plugin entry that flannel delegates to. For
// a container it is the entry that flannel saved for DEL, otherwise the entry of the next ADD.
func (l List) ResolveFlannel(containerID string) List {
	for i := range l.Plugins {
		l.Plugins[i].ResolveFlannel(containerID)
	}
	return l
}

// ResolveFlannel replaces a flannel entry by the plugin entry that flannel delegates to.
func (e *Entry) ResolveFlannel(containerID string) {
	if e.Type != "flannel" {
		return
	}
	text := func(key, fallback string) (value string) {
		_ = json.Unmarshal(e.Raw[key], &value) // flannel refuses other types
		return cmp.Or(value, fallback)
	}
	delegated := Entry{SubnetFile: text("subnetFile", "/run/flannel/subnet.env"), File: e.File,
		Key: strings.TrimPrefix(e.Key+".delegate", ".")}
	// A tenant may have written the paths. With an empty ID, the path is the directory, and ReadRegular fails.
	saved, err := statefile.ReadRegular(filepath.Join(text("dataDir", "/var/lib/cni/flannel"), containerID))
	if err != nil {
		saved = e.delegate(delegated.SubnetFile)
	}
	_ = delegated.parse(saved) // after an error the entry has no type
	*e = delegated
}

// delegate returns the configuration that flannel builds from its delegate and the node's subnet, without keys that the
// tool does not read. If the subnet is unknown, the configuration declares that the runtime sends the ranges.
func (e *Entry) delegate(subnetFile string) []byte {
	conf, overrides := map[string]any{"type": "bridge"}, map[string]any{}
	_ = json.Unmarshal(e.Raw["delegate"], &overrides)
	maps.Copy(conf, overrides)
	env, _ := statefile.ReadRegular(subnetFile)
	var ranges []any
	for _, word := range strings.Fields(string(env)) {
		key, value, _ := strings.Cut(word, "=")
		subnet, err := netip.ParsePrefix(value)
		if err == nil && (key == "FLANNEL_SUBNET" || key == "FLANNEL_IPV6_SUBNET") {
			ranges = append(ranges, []any{map[string]any{"subnet": subnet.Masked()}})
		}
	}
	conf["ipam"] = map[string]any{"type": "host-local", "ranges": ranges}
	if ranges == nil {
		conf["capabilities"] = map[string]any{"ipRanges": true}
	}
	data, _ := json.Marshal(conf) // decoded values can be encoded
	return data
}
