// Package ptp attaches containers to the host by a point to point link.
//
// ADD makes a pair of links (veth, or netkit). The container sends everything to the
// gateway address, which the host end has, and the host gets a route to each address:
// containers reach each other through the host. README.md is the manual.
package ptp

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "ptp",
		About:   "attaches containers to the host by a point to point link",
		Config:  skel.ConfigOf(wireConfig{DeviceType: "veth"}, parseConfig),
		Add:     add,
		Del:     del,
		Check:   check,
		GC:      gc,
		Status:  status,
		Reapply: reapply,
		Restore: restore,
		List:    list,
	}
}
