// Package tcredirecttap is the plugin tc-redirect-tap: it connects a virtual machine to the network of a container,
// whichever main plugin created that network.
//
// ADD creates a tap in the container's namespace and installs two tc redirections: packets that the container's
// interface receives go to the tap, and packets that the tap receives go to the interface. The virtual machine that
// opens the tap uses the MAC address and the IP addresses of the interface. ADD writes a record to
// /run/hawser/tc-redirect-tap before the tap becomes persistent; DEL, GC and the rollback of an ADD use it.
//
// README.md describes every key of the configuration.
package tcredirecttap

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "tc-redirect-tap",
		About:   "connects a virtual machine to the container's interface through a tap",
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
