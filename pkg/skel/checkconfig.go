package skel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Exit statuses of --check-config.
const (
	confGood       = 0
	confBad        = 1
	confUnreadable = 2
	confOther      = 3 // nothing in it is this plugin's
)

// checkConfig serves --check-config. It reads a configuration, or a list of
// them, from standard input and reports all that is wrong with it as far as it
// concerns this plugin: its own entries, by the code that ADD runs, and the
// keys that any plugin can judge.
func checkConfig(p Plugin[any], env Env) int {
	asJSON := false
	for _, arg := range env.Args {
		switch arg {
		case "--check-config":
		case "--json":
			asJSON = true
		default:
			fmt.Fprintf(env.Stderr, "%s: %q: --check-config takes --json and nothing else; the configuration is read from standard input\n", p.Name, arg)
			return confUnreadable
		}
	}
	c := &checker{call: call{plugin: p, env: env, vars: map[string]string{}}}
	data, err := c.readConf()
	if err == nil {
		err = c.file(data)
	}
	if err == nil {
		c.duplicates()
	}
	r := c.report(err)
	if r.print(env.Stdout, asJSON) != nil {
		return confUnreadable
	}
	return r.status()
}

// checker checks one file.
type checker struct {
	call
	doc      json.RawMessage // the file
	entries  []entry         // this plugin's configurations
	problems cni.Problems
	more     []finding // what is no error
}

// entry is a configuration as the plugin is given it.
type entry struct {
	prefix string // the way to it in the file, with a dot at its end
	conf   json.RawMessage
}

// value is what stands in the file under a key, or, where that was said more
// than once, what counted.
func (c *checker) value(key string) json.RawMessage {
	for _, e := range c.entries {
		if rest, ok := strings.CutPrefix(key, e.prefix); ok {
			return lookup(e.conf, rest)
		}
	}
	return lookup(c.doc, key)
}

// file checks what the file is. An error says that it cannot be read.
func (c *checker) file(data []byte) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		return locate(data, err)
	}
	if object == nil {
		return cni.Errorf(cni.CodeConfig, "network configuration: is null, want an object")
	}
	c.doc = data
	if _, ok := object["plugins"]; ok {
		c.list(data, object)
		return nil
	}
	if c.misspeltList(object) {
		return nil
	}
	c.require(object, "cniVersion", "name", "type")
	c.common(data, "")
	switch {
	case c.isOwn(data):
		c.entry(data, "")
	case c.plugin.IPAM:
		c.stranger(data, "")
		c.note("", fmt.Sprintf("there is no ipam.type %q", c.plugin.Name))
	default:
		c.stranger(data, "")
		c.note("", "this is no configuration of "+c.plugin.Name)
	}
	return nil
}

// typesOf are the plugins that a configuration names.
func typesOf(conf []byte) (name, ipam string) {
	var w struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	_ = json.Unmarshal(conf, &w) // an error is reported elsewhere
	return w.Type, w.IPAM.Type
}

// isOwn reports whether a configuration is this plugin's to check.
func (c *checker) isOwn(conf []byte) bool {
	name, ipam := typesOf(conf)
	return name == c.plugin.Name || c.plugin.IPAM && ipam == c.plugin.Name
}

// locate says in which line the JSON ends to be JSON.
func locate(data []byte, err error) error {
	s := (*json.SyntaxError)(nil)
	if !errors.As(err, &s) {
		return cni.Unmarshal(data, new(map[string]any))
	}
	before := data[:max(0, min(int(s.Offset)-1, len(data)))]
	line, column := bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n')
	return cni.Errorf(cni.CodeDecode, "network configuration: no valid JSON at line %d, column %d: %w", line, column, s)
}

// require reports keys that runtimes want, whatever the plugin does.
func (c *checker) require(object map[string]json.RawMessage, keys ...string) {
	for _, key := range keys {
		if raw := string(object[key]); raw == "" || raw == "null" || raw == `""` {
			c.problems.Add(cni.Refuse(key, nil, "missing; the specification requires it"))
		}
	}
}

// wireEntry is what runtimes themselves read of a configuration
// (specification, section 1).
type wireEntry struct {
	Type         *string         `json:"type" help:"the plugin: a program in CNI_PATH" schema:"required format=file"`
	CNIVersions  []string        `json:"cniVersions" help:"versions of the specification that the plugin speaks"`
	Capabilities map[string]bool `json:"capabilities" help:"what the runtime is to send in runtimeConfig"`
	IPAM         struct {
		Type string `json:"type" help:"the IPAM plugin: a program in CNI_PATH" schema:"format=file empty"`
	} `json:"ipam" help:"the IPAM plugin's part"`
	DNS           cni.DNS        `json:"dns" help:"resolver settings"`
	Args          map[string]any `json:"args" help:"more for plugins that understand it"`
	RuntimeConfig map[string]any `json:"runtimeConfig" help:"what the runtime sends, as capabilities ask"`
	PrevResult    map[string]any `json:"prevResult" help:"the result of the plugin before, which the runtime sends"`
}

// common checks the keys that the runtime itself reads of an entry, whoever's
// it is.
func (c *checker) common(conf []byte, prefix string) {
	var w wireEntry
	c.problems.AddIn(prefix, cni.Unmarshal(conf, &w))
	switch {
	case w.Type == nil && prefix != "":
		c.problems.AddIn(prefix, cni.Refuse("type", nil, "missing; it names the plugin"))
	case w.Type != nil && !cni.ValidType(*w.Type):
		c.problems.AddIn(prefix, cni.Refuse("type", *w.Type, "is no plugin name (it must be a plain file name)"))
	}
}

// entry checks a configuration as ADD would, and for what only a person wants
// to know of it. prefix is the way to it.
func (c *checker) entry(data []byte, prefix string) {
	c.entries = append(c.entries, entry{prefix, data})
	conf, err := cni.DecodeConfig(data)
	c.problems.AddIn(prefix, err)
	if err := c.checkVersion(conf.CNIVersion, "ADD"); err != nil {
		c.problems.AddIn(prefix, err)
		conf.CNIVersion = cni.Newest
	}
	req, err := c.request(data, conf, "ADD")
	c.problems.AddIn(prefix, err)
	if c.plugin.Parse != nil {
		_, err := c.plugin.Parse(req)
		c.problems.AddIn(prefix, err)
	}
	c.misspelt(data, prefix)
	c.ipam(data, prefix)
}
