// Package ipvlan attaches containers to the network of a host interface, the master, with
// the master's MAC address.
//
// ADD makes an ipvlan in the container, with the addresses and routes of an IPAM plugin,
// or of the plugin before. README.md is the manual.
package ipvlan

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[attach.ChildConfig] {
	p := attach.ChildPlugin(skel.Plugin[attach.ChildConfig]{
		Name:   "ipvlan",
		About:  "attaches containers to the network of a host interface, with that one's MAC address",
		Config: skel.ConfigOf(wireConfig{EnableDAD: true}, parseConfig),
	}, kind)
	p.Add = add
	return p
}
