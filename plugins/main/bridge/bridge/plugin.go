// Package bridge attaches containers to a Linux bridge on the host.
//
// ADD creates the bridge if it does not exist, and a veth pair: one end is the container's interface, the other is a
// port of the bridge. An IPAM plugin assigns the addresses; without one the network is layer 2 only. The bridge can be
// the containers' gateway, and packets that leave their subnets can be masqueraded. A port can have VLANs, can be
// isolated from other ports, and can be restricted to the container's MAC address (MAC spoof check).
//
// With the key vlan, the gateway is not the bridge itself but a VLAN gateway: a veth pair <bridge>.<vlan> on the host
// whose other end is a port of the bridge in that VLAN.
//
// The bridge, its addresses and the VLAN gateways are shared by all containers of the host. Therefore, ADD changes an
// existing bridge as little as possible, and neither a failed ADD nor DEL removes them. Everything else belongs to one
// attachment.
//
// Start reading at add in bridge.go. Package attach has the steps that bridge shares with ptp. plan.go decides on
// addresses and routes without any I/O. README.md documents every key.
package bridge

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "bridge",
		About:   "attaches containers to a Linux bridge on the host",
		Config:  skel.ConfigOf(wireConfig{Bridge: defaultBridge}, parseConfig),
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
