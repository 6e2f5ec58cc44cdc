// Package bridge attaches containers to a Linux bridge on the host.
//
// ADD makes the bridge when it is not there, and a veth pair with one end in the
// container and the other a port of the bridge. An IPAM plugin gives the addresses;
// without one the network is layer 2 only. The bridge can be the gateway, masquerade,
// and keep ports apart. DEL leaves the bridge, its addresses and the VLAN gateways, which
// others share. README.md is the manual.
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
