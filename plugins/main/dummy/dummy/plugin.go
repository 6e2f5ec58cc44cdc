// Package dummy gives containers a dummy interface, which is connected to no network.
//
// ADD creates the interface in the container. An IPAM plugin assigns the addresses and routes, and programs in the
// container reach each other at these addresses. Package attach implements the verbs (ChildPlugin). README.md documents
// every key.
package dummy

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[attach.ChildConfig] {
	return attach.ChildPlugin(skel.Plugin[attach.ChildConfig]{
		Name:   "dummy",
		About:  "gives containers an interface with addresses that is connected to no network",
		Config: skel.ConfigOf(wireConfig{}, parseConfig),
	}, kind)
}
