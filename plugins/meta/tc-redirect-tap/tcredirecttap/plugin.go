// Package tcredirecttap gives a virtual machine the network of a container, whatever plugin made that.
//
// ADD makes a tap in the container, and redirects all that the container's interface receives to the tap, and all that
// the tap receives to that interface. The virtual machine that has the tap open takes the interface's MAC address and
// its addresses. DEL, and an ADD that fails, remove what a record below /run/hawser/tc-redirect-tap says.
//
// README.md lists every key of the configuration.
package tcredirecttap

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "tc-redirect-tap",
		About:   "redirects the container's interface to a tap, for a virtual machine",
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
