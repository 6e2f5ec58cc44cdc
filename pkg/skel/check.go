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

// checkConfig serves --check-config. It reads a configuration, or a list of them,
// from standard input, and prints what is wrong with the entries that are this
// plugin's, by the code that ADD runs, and which of their keys it does not know.
func checkConfig(p Plugin[any], env Env) int {
	c := &checker{call: call{plugin: p, env: env, vars: map[string]string{}}, status: confOther}
	data, err := c.readConf()
	var file map[string]json.RawMessage
	if err == nil {
		err = cni.Unmarshal(data, &file)
	}
	if err == nil && file == nil {
		err = cni.Errorf(cni.CodeConfig, "network configuration: is null, want an object")
	}
	switch {
	case err != nil:
		c.say("error", cni.Problem{Reason: err.Error()})
		c.status = confUnreadable
	case file["plugins"] != nil:
		c.list(file)
	default:
		c.entry("", data)
	}
	verdicts := []string{confGood: "valid", confBad: "not valid", confUnreadable: "not readable",
		confOther: "nothing here is for it"}
	fmt.Fprintf(&c.out, "%s: %s\n", p.Name, verdicts[c.status])
	if _, err := c.out.WriteTo(env.Stdout); err != nil {
		return confUnreadable
	}
	return c.status
}

// checker checks one file.
type checker struct {
	call
	status int
	out    bytes.Buffer
}

func (c *checker) say(level string, p cni.Problem) {
	fmt.Fprintf(&c.out, "%s: %s\n", level, p)
	if p.Suggestion != "" {
		fmt.Fprintf(&c.out, "    %s\n", p.Suggestion)
	}
}

// list checks the entries of a list. Each is given the list's name and version, as
// runtimes do.
func (c *checker) list(file map[string]json.RawMessage) {
	version := file["cniVersion"]
	if version == nil && file["cniVersions"] != nil { // the runtime chooses
		version = json.RawMessage(quote(cni.Newest))
	}
	var entries []map[string]json.RawMessage
	if err := cni.Unmarshal(file["plugins"], &entries); err != nil {
		c.status = confUnreadable
		c.say("error", cni.Problem{Key: "plugins", Reason: "is no list of objects"})
		return
	}
	for i, entry := range entries {
		if entry == nil {
			continue
		}
		entry["name"], entry["cniVersion"] = file["name"], version
		if conf, err := json.Marshal(entry); err == nil {
			c.entry(fmt.Sprintf("plugins[%d]", i), conf)
		}
	}
}

// entry checks a configuration if it is this plugin's, or nobody can say whose. prefix is the way to it in
// the file.
func (c *checker) entry(prefix string, data []byte) {
	var problems cni.Problems
	conf, err := cni.DecodeConfig(data)
	if err == nil && conf.Type != c.plugin.Name && !(c.plugin.IPAM && conf.IPAM.Type == c.plugin.Name) {
		return
	}
	problems.Add(err)
	problems.Add(c.checkVersion(conf.CNIVersion, "ADD"))
	req, err := c.request(data, conf, "ADD")
	problems.Add(err)
	_, err = c.plugin.Parse(req)
	problems.Add(err)
	all := cni.ProblemsOf(problems.Err())
	for _, p := range all {
		if p.Key != "" {
			p.Key = under(prefix, p.Key)
		}
		c.say("error", p)
	}
	for _, s := range strays(c.plugin, data) {
		w := cni.Problem{Key: under(prefix, s.key), Reason: "is unknown and ignored"}
		if s.meant != "" {
			w.Suggestion = fmt.Sprintf("did you mean %q?", under(prefix, s.meant))
		}
		if s.read {
			w.Reason = "is read in spite of its case"
		}
		c.say("warning", w)
	}
	if len(all) > 0 {
		c.status = confBad
	} else if c.status == confOther {
		c.status = confGood
	}
}

// under is the way to a key of what is at prefix.
func under(prefix, key string) string {
	if prefix == "" || key[0] == '[' {
		return prefix + key
	}
	return prefix + "." + key
}
