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
		elem, way := f.Type, k.path
		for ; elem.Kind() == reflect.Slice || elem.Kind() == reflect.Pointer; elem = elem.Elem() {
			if elem.Kind() == reflect.Slice {
				way += "[]"
			}
		}
		k.inner = keysOf(elem, way+".")
		out = append(out, k)
	}
	return out
}

// protocolKeys are those that the protocol puts into every configuration.
var protocolKeys = []string{"cniVersion", "cniVersions", "name", "type", "args", "capabilities",
	"runtimeConfig", "prevResult", "ipam", "dns", "ipMasq", "disableCheck", "disableGC", "plugins"}

// unknownKey is a key that the plugin does not know by that spelling.
type unknownKey struct {
	key   string // the way to it
	meant string // the way to the key that it is like; empty where it is like none
	read  bool   // it is read as that, since only the case differs
}

// unknownKeys returns the keys of a configuration that are the plugin's to know and that
// it does not know. path is the way to the configuration.
func unknownKeys(p Plugin[any], conf []byte, path string) []unknownKey {
	var object map[string]any
	if p.Config == nil || json.Unmarshal(conf, &object) != nil {
		return nil
	}
	known := keysOf(reflect.TypeOf(p.Config), "")
	for i, k := range known {
		// The runtime fills in runtimeConfig and args, for the whole chain, and
		// capabilities are asked for on behalf of the IPAM plugin too.
		ofOthers := []string{"runtimeConfig", "args", "capabilities"}
		if slices.Contains(ofOthers, k.name) || k.name == "ipam" && !p.IPAM {
			known[i].inner = nil
		}
	}
	if p.IPAM { // which is handed the keys of another plugin too
		maps.DeleteFunc(object, func(name string, _ any) bool { return !isKnown(name, known) })
	} else {
		for _, name := range protocolKeys {
			known = append(known, key{name: name})
		}
	}
	return unknownIn(object, known, path)
}

func isKnown(name string, known []key) bool {
	return slices.ContainsFunc(known, func(k key) bool { return k.name == name })
}

// unknownIn returns the unknown keys of an object, or of the objects in a list. An object whose keys nobody
// lists has none.
func unknownIn(value any, known []key, path string) (found []unknownKey) {
	if list, ok := value.([]any); ok {
		for i, elem := range list {
			found = append(found, unknownIn(elem, known, fmt.Sprintf("%s[%d]", path, i))...)
		}
	}
	object, ok := value.(map[string]any)
	if !ok || known == nil {
		return found
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		// $schema is for editors, cni.dev/ is the runtimes'.
		if isKnown(name, known) || name == "$schema" || strings.HasPrefix(name, "cni.dev/") {
			continue
		}
		u := unknownKey{key: cni.KeyIn(path, name)}
		if meant := closest(name, known); meant != "" {
			u.meant, u.read = cni.KeyIn(path, meant), strings.EqualFold(name, meant)
		}
		found = append(found, u)
	}
	for _, k := range known {
		found = append(found, unknownIn(object[k.name], k.inner, cni.KeyIn(path, k.name))...)
	}
	return found
}

// closest finds the known key that name was probably meant to be: one that differs
// by case or, the longer it is, by one or two letters.
func closest(name string, known []key) (meant string) {
	best, lower := 3, strings.ToLower(name)
	for _, k := range known {
		most := 2
		switch {
		case len(k.name) < 4:
			most = 0
		case len(k.name) < 6 || len(name) < 6:
			most = 1
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
