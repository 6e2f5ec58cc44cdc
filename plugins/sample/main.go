// Sample shows what a plugin of this suite looks like. It labels the
// container's interface, so that ip(8) in the container says whose it is.
//
// It is built and tested like the others, and neither installed nor released.
//
// README.md is the manual, and says how to make a plugin from this one.
package main

import "github.com/hawser-cni/plugins/pkg/skel"

func main() { skel.Main(plugin()) }

// plugin is all that the shell needs to know. Nothing else in a plugin reads the
// environment or standard input, prints, or exits.
func plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:   "sample",
		About:  "labels the container's interface",
		Config: wireConfig{},
		Parse:  parseConfig,
		Add:    add,
		Del:    del,
		Check:  check,
		// Nothing is kept on the host, so GC has nothing to collect; and an ADD
		// needs nothing of the host that STATUS could miss.
	}
}
