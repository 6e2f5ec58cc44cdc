package skel

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Exit statuses of --check-config, and of a wrong command line.
const (
	confGood       = 0
	confBad        = 1
	confUnreadable = 2
	confOther      = 3 // nothing in it is this plugin's
)

// checker checks one file.
type checker struct {
	call
	status int
	depth  int // how many delegates the entry is in
	out    bytes.Buffer
}

// mostNested is how deep delegates are followed. Two is usual: flannel's, in a list that is
// one of multus'.
const mostNested = 8

// checkConfig serves --check-config. It reads a configuration, or a list of them,
// from standard input, and prints what is wrong with the entries that are this
// plugin's, by the code that ADD runs, and which of their keys it does not know.
func checkConfig(p Plugin[any], env Env) int {
	c := &checker{call: call{plugin: p, env: env}, status: confOther}
	data, err := c.readConf()
	if err == nil {
		err = c.file("", data)
	}
	if err != nil {
		c.unreadable(err.Error())
	}
	verdicts := []string{confGood: "valid", confBad: "not valid", confUnreadable: "not readable",
		confOther: "nothing here is for it"}
	fmt.Fprintf(&c.out, "%s: %s\n", p.Name, verdicts[c.status])
	_, _ = c.out.WriteTo(env.Stdout) // nobody listens to a complaint either
	return c.status
}

func (c *checker) unreadable(reason string) {
	c.status = confUnreadable
	fmt.Fprintf(&c.out, "error: %s\n", reason)
}

// file checks a configuration, or a list of them. path is the way to it in the
// whole.
func (c *checker) file(path string, data []byte) error {
	var file map[string]json.RawMessage
	if err := cni.Unmarshal(data, &file); err != nil {
		return err
	}
	if file["plugins"] != nil {
		c.list(path, file)
		return nil
	}
	if completeIPAM(file) {
		data, _ = json.Marshal(file) // which was read from JSON
	}
	if !c.entry(path, data, false) {
		c.delegates(path, file)
	}
	return nil
}

// list checks the entries of a list. Each is given the list's name and version, as
// runtimes do.
func (c *checker) list(path string, file map[string]json.RawMessage) {
	version := file["cniVersion"]
	if version == nil && file["cniVersions"] != nil { // the runtime chooses
		version = json.RawMessage(`"` + cni.Newest + `"`)
	}
	path = cni.KeyIn(path, "plugins")
	var entries []map[string]json.RawMessage
	if err := cni.Unmarshal(file["plugins"], &entries); err != nil {
		c.unreadable(path + ": is no list of objects")
		return
	}
	for i, entry := range entries {
		if entry == nil {
			continue
		}
		entry["name"], entry["cniVersion"] = file["name"], version
		completeIPAM(entry)
		way := fmt.Sprintf("%s[%d]", path, i)
		if conf, err := json.Marshal(entry); err == nil && !c.entry(way, conf, i == 0) {
			c.delegates(way, entry)
		}
	}
}

// completeIPAM gives the ipam of an entry of flannel's, if it has one, what flannel adds to it: a type, and in place
// of the node's subnet any. It reports whether it did.
func completeIPAM(entry map[string]json.RawMessage) bool {
	var ipam map[string]json.RawMessage
	if string(entry["type"]) != `"flannel"` || json.Unmarshal(entry["ipam"], &ipam) != nil || ipam == nil {
		return false
	}
	if ipam["type"] == nil {
		ipam["type"] = json.RawMessage(`"host-local"`)
	}
	ipam["ranges"] = json.RawMessage(`[[{"subnet": "10.244.0.0/24"}]]`)
	entry["ipam"], _ = json.Marshal(ipam)
	return true
}

// delegates checks the configurations that another plugin hands on: flannel's
// delegate, which it completes, and multus' delegates, each a file of its own.
func (c *checker) delegates(path string, entry map[string]json.RawMessage) {
	if c.depth == mostNested {
		return
	}
	c.depth++
	defer func() { c.depth-- }()
	var one map[string]json.RawMessage
	if json.Unmarshal(entry["delegate"], &one) == nil && one != nil {
		one["name"], one["cniVersion"] = entry["name"], entry["cniVersion"]
		if one["type"] == nil {
			one["type"] = json.RawMessage(`"bridge"`)
		}
		if one["ipam"] == nil && !c.plugin.IPAM { // an IPAM plugin has seen it in the entry
			one["ipam"] = json.RawMessage(`{"type": "host-local"}`)
			if entry["ipam"] != nil {
				one["ipam"] = entry["ipam"]
			}
		}
		if conf, err := json.Marshal(one); err == nil {
			_ = c.file(cni.KeyIn(path, "delegate"), conf) // no error: it is an object
		}
	}
	var many []json.RawMessage
	_ = json.Unmarshal(entry["delegates"], &many) // what is no list of objects is not multus'
	for i, conf := range many {
		_ = c.file(fmt.Sprintf("%s[%d]", cni.KeyIn(path, "delegates"), i), conf)
	}
}

// entry checks a configuration if it is this plugin's, or nobody can say whose, and
// reports whether it was. path is the way to it in the file; first says that it is the first of a list.
func (c *checker) entry(path string, data []byte, first bool) bool {
	conf, err := cni.DecodeConfig(data)
	if err == nil && conf.Type != c.plugin.Name && !(c.plugin.IPAM && conf.IPAM.Type == c.plugin.Name) {
		return false
	}
	prefix := path
	if path != "" {
		prefix += "."
	}
	var problems cni.Problems
	problems.AddIn(prefix, err)
	if first && c.plugin.Chained && conf.Type == c.plugin.Name {
		problems.AddIn(prefix, cni.Refuse("type", conf.Type,
			"is the first of the list, and needs a plugin before it, which makes the interface"))
	}
	problems.AddIn(prefix, c.checkVersion(conf.CNIVersion, "ADD"))
	req, err := c.request(data, conf, "ADD")
	problems.AddIn(prefix, err)
	_, err = c.plugin.Parse(req)
	problems.AddIn(prefix, err)
	all := cni.ProblemsOf(problems.Err())
	for _, p := range all {
		fmt.Fprintf(&c.out, "error: %s\n", p)
		if p.Suggestion != "" {
			fmt.Fprintf(&c.out, "    %s\n", p.Suggestion)
		}
	}
	var given struct{ CNIVersion string }
	if json.Unmarshal(data, &given) == nil && given.CNIVersion == "" {
		fmt.Fprintf(&c.out, "warning: %scniVersion: is missing and taken for %s; some runtimes refuse that\n", prefix,
			conf.CNIVersion)
	}
	for _, s := range strays(c.plugin, data, path) {
		reason := "is unknown and ignored"
		if s.read {
			reason = "is read in spite of its case"
		}
		fmt.Fprintf(&c.out, "warning: %s: %s\n", s.key, reason)
		if s.meant != "" {
			fmt.Fprintf(&c.out, "    did you mean %q?\n", s.meant)
		}
	}
	switch {
	case c.status == confUnreadable: // which nothing mends
	case len(all) > 0:
		c.status = confBad
	case c.status == confOther:
		c.status = confGood
	}
	return true
}
