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
	help       string // description, with the default in parentheses
	inner      []key  // keys of the object, or of the objects in the list
}

// keysOf returns the keys of a struct type, by the tags of its fields.
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
		if value := f.Tag.Get("default"); value != "" {
			k.help += " (" + value + ")"
		}
		elem, elemPath := f.Type, k.path
		for ; elem.Kind() == reflect.Slice || elem.Kind() == reflect.Pointer; elem = elem.Elem() {
			if elem.Kind() == reflect.Slice {
				elemPath += "[]"
			}
		}
		k.inner = keysOf(elem, elemPath+".")
		out = append(out, k)
	}
	return out
}

// protocolKeys are the keys that the protocol permits in every configuration.
var protocolKeys = []string{"cniVersion", "cniVersions", "name", "type", "args", "capabilities",
	"runtimeConfig", "prevResult", "ipam", "dns", "ipMasq", "disableCheck", "disableGC", "plugins"}

// unknownKey is a key that the plugin does not know in this spelling.
type unknownKey struct {
	key           string // path of the key
	similar       string // path of a known key with a similar spelling, or empty
	isCaseVariant bool   // the two keys differ only in case, so the decoder accepts key
}

// unknownKeys returns the keys of a configuration that the plugin does not know. For path, see checkEntry. For an IPAM
// plugin, unknownKeys returns only keys in ipam, because the others are for the main plugin.
func unknownKeys(p Plugin[any], conf []byte, path string) []unknownKey {
	var object map[string]any
	if p.Keys == nil || json.Unmarshal(conf, &object) != nil {
		return nil
	}
	known := keysOf(reflect.TypeOf(p.Keys), "")
	for i, k := range known {
		// These objects also contain keys for other plugins of the chain, or for the IPAM plugin.
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
	found := findUnknown(object, known, path)
	return found[:min(len(found), unknownMax)]
}

func isKnown(name string, known []key) bool {
	return slices.ContainsFunc(known, func(k key) bool { return k.name == name })
}

const unknownMax = 64 // largest number of unknown keys that are reported

// findUnknown returns the unknown keys of an object, or of the objects in a list. A nil known permits all keys.
func findUnknown(value any, known []key, path string) (found []unknownKey) {
	if list, ok := value.([]any); ok {
		for i, elem := range list {
			found = append(found, findUnknown(elem, known, fmt.Sprintf("%s[%d]", path, i))...)
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
		// $schema is for editors, and keys with the prefix cni.dev/ are for runtimes.
		if isKnown(name, known) || name == "$schema" || strings.HasPrefix(name, "cni.dev/") {
			continue
		}
		u := unknownKey{key: cni.KeyIn(path, name)}
		if similar := closest(name, known); similar != "" {
			u.similar, u.isCaseVariant = cni.KeyIn(path, similar), strings.EqualFold(name, similar)
		}
		found = append(found, u)
	}
	for _, k := range known {
		found = append(found, findUnknown(object[k.name], k.inner, cni.KeyIn(path, k.name))...)
	}
	return found
}

// closest returns the known key that is most similar to name, or "". The two may differ in case and by up to two typos.
func closest(name string, known []key) string {
	lower := strings.ToLower(name)
	for typos := range 3 {
		for _, k := range known {
			limit := 2
			switch {
			case len(k.name) < 4:
				limit = 0
			case len(k.name) < 6 || len(name) < 6:
				limit = 1
			}
			if typos <= limit && isWithinTypos(lower, strings.ToLower(k.name), typos) {
				return k.name
			}
		}
	}
	return ""
}

// isWithinTypos reports whether a is b with at most this number of typos. A typo is an additional or missing letter, a
// wrong letter, or two exchanged letters.
func isWithinTypos(a, b string, typos int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if a == "" || b == "" || typos == 0 {
		return len(a)+len(b) <= typos
	}
	typos--
	if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] && isWithinTypos(a[2:], b[2:], typos) {
		return true
	}
	return isWithinTypos(a[1:], b, typos) || isWithinTypos(a, b[1:], typos) || isWithinTypos(a[1:], b[1:], typos)
}
