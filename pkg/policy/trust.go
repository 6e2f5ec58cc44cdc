package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// extensions are the extensions of the network files that runtimes read.
var extensions = []string{".conf", ".conflist", ".json"}

// Network is a network in the administrator's directories.
type Network struct {
	Name    string
	Bridges []string // bridges of its entries, also with the VLAN, such as cni0.5
	IsOwn   bool     // true if the configuration of the call equals one of its entries
}

// NetworksFor returns the networks in the administrator's directories, which the policy at path names (default:
// /etc/cni/net.d). conf is the configuration of the call, for Network.IsOwn. unread is an error for files that
// cannot be read, which contains an fs.PathError, or are not valid JSON. err is an error of the policy or of conf.
func NetworksFor(path string, conf []byte) (networks []Network, unread, err error) {
	p, err := Load(path, true)
	if p == nil {
		p = &Policy{TrustedDirs: defaultDirs()}
	}
	var values map[string]any
	if err == nil {
		err = decodeNumbers(conf, &values)
	}
	if err == nil {
		networks, unread = p.networks(values)
	}
	return networks, unread, err
}

func defaultDirs() []string { return []string{"/etc/cni/net.d"} }

// networks returns the administrator's networks for NetworksFor. Missing directories and files are not errors. In a
// rootless process, unreadable ones are not errors either, because their networks are in another network namespace.
func (p *Policy) networks(conf map[string]any) (networks []Network, unread error) {
	own := p.withoutRuntimeKeys(conf)
	report := func(err error) {
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && isRootless():
		case unread == nil:
			unread = err
		default:
			unread = fmt.Errorf("%w; %w", unread, err)
		}
	}
	for _, dir := range p.TrustedDirs {
		files, err := os.ReadDir(dir)
		report(err)
		for _, file := range files {
			if !slices.Contains(extensions, filepath.Ext(file.Name())) || file.IsDir() {
				continue
			}
			list, err := readList(filepath.Join(dir, file.Name()))
			if err != nil {
				report(err)
				continue
			}
			n := Network{Name: text(list["name"])}
			entries, _ := list["plugins"].([]any)
			if entries == nil {
				entries = []any{list}
			}
			for _, e := range entries {
				entry, _ := e.(map[string]any)
				bridge := bridgeOf(entry, text(entry["type"]))
				n.Bridges = append(n.Bridges, bridge, fmt.Sprintf("%s.%v", bridge, entry["vlan"]))
				n.IsOwn = n.IsOwn || n.Name == text(conf["name"]) && isDeclared(conf, entry) &&
					reflect.DeepEqual(p.withoutRuntimeKeys(entry), own)
			}
			networks = append(networks, n)
		}
	}
	return networks, unread
}

// isRootless reports whether the process is in a user namespace, in which an ordinary user of the host may be root.
func isRootless() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"})
}

func readList(file string) (list map[string]any, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err = decodeNumbers(data, &list); err != nil {
		return nil, fmt.Errorf("%s: not valid JSON: %w", file, err)
	}
	return list, nil
}

// bridgeOf returns the bridge that a plugin's configuration names or uses by default, or "".
func bridgeOf(entry map[string]any, plugin string) string {
	if plugin == "flannel" {
		entry, _ = entry["delegate"].(map[string]any)
		plugin = cmp.Or(text(entry["type"]), "bridge")
	}
	name := text(entry["bridge"])
	if name == "" && plugin == "bridge" {
		return "cni0"
	}
	return name
}

// withoutRuntimeKeys returns an entry without the keys that a runtime adds. multus adds the keys of a device, which are
// removed only if allowKeys has them.
func (p *Policy) withoutRuntimeKeys(entry map[string]any) map[string]any {
	out := maps.Clone(entry)
	maps.DeleteFunc(out, func(key string, _ any) bool {
		isDevice := key == "deviceID" || key == "pciBusID"
		return slices.Contains([]string{"name", "cniVersion", "prevResult", "runtimeConfig"}, key) ||
			strings.HasPrefix(key, "cni.dev/") || isDevice && slices.Contains(p.AllowKeys, key)
	})
	return out
}

// isDeclared reports whether each key of conf's runtimeConfig is a capability of the entry, or has the same value in
// the entry. A runtime adds no other key.
func isDeclared(conf, entry map[string]any) bool {
	values, _ := conf["runtimeConfig"].(map[string]any)
	entryValues, _ := entry["runtimeConfig"].(map[string]any)
	capabilities, _ := entry["capabilities"].(map[string]any)
	for key, value := range values {
		if capabilities[key] != true && !reflect.DeepEqual(entryValues[key], value) {
			return false
		}
	}
	return true
}

// duplicateKey returns the first key that an object has twice, in the same or another case, or "". A decoder may use
// the first value of such a key, the last one, or both.
func duplicateKey(conf []byte) (key string) {
	var seen []map[string]bool // the keys before this one in each object or list around it
	cni.WalkValues(conf, func(path []string, _ int64) bool {
		depth := len(path)
		seen = append(seen[:depth], nil)
		if depth == 0 {
			return true
		}
		name, around := fold(path[depth-1]), seen[depth-1]
		switch {
		case around[name]:
			key = cni.JoinKeys(path)
		case around == nil:
			seen[depth-1] = map[string]bool{name: true}
		default:
			around[name] = true
		}
		return key == ""
	})
	return key
}

// fold returns the key in lower case, so that keys that encoding/json treats as equal become equal. encoding/json uses
// Unicode's simple folding, in which the Kelvin sign equals k.
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		for next := unicode.SimpleFold(r); ; r, next = next, unicode.SimpleFold(next) {
			if next <= r { // the smallest of the equal runes; an ASCII capital is smaller than its other forms
				return unicode.ToLower(next)
			}
		}
	}, key)
}

// foldKeys returns the value with the keys of all objects in lower case.
func foldKeys(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(value))
		for k, v := range value {
			out[fold(k)] = foldKeys(v)
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i, v := range value {
			out[i] = foldKeys(v)
		}
		return out
	}
	return value
}
