package skel

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// forPeople serves a person who runs the program by hand: with a known argument, or
// without any of the protocol's variables. Beside those unknown arguments are ignored.
func forPeople[C any](p Plugin[C], env Env, vars map[string]string) (done bool, code int) {
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
			fmt.Fprintf(env.Stdout, "%s %s (CNI %s)\n", p.Name, version, strings.Join(cni.Versions(), ", "))
			return true, 0
		}
	}
	for _, name := range []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"} {
		if vars[name] != "" {
			return false, 0
		}
	}
	if len(env.Args) > 0 {
		fmt.Fprintf(env.Stderr, "%s: %q is no option; there are --check-config, --help and --version\n", p.Name,
			env.Args[0])
		return true, confUnreadable
	}
	fmt.Fprintf(env.Stderr, "CNI %s plugin %s\n", p.Name, behaviour())
	printHelp(env.Stderr, p)
	return true, 0
}

// behaviour is the version of the reference plugins whose behaviour this is, with
// our own in its build metadata. nerdctl asks so whether firewall can isolate
// networks, and Nomad whether a node's plugins are of this decade.
func behaviour() string {
	return "v1.9.1+hawser." + strings.ReplaceAll(version, "+", ".")
}

func printHelp[C any](w io.Writer, p Plugin[C]) {
	fmt.Fprintf(w, "%s %s: %s\n", p.Name, version, p.About)
	fmt.Fprintf(w, "CNI protocol versions supported: %s\n\n", strings.Join(cni.Versions(), ", "))
	fmt.Fprint(w, `A CNI plugin: a container runtime runs it with CNI_COMMAND, CNI_CONTAINERID,
CNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH in its environment and the network
configuration, a JSON object, on its standard input.

`+p.Name+` --check-config < FILE says all that is wrong with this plugin's part of a
network configuration, or of a list of them. Exit status 0: valid, 1: not valid,
2: not readable, 3: nothing in it is for this plugin.
`)
	keys := keysOf(reflect.TypeOf(p.Config), "")
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
