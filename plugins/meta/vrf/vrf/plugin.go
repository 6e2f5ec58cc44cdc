// Package vrf is the plugin vrf: it makes a container's interface a member of a VRF (virtual routing and forwarding),
// so that networks with overlapping addresses can coexist in one container.
//
// ADD creates the VRF unless the container has it, makes the interface a member, and recreates the interface's routes
// in the VRF's table, because the kernel deletes them when the interface changes its master. Before the first change,
// ADD writes a record with these routes to /run/hawser/vrf. DEL, GC and the rollback of an ADD restore the routes from
// it. They delete a VRF without members if its alias shows that an ADD created it.
//
// README.md describes every key of the configuration.
package vrf

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "vrf",
		About:   "makes the container's interface a member of a VRF",
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
