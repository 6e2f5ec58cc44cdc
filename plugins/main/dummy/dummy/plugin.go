// Package dummy gives containers an interface that leads nowhere, with addresses.
//
// ADD makes a dummy interface in the container, with the addresses and routes of an
// IPAM plugin: programs of the container reach each other at them. README.md is the manual.
package dummy

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[attach.ChildConfig] {
	return attach.ChildPlugin(skel.Plugin[attach.ChildConfig]{
		Name:   "dummy",
		About:  "gives containers an interface that leads nowhere, with addresses",
		Config: skel.ConfigOf(wireConfig{}, parseConfig),
	}, kind)
}
