// Package ptp connects each container to the host by a point-to-point link.
//
// ADD creates a pair of links (veth or netkit). The host end has the gateway address, and the container sends all
// packets to it, even packets to other containers in its subnet. The host gets a route to each address of the
// container. There is no bridge, and containers reach each other through the host's routing.
//
// Package attach has the steps that ptp shares with bridge. plan.go decides on gateways and routes without any I/O.
// README.md documents every key.
package ptp

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "ptp",
		About:   "connects each container to the host by a point-to-point link",
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
