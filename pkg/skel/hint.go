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

// protocolKeys are those that the protocol puts into every configuration.
var protocolKeys = []string{"cniVersion", "cniVersions", "name", "type", "args", "capabilities",
	"runtimeConfig", "prevResult", "ipam", "dns", "ipMasq", "disableCheck", "disableGC", "plugins"}

// hintMax bounds how many keys of a configuration are looked at for hints.
const hintMax = 1000

// hintKeys warns about keys that nobody reads but that look like one that is
// read. The specification has unknown keys ignored, which makes a misspelt one
// silent; so this is no more than a warning.
func (c *call) hintKeys() {
	h := &hinter{left: hintMax, found: func(h hint) {
		if h.read {
			c.req.Warn("key %q: did you mean %q? It is read as that", h.key, h.meant)
		} else {
			c.req.Warn("key %q is unknown and ignored: did you mean %q?", h.key, h.meant)
		}
	}}
	h.config(c.plugin, c.req.Conf)
}

// hint is a key that no plugin reads, or not by that spelling.
type hint struct {
	key   string // the way to it
	meant string // the way to what was probably meant; empty where nothing is alike
	read  bool   // it is read as that, since only the case differs
	twin  string // another key beside it that differs by case alone
}

// hinter looks for misspelt keys.
type hinter struct {
	found func(hint)
	left  int  // how many keys may still be looked at
	all   bool // find also those that look like nothing
}

// config looks at the keys of a configuration that are the plugin's to know.
func (h *hinter) config(p Plugin[any], conf []byte) {
	var object map[string]json.RawMessage
	if p.Config == nil || json.Unmarshal(conf, &object) != nil {
		return
	}
	known := keyTree(reflect.TypeOf(p.Config), "")
	if !p.IPAM { // an IPAM plugin is handed the keys of another plugin too
		for _, name := range protocolKeys {
			known = append(known, key{name: name})
		}
		h.names(object, known, "")
	}
	for _, k := range known {
		// The runtime fills in runtimeConfig and args, for the whole chain, and
		// capabilities are asked for on behalf of the IPAM plugin too.
		if !slices.Contains([]string{"runtimeConfig", "args", "capabilities"}, k.name) && (k.name != "ipam" || p.IPAM) {
			h.value(object[k.name], k.inner, k.name)
		}
	}
}

// value looks at the objects in raw, which has the keys known and is found at
// path.
func (h *hinter) value(raw json.RawMessage, known []key, path string) {
	if h.left--; h.left < 0 || len(raw) == 0 || known == nil {
		return
	}
	var list []json.RawMessage
	var object map[string]json.RawMessage
	switch {
	case raw[0] == '[' && json.Unmarshal(raw, &list) == nil:
		for i, elem := range list {
			h.value(elem, known, fmt.Sprintf("%s[%d]", path, i))
		}
	case raw[0] == '{' && json.Unmarshal(raw, &object) == nil:
		h.names(object, known, path)
		for _, k := range known {
			h.value(object[k.name], k.inner, path+"."+k.name)
		}
	}
}

// names looks at the keys of one object, which is at path.
func (h *hinter) names(object map[string]json.RawMessage, known []key, path string) {
	folded := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if h.left--; h.left < 0 {
			return
		}
		switch meant, exact := closest(name, known); {
		case exact:
		case meant != "":
			found := hint{key: cni.KeyIn(path, name), meant: cni.KeyIn(path, meant), read: strings.EqualFold(name, meant)}
			if _, ok := object[meant]; ok && found.read {
				found.twin = meant
			} else if found.read {
				found.twin, folded[meant] = folded[meant], name
			}
			h.found(found)
		case h.all && name != "$schema": // for editors
			h.found(hint{key: cni.KeyIn(path, name)})
		}
	}
}

// closest finds the known key that name was probably meant to be: one that
// differs by case or, the longer it is, by one or two letters.
func closest(name string, known []key) (meant string, exact bool) {
	if len(name) > 40 { // no key of ours is nearly as long
		return "", false
	}
	if slices.ContainsFunc(known, func(k key) bool { return k.name == name }) {
		return name, true
	}
	best, lower := 3, strings.ToLower(name)
	for _, k := range known {
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
	return meant, false
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
