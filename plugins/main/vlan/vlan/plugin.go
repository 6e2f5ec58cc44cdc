// Package vlan attaches containers to a VLAN of a host interface's network.
//
// ADD makes a VLAN interface on the master in the container, with the addresses and
// routes of an IPAM plugin. README.md is the manual.
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
