// Package portmap forwards ports of the host to a container.
//
// It runs behind the plugin that made the container's interface. ADD takes the
// port mappings that the runtime sends and makes rules that translate what
// arrives at a host port, from outside, from the host itself and from
// containers, to the container's address and port. A host port belongs to one
// attachment: another one that wants it fails and is told who has it. DEL
// removes what belongs to the attachment, whoever made it and with whatever
// backend.
//
// README.md lists every key of the configuration.
package portmap

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "portmap",
		About:   "forwards ports of the host to a container",
		Config:  skel.ConfigOf(wireConfig{}, parseConfig),
		Chained: true,
		Add:     add,
		Del:     del,
		Check:   check,
		Reapply: reapply,
		Restore: restore,
		GC:      gc,
		Status:  status,
		List:    list,
	}
}
