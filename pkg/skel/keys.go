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

// key is a key of a configuration, with the way to it.
type key struct {
	name, path string
	help       string // what it means, and in parentheses what it is when it is missing
	inner      []key  // of an object, or of the objects in a list
}

// keysOf reads the tags of a configuration's struct.
func keysOf(t reflect.Type, prefix string) []key {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	var out []key
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			out = append(out, keysOf(f.Type, prefix)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		k := key{name: name, path: prefix + name, help: f.Tag.Get("help")}
		if missing := f.Tag.Get("default"); missing != "" {
			k.help += " (" + missing + ")"
		}
		elem, suffix := f.Type, "."
		for elem.Kind() == reflect.Slice || elem.Kind() == reflect.Pointer {
			if elem.Kind() == reflect.Slice {
				suffix = "[]" + suffix
			}
			elem = elem.Elem()
		}
		k.inner = keysOf(elem, k.path+suffix)
		out = append(out, k)
	}
	return out
}

// protocolKeys are those that the protocol puts into every configuration.
var protocolKeys = []string{"cniVersion", "cniVersions", "name", "type", "args", "capabilities",
	"runtimeConfig", "prevResult", "ipam", "dns", "ipMasq", "disableCheck", "disableGC", "plugins"}

// straysMax bounds how many keys of a configuration are looked at.
const straysMax = 1000

// stray is a key that the plugin does not know by that spelling.
type stray struct {
	key   string // the way to it
	meant string // the way to the key that it is like; empty where it is like none
	read  bool   // it is read as that, since only the case differs
}

// strays returns the keys of a configuration that are the plugin's to know and that
// it does not know.
func strays(p Plugin[any], conf []byte) []stray {
	var object map[string]json.RawMessage
	if p.Config == nil || json.Unmarshal(conf, &object) != nil {
		return nil
	}
	s := searcher{left: straysMax}
	known := keysOf(reflect.TypeOf(p.Config), "")
	if !p.IPAM { // an IPAM plugin is handed the keys of another plugin too
		for _, name := range protocolKeys {
			known = append(known, key{name: name})
		}
		s.names(object, known, "")
	}
	for _, k := range known {
		// The runtime fills in runtimeConfig and args, for the whole chain, and
		// capabilities are asked for on behalf of the IPAM plugin too.
		if !slices.Contains([]string{"runtimeConfig", "args", "capabilities"}, k.name) && (k.name != "ipam" || p.IPAM) {
			s.value(object[k.name], k.inner, k.name)
		}
	}
	return s.found
}

type searcher struct {
	found []stray
	left  int // how many keys may still be looked at
}

// value looks at the objects in raw, which has the keys known and is found at
// path.
func (s *searcher) value(raw json.RawMessage, known []key, path string) {
	if s.left--; s.left < 0 || len(raw) == 0 || known == nil {
		return
	}
	var list []json.RawMessage
	var object map[string]json.RawMessage
	switch {
	case raw[0] == '[' && json.Unmarshal(raw, &list) == nil:
		for i, elem := range list {
			s.value(elem, known, fmt.Sprintf("%s[%d]", path, i))
		}
	case raw[0] == '{' && json.Unmarshal(raw, &object) == nil:
		s.names(object, known, path)
		for _, k := range known {
			s.value(object[k.name], k.inner, path+"."+k.name)
		}
	}
}

// names looks at the keys of one object, which is at path.
func (s *searcher) names(object map[string]json.RawMessage, known []key, path string) {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if s.left--; s.left < 0 {
			return
		}
		meant := closest(name, known)
		if meant == name || name == "$schema" || strings.HasPrefix(name, "cni.dev/") { // editors' and runtimes'
			continue
		}
		found := stray{key: cni.KeyIn(path, name)}
		if meant != "" {
			found.meant, found.read = cni.KeyIn(path, meant), strings.EqualFold(name, meant)
		}
		s.found = append(s.found, found)
	}
}

// closest finds the known key that name was probably meant to be: the same, or one
// that differs by case or, the longer it is, by one or two letters.
func closest(name string, known []key) (meant string) {
	best, lower := 3, strings.ToLower(name)
	for _, k := range known {
		if k.name == name {
			return name
		}
		most := 2
		if len(k.name) < 6 || len(name) < 6 {
			most = 1
		}
		if len(k.name) < 4 {
			most = 0
		}
		// Each letter of difference in length is one to insert.
		if longer := len(lower) - len(k.name); longer > most || -longer > most {
			continue
		}
		if d := distance(lower, strings.ToLower(k.name)); d <= most && d < best {
			best, meant = d, k.name
		}
	}
	return meant
}

// distance counts the letters that must be inserted, removed, replaced or
// swapped with their neighbour to make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
