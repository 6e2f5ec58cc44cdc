// Package sbr gives the addresses of one interface a routing table each, so that what a container sends from one of its
// interfaces leaves through that interface (source based routing).
//
// ADD makes a table for each address, and a rule that leads the packets of the address there; then it takes the
// interface's routes out of the main table. DEL, and an ADD that fails, undo what a record below /run/hawser/sbr says.
//
// README.md lists every key of the configuration.
package sbr

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "sbr",
		About:   "gives each address of the container's interface a routing table of its own",
		Config:  skel.ConfigOf(wireConfig{}, parseConfig),
		Chained: true,
		Add:     add,
		Del:     del,
		Check:   check,
		GC:      gc,
		Status:  status,
		List:    list,
	}
}
