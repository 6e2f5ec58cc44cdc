// Package macvlan attaches containers to the network of a host interface, the master.
//
// ADD creates a macvlan on the master, in the container. Each macvlan has a MAC address of its own, so that the
// container appears on the network as another host. An IPAM plugin assigns the addresses and routes. Package attach
// implements the verbs (ChildPlugin). README.md documents every key.
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
