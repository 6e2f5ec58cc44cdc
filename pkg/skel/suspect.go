package skel

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// What follows is no error, but hardly what somebody meant.

func (c *checker) note(key, reason string) {
	c.more = append(c.more, finding{Level: levelNote, Key: key, Reason: reason})
}

func (c *checker) warn(key, reason, suggestion string) {
	c.more = append(c.more, finding{Level: levelWarning, Key: key, Reason: reason, Suggestion: suggestion})
}

// within is the way to a key of the entry at prefix.
func within(prefix, key string) string {
	if strings.HasPrefix(key, "[") {
		prefix = strings.TrimSuffix(prefix, ".")
	}
	return prefix + key
}

func didYouMean(meant string) string { return fmt.Sprintf("did you mean %q?", meant) }

// refused reports whether there is an error about a key.
func (c *checker) refused(key string) bool { return c.refusedAs(key, "") }

// refusedAs reports whether there is one whose reason begins so.
func (c *checker) refusedAs(key, reason string) bool {
	return slices.ContainsFunc(cni.ProblemsOf(c.problems.Err()), func(p cni.Problem) bool {
		return p.Key == key && strings.HasPrefix(p.Reason, reason)
	})
}

// stranger warns of a configuration that is another plugin's, or nobody's, by
// a letter only.
func (c *checker) stranger(conf []byte, prefix string) {
	name, ipam := typesOf(conf)
	at := "type"
	if c.plugin.IPAM {
		at, name = "ipam.type", ipam
	}
	if meant, _ := closest(name, []key{{name: c.plugin.Name}}); meant != "" {
		c.warn(prefix+at, fmt.Sprintf("is %q, which was not checked", name), didYouMean(meant))
	}
	if c.plugin.IPAM && ipam == "" {
		var object map[string]json.RawMessage
		_ = json.Unmarshal(conf, &object) // an error is reported elsewhere
		h := hinter{left: hintMax, found: c.hint(prefix)}
		h.names(object, []key{{name: "ipam"}}, "")
	}
}

// ipam says who checks the part that is not this plugin's, and warns where it
// is nobody's.
func (c *checker) ipam(conf []byte, prefix string) {
	_, name := typesOf(conf)
	var w struct {
		IPAM map[string]json.RawMessage `json:"ipam"`
	}
	_ = json.Unmarshal(conf, &w) // an error is reported elsewhere
	reads := slices.ContainsFunc(keyTree(reflect.TypeOf(c.plugin.Config), ""), func(k key) bool { return k.name == "ipam" })
	switch {
	case !reads || c.refused(prefix+"ipam.type"):
	case c.plugin.IPAM && name != c.plugin.Name:
		c.warn(prefix+"ipam.type", fmt.Sprintf("is not %q, by which other plugins run this one", c.plugin.Name), fmt.Sprintf(`write "ipam": {"type": %q}`, c.plugin.Name))
	case c.plugin.IPAM:
	case name != "":
		c.note(prefix+"ipam", fmt.Sprintf("is checked by its own plugin: %s --check-config", name))
	case len(w.IPAM) > 0:
		suggestion := `write "type": "host-local", for example`
		h := hinter{left: hintMax, found: func(h hint) { suggestion = didYouMean("type") }}
		h.names(w.IPAM, []key{{name: "type"}}, "")
		c.warn(prefix+"ipam", "has no type: nobody reads it, and no addresses are asked for", suggestion)
	}
}

// capabilities are those that the conventions of the specification name.
var capabilities = []string{"aliases", "bandwidth", "cgroupPath", "deviceID", "dns", "infinibandGUID", "ipRanges", "ips", "mac", "portMappings"}

// misspelt warns of keys that nobody reads.
func (c *checker) misspelt(conf []byte, prefix string) {
	h := hinter{left: hintMax, all: true, found: c.hint(prefix)}
	h.config(c.plugin, conf)
	var w struct {
		Capabilities map[string]json.RawMessage `json:"capabilities"`
	}
	_ = json.Unmarshal(conf, &w) // an error is reported elsewhere
	found := h.found
	h.found = func(h hint) { // a runtime reads them by their exact names
		h.read = false
		found(h)
	}
	h.all = false // there may be some that we have not heard of
	known := make([]key, 0, len(capabilities))
	for _, name := range capabilities {
		known = append(known, key{name: name})
	}
	h.names(w.Capabilities, known, "capabilities")
}

// hint makes a warning of a misspelt key.
func (c *checker) hint(prefix string) func(hint) {
	return func(h hint) {
		f := finding{Level: levelWarning, Key: within(prefix, h.key), Reason: "is unknown and ignored"}
		if h.meant != "" {
			f.Suggestion = didYouMean(h.meant)
		}
		if h.read {
			f.Reason = "is read in spite of its case"
		}
		if h.read && h.twin != "" {
			f.Reason = fmt.Sprintf("is the same key as %q, which is there too", h.twin)
			f.Suggestion = "leave one of them: which one counts is not the same everywhere"
		}
		c.more = append(c.more, f)
	}
}
