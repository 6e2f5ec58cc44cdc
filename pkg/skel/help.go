package skel

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// forPeople serves a person who runs the program by hand: --check-config,
// --help, --version, or a call without any of the protocol's variables. Runtimes
// pass no arguments, and what else is passed beside the variables is ignored.
func forPeople(p Plugin[any], env Env) (done bool, code int) {
	if slices.Contains(env.Args, "--check-config") {
		return true, checkConfig(p, env)
	}
	if len(env.Args) > 0 {
		switch env.Args[0] {
		case "--help", "-h", "-help", "help":
			printHelp(env.Stdout, p)
			return true, 0
		case "--version", "-version", "-V", "version":
			fmt.Fprintf(env.Stdout, "%s %s (CNI %s)\n", p.Name, version, strings.Join(cni.Versions(), ", "))
			return true, 0
		}
	}
	vars := environ(env.Vars)
	for _, name := range []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"} {
		if vars[name] != "" {
			return false, 0
		}
	}
	if len(env.Args) > 0 {
		refuseArgument(env.Stderr, p.Name, env.Args[0])
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

// refuseArgument says of an argument that is no option what it may be.
func refuseArgument(w io.Writer, plugin, arg string) {
	fmt.Fprintf(w, "%s: %q is no option; there are --check-config [--json], --help and --version\n", plugin, arg)
	if meant, _ := closest(arg, []key{{name: "--check-config"}, {name: "--help"}, {name: "--version"}}); meant != "" {
		fmt.Fprintf(w, "    did you mean %s?\n", meant)
	}
}

func printHelp(w io.Writer, p Plugin[any]) {
	fmt.Fprintf(w, "%s %s: %s\n", p.Name, version, p.About)
	fmt.Fprintf(w, "CNI protocol versions supported: %s\n\n", strings.Join(cni.Versions(), ", "))
	fmt.Fprintf(w, "A CNI plugin: a container runtime runs it with CNI_COMMAND, CNI_CONTAINERID,\nCNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH in its environment and the network\nconfiguration, a JSON object, on its standard input.\n\n")
	fmt.Fprintf(w, "%s --check-config [--json] < FILE says all that is wrong with a network\nconfiguration or a list of them, as far as it concerns this plugin. Exit status\n0: valid, 1: not valid, 2: unreadable, 3: nothing in it is for this plugin.\n", p.Name)
	keys := keysOf(reflect.TypeOf(p.Config))
	if len(keys) == 0 {
		return
	}
	fmt.Fprintf(w, "\nKeys of the configuration:\n")
	width := 0
	for _, k := range keys {
		width = max(width, len(k.path))
	}
	for _, k := range keys {
		if k.help != "" {
			fmt.Fprintf(w, "  %-*s %s\n", width, k.path, k.help)
		}
	}
}

// key is a key of a configuration, with the way to it.
type key struct {
	name, path string
	help       string // what it means, and in parentheses what it is when it is missing
	inner      []key  // of an object, or of the objects in a list
}

// keysOf reads a configuration struct's tags, depth first.
func keysOf(t reflect.Type) []key { return flatten(keyTree(t, "")) }

func flatten(in []key) []key {
	var out []key
	for _, k := range in {
		out = append(append(out, k), flatten(k.inner)...)
	}
	return out
}

func keyTree(t reflect.Type, prefix string) []key {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct || implementsUnmarshaler(t) {
		return nil
	}
	var out []key
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			out = append(out, keyTree(f.Type, prefix)...)
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
		elem, suffix := f.Type, "."
		for elem.Kind() == reflect.Slice || elem.Kind() == reflect.Pointer {
			if elem.Kind() == reflect.Slice {
				suffix = "[]" + suffix
			}
			elem = elem.Elem()
		}
		k.inner = keyTree(elem, k.path+suffix)
		out = append(out, k)
	}
	return out
}

func implementsUnmarshaler(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}
