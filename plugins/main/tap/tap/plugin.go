// Package tap gives a container a tap device, through which a program in the container sends and receives Ethernet
// frames: a virtual machine, passt, DPDK's virtio-user.
//
// ADD creates a persistent device, allows a user or a group to open it, and can make it a port of a bridge in the
// container. An IPAM plugin assigns the addresses and routes. Package attach implements the verbs (ChildPlugin), and
// package tun uses /dev/net/tun.
//
// A tap with the key selinuxContext is created by a second process, because a tap has the SELinux label of the process
// that creates it, and a process gets another label only when it executes a program. So the plugin executes itself with
// that label, the command create-tap, and the control device as descriptor 3. This costs the start of a process.
//
// README.md documents every key.
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
		Commands: map[string]func(skel.Env) int{createCommand: createTap},
	}, kind)
}
