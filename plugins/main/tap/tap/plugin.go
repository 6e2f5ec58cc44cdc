// Package tap gives a container a tap device, for a program in it that sends and receives
// Ethernet frames: a virtual machine, passt, DPDK's virtio-user.
//
// ADD makes the device, persistent, lets a user or a group open it, and gives it the
// addresses and routes of an IPAM plugin. README.md is the manual.
package tap

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[attach.ChildConfig] {
	return attach.ChildPlugin(skel.Plugin[attach.ChildConfig]{
		Name:     "tap",
		About:    "gives containers a tap device, through which a program sends and receives frames",
		Config:   skel.ConfigOf(wireConfig{}, parseConfig),
		Commands: map[string]func(skel.Env) int{createCommand: createHere},
	}, kind)
}
