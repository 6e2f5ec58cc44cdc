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

type key struct {
	name, path string
	help       string // what it means, and in parentheses what it is when it is missing
	inner      []key  // of an object, or of the objects in a list
}

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
	key   string // its path
	meant string // the path of a known key that is spelt like it; empty where there is none
	read  bool   // only the case differs: the decoder takes key for meant
}

// unknownKeys returns the keys of the configuration at path that the plugin does not
// know. Of an IPAM plugin only those inside ipam count: the others are the main plugin's.
func unknownKeys(p Plugin[any], conf []byte, path string) []unknownKey {
	var object map[string]any
	if p.Keys == nil || json.Unmarshal(conf, &object) != nil {
		return nil
	}
	known := keysOf(reflect.TypeOf(p.Keys), "")
	for i, k := range known {
		// These have keys for other plugins of the chain, or for the IPAM plugin.
		shared := []string{"runtimeConfig", "args", "capabilities"}
		if !p.IPAM {
			shared = append(shared, "ipam")
		}
		if slices.Contains(shared, k.name) {
			known[i].inner = nil
		}
	}
	if p.IPAM {
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

// unknownMax is how many unknown keys of an object a message names.
const unknownMax = 64

// unknownIn returns the unknown keys of an object, or of those in a list. Without known keys any may be in it.
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
		if len(found) == unknownMax {
			return found
		}
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

// closest finds the known key that name probably is: one that differs by case or, the longer it is, by a typo or two.
func closest(name string, known []key) string {
	lower := strings.ToLower(name)
	for typos := range 3 {
		for _, k := range known {
			most := 2
			switch {
			case len(k.name) < 4:
				most = 0
			case len(k.name) < 6 || len(name) < 6:
				most = 1
			}
			if typos <= most && differs(lower, strings.ToLower(k.name), typos) {
				return k.name
			}
		}
	}
	return ""
}

// differs reports whether at most so many typos make b of a: a letter too many or too few, another one, or two swapped.
func differs(a, b string, typos int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if a == "" || b == "" || typos == 0 {
		return len(a)+len(b) <= typos
	}
	typos--
	if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] && differs(a[2:], b[2:], typos) {
		return true
	}
	return differs(a[1:], b, typos) || differs(a, b[1:], typos) || differs(a[1:], b[1:], typos)
}
