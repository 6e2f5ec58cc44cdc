// Package ipvlan attaches containers to the network of a host interface, the master, with the master's MAC address.
//
// ADD creates an ipvlan on the master, in the container. All ipvlans of a master share its MAC address and one mode.
// The addresses and routes are assigned by an IPAM plugin or, without one, taken from prevResult. Package attach
// implements the other verbs (ChildPlugin). README.md documents every key.
package ipvlan

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[attach.ChildConfig] {
	p := attach.ChildPlugin(skel.Plugin[attach.ChildConfig]{
		Name:   "ipvlan",
		About:  "attaches containers to the network of a host interface, with its MAC address",
		Config: skel.ConfigOf(wireConfig{EnableDAD: true}, parseConfig),
	}, kind)
	p.Add = add
	return p
}
