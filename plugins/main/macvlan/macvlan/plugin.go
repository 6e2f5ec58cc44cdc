// Package macvlan attaches containers to the network of a host interface, the master.
//
// ADD makes a macvlan, an interface with a MAC address of its own, in the container,
// with the addresses and routes of an IPAM plugin. README.md is the manual.
package macvlan

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[attach.ChildConfig] {
	return attach.ChildPlugin(skel.Plugin[attach.ChildConfig]{
		Name:   "macvlan",
		About:  "attaches containers to the network of a host interface, each with a MAC address of its own",
		Config: skel.ConfigOf(wireConfig{EnableDAD: true}, parseConfig),
	}, kind)
}
