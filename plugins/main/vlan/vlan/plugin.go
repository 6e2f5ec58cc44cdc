// Package vlan attaches containers to a VLAN of a host interface's network.
//
// ADD creates a VLAN interface on the master, in the container. Its frames have the VLAN's tag on the master's network.
// An IPAM plugin assigns the addresses and routes. Package attach implements the verbs (ChildPlugin). README.md
// documents every key.
package vlan

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[attach.ChildConfig] {
	return attach.ChildPlugin(skel.Plugin[attach.ChildConfig]{
		Name:   "vlan",
		About:  "attaches containers to a VLAN of a host interface's network",
		Config: skel.ConfigOf(wireConfig{EnableDAD: true}, parseConfig),
	}, kind)
}
