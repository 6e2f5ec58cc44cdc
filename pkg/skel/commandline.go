package skel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// serveCommandLine serves a user's call, which has a known argument or no variable of the protocol. For a runtime's
// call, done is false, and unknown arguments are ignored.
func serveCommandLine(p Plugin[any], env Env, vars map[string]string) (done bool, code int) {
	if len(env.Args) > 0 {
		if command := p.Commands[env.Args[0]]; command != nil {
			return true, command(env)
		}
		switch env.Args[0] {
		case "--check-config":
			return true, checkConfig(p, env)
		case "--help", "-h", "-help", "help":
			printHelp(env.Stdout, p)
			return true, 0
		case "--version", "-version", "-V", "version":
			fmt.Fprintf(env.Stdout, "%s %s (CNI %s)\n", p.Name, Version(), strings.Join(cni.Versions(), ", "))
			return true, 0
		}
	}
	for _, name := range []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"} {
		if vars[name] != "" {
			return false, 0
		}
	}
	if len(env.Args) > 0 {
		fmt.Fprintf(env.Stderr, "%s: unknown option %q; there are --check-config, --help and --version\n", p.Name,
			env.Args[0])
		return true, confUnreadable
	}
	// The line has the version of the reference plugins, with Hawser's version as its build metadata. nerdctl reads it
	// to find out whether firewall can isolate networks, and Nomad compares it with a minimum.
	fmt.Fprintf(env.Stderr, "CNI %s plugin %s+hawser.%s\n", p.Name, Reference, strings.ReplaceAll(Version(), "+", "."))
	printHelp(env.Stderr, p)
	return true, 0
}

func printHelp(w io.Writer, p Plugin[any]) {
	fmt.Fprintf(w, "%s %s: %s\n", p.Name, Version(), p.About)
	fmt.Fprintf(w, "CNI protocol versions supported: %s\n\n", strings.Join(cni.Versions(), ", "))
	fmt.Fprint(w, `A CNI plugin: a container runtime runs it with CNI_COMMAND, CNI_CONTAINERID,
CNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH in its environment and the network
configuration, a JSON object, on its standard input.

`+p.Name+` --check-config < FILE reports all problems of this plugin's part of a
network configuration, or of a list of them. Exit status 0: valid, 1: not valid,
2: not readable, 3: no entry for this plugin. With --policy FILE it also reports
what a policy for tenants does not permit.
`)
	keys := keysOf(reflect.TypeOf(p.Keys), "")
	fmt.Fprintf(w, "\nKeys of the configuration:\n")
	table := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	printKeys(table, keys)
	_ = table.Flush()
}

func printKeys(w io.Writer, keys []key) {
	for _, k := range keys {
		if k.help != "" {
			fmt.Fprintf(w, "  %s\t%s\n", k.path, k.help)
		}
		printKeys(w, k.inner)
	}
}

// Exit statuses of --check-config, and of a wrong command line.
const (
	confValid      = 0
	confInvalid    = 1
	confUnreadable = 2
	confNoEntry    = 3
)

// checker is a call of --check-config.
type checker struct {
	call
	status int
}

// checkConfig implements --check-config: it reads the configuration of a plugin, or a list of plugins, from standard
// input. For this plugin's entries, it prints the values that ADD would refuse, and the unknown keys.
func checkConfig(p Plugin[any], env Env) int {
	c := &checker{call: call{plugin: p, env: env, start: time.Now()}, status: confNoEntry}
	err := c.readPolicyFlag()
	var data []byte
	if err == nil {
		data, err = c.readConf(confMax)
	}
	if err == nil {
		err = c.checkFile(data)
	}
	if err != nil {
		c.status = confUnreadable
		fmt.Fprintf(c.env.Stdout, "error: %v\n", err)
	}
	verdicts := []string{confValid: "valid", confInvalid: "not valid", confUnreadable: "not readable",
		confNoEntry: "no entry for this plugin"}
	fmt.Fprintf(c.env.Stdout, "%s: %s\n", p.Name, verdicts[c.status])
	return c.status
}

// readPolicyFlag parses the arguments after --check-config: none, or --policy and a file. Without --policy, no policy
// is checked, not even the node's.
func (c *checker) readPolicyFlag() error {
	c.env.Policy = ""
	switch args := c.env.Args[1:]; {
	case len(args) == 0:
	case len(args) == 2 && args[0] == "--policy":
		c.env.Policy = args[1]
		if st, err := os.Stat(args[1]); err != nil || !st.Mode().IsRegular() {
			return fmt.Errorf("--policy %q: no such file", args[1])
		}
	default:
		return fmt.Errorf("--check-config takes --policy FILE and no other argument, not %q", args)
	}
	return nil
}

func (c *checker) checkFile(data []byte) error {
	var file map[string]json.RawMessage
	if err := cni.Unmarshal(data, &file); err != nil {
		return err
	}
	if file["plugins"] == nil {
		c.checkEntry("", data, false)
		return nil
	}
	var entries []map[string]json.RawMessage
	if cni.Unmarshal(file["plugins"], &entries) != nil {
		return errors.New("plugins: is not a list of objects")
	}
	version := file["cniVersion"]
	if version == nil && file["cniVersions"] != nil { // the runtime chooses a version
		version = json.RawMessage(`"` + cni.Newest + `"`)
	}
	for i, entry := range entries {
		if entry == nil {
			continue
		}
		entry["name"], entry["cniVersion"] = file["name"], version // like a runtime
		if conf, err := json.Marshal(entry); err == nil {
			c.checkEntry(fmt.Sprintf("plugins[%d]", i), conf, i == 0)
		}
	}
	return nil
}

// checkEntry prints the findings for a configuration, if it is for this plugin or cannot be decoded. path is the JSON
// path of the configuration in its file, for example plugins[1], or empty if the file has only this configuration.
func (c *checker) checkEntry(path string, data []byte, first bool) {
	conf, err := cni.DecodeConfig(data)
	if err == nil && !c.isThisPlugin(conf.Type) && !(c.plugin.IPAM && c.isThisPlugin(conf.IPAM.Type)) {
		return
	}
	if c.status == confNoEntry {
		c.status = confValid
	}
	for _, f := range c.findings(path, data, first) {
		level := "warning"
		if !f.Warning {
			level, c.status = "error", confInvalid
		}
		fmt.Fprintf(c.env.Stdout, "%s: %s\n", level, f.Problem)
		if f.Suggestion != "" {
			fmt.Fprintf(c.env.Stdout, "    %s\n", f.Suggestion)
		}
	}
}

// isThisPlugin reports whether a type names this plugin. A longer name that ends in the plugin's name may belong to
// another project. Such a name is accepted only if it is the program's name in this call (Env.Called), or if the file
// with that name in CNI_PATH is the running program.
func (c *checker) isThisPlugin(name string) bool {
	if name == c.plugin.Name || !cni.IsPlugin(name, c.plugin.Name) {
		return name == c.plugin.Name // the exact name, or no match
	}
	if name == c.env.Called {
		return true
	}
	for _, dir := range filepath.SplitList(environ(c.env.Vars)["CNI_PATH"]) {
		if file, err := os.Stat(filepath.Join(dir, name)); err == nil { // runtimes use the first file
			return isRunning(file)
		}
	}
	return false
}

// Finding is a result of --check-config: a problem for which ADD fails, or a warning.
type Finding struct {
	cni.Problem
	Warning bool
}

// findings returns the findings for a configuration, or none if it is for another plugin. For path, see checkEntry.
// first is true for the first entry of a list.
func (c *call) findings(path string, data []byte, first bool) (found []Finding) {
	conf, err := cni.DecodeConfig(data)
	isMain := cni.IsPlugin(conf.Type, c.plugin.Name)
	if err == nil && !isMain && !(c.plugin.IPAM && cni.IsPlugin(conf.IPAM.Type, c.plugin.Name)) {
		return nil
	}
	var problems cni.Problems
	problems.AddIn(path, err)
	if first && c.plugin.Chained && isMain {
		problems.AddIn(path, cni.Refuse("type", conf.Type,
			"is the first of the list, but needs a plugin before it that creates the interface"))
	}
	conf.CNIVersion = cmp.Or(conf.CNIVersion, cni.Oldest) // after an error, DecodeConfig does not set the default
	problems.AddIn(path, c.checkVersion(conf.CNIVersion, "ADD"))
	_, err = c.newRequest(data, conf, "ADD")
	problems.AddIn(path, err)
	for _, p := range cni.ProblemsOf(problems.Err()) {
		found = append(found, Finding{Problem: p})
	}
	warn := func(key, reason, suggestion string) {
		found = append(found, Finding{cni.Problem{Key: key, Reason: reason, Suggestion: suggestion}, true})
	}
	var raw struct{ CNIVersion string } // conf has the default instead
	if json.Unmarshal(data, &raw) == nil && raw.CNIVersion == "" {
		warn(cni.KeyIn(path, "cniVersion"),
			fmt.Sprintf("is missing, so it is %s; some runtimes refuse that", conf.CNIVersion), "")
	}
	for _, u := range unknownKeys(c.plugin, data, path) {
		reason, suggestion := "is unknown and ignored", ""
		if u.isCaseVariant {
			reason = "is accepted in spite of its case"
		}
		if u.similar != "" {
			suggestion = fmt.Sprintf("did you mean %q?", u.similar)
		}
		warn(u.key, reason, suggestion)
	}
	return found
}
