// Package vrf makes a container's interface a member of a VRF (virtual routing and forwarding), a device with a table
// of routes of its own, so that networks with the same addresses can meet in one container.
//
// ADD makes the VRF unless the container has it, and takes the interface in with its routes, which move to the VRF's
// table. DEL, and an ADD that fails, undo what a record below /run/hawser/vrf says.
//
// README.md lists every key of the configuration.
package vrf

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "vrf",
		About:   "makes the container's interface a member of a VRF, with a table of routes of its own",
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
