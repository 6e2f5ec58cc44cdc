// Package sbr is the plugin sbr: source-based routing for an additional interface of a container. Packets that the
// container sends from an address of the interface leave through that interface.
//
// ADD creates a routing table for each address, and a rule that directs the packets with that source address to the
// table. It then removes the interface's routes from the main table. A plan (plan.go), made before the first change,
// contains all of this. A record in /run/hawser/sbr keeps the plan, so that DEL, CHECK and the rollback of an ADD need
// nothing else. All calls hold the lock of the container's namespace, because they choose table numbers and rule
// priorities in it.
//
// README.md describes every key of the configuration.
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
