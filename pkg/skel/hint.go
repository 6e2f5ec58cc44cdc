package skel

import (
	"encoding/json"
	"reflect"
	"sort"
	"strings"
)

// protocolKeys are those that the protocol puts into every configuration.
var protocolKeys = []string{"cniVersion", "cniVersions", "name", "type", "args", "capabilities",
	"runtimeConfig", "prevResult", "ipam", "dns", "ipMasq", "disableCheck", "disableGC", "plugins"}

// hintKeys warns about keys that nobody reads but that look like one that is
// read. The specification has unknown keys ignored, which makes a misspelt one
// silent; so this is no more than a warning.
func (c *call) hintKeys() {
	var object map[string]json.RawMessage
	if c.plugin.Config == nil || json.Unmarshal(c.req.Conf, &object) != nil {
		return
	}
	known := keyTree(reflect.TypeOf(c.plugin.Config), "")
	if !c.plugin.IPAM { // an IPAM plugin is handed the keys of another plugin too
		for _, name := range protocolKeys {
			known = append(known, key{name: name})
		}
		c.hintObject(object, known, "")
	}
	for _, k := range known {
		if raw, ok := object[k.name]; ok && k.inner != nil && k.name != "runtimeConfig" && k.name != "args" && (k.name != "ipam" || c.plugin.IPAM) {
			var inner map[string]json.RawMessage
			if json.Unmarshal(raw, &inner) == nil {
				c.hintObject(inner, k.inner, k.name+".")
			}
		}
	}
}

func (c *call) hintObject(object map[string]json.RawMessage, known []key, prefix string) {
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		switch meant, exact := closest(name, known); {
		case exact || meant == "":
		case strings.EqualFold(name, meant):
			c.req.Warn("key %q: read as %q", prefix+name, prefix+meant)
		default:
			c.req.Warn("key %q is unknown and ignored: did you mean %q?", prefix+name, prefix+meant)
		}
	}
}

// closest finds the known key that name was probably meant to be: one that
// differs by case or, the longer it is, by one or two letters.
func closest(name string, known []key) (meant string, exact bool) {
	if len(name) > 40 { // no key of ours is nearly as long
		return "", false
	}
	best := 3
	for _, k := range known {
		if k.name == name {
			return k.name, true
		}
		d := distance(strings.ToLower(name), strings.ToLower(k.name))
		most := 2
		if len(k.name) < 6 || len(name) < 6 {
			most = 1
		}
		if len(k.name) < 4 {
			most = 0
		}
		if d <= most && d < best {
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
