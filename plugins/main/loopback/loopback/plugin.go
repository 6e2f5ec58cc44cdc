// Package loopback brings up the loopback interface of a container.
//
// It always serves "lo", whatever CNI_IFNAME says, and reports its addresses. DEL takes
// lo down again when this attachment brought it up. README.md is the manual.
package loopback

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[struct{}] {
	return skel.Plugin[struct{}]{
		Name:   "loopback",
		About:  "brings up the loopback interface of a container",
		Config: skel.Config[struct{}]{Keys: wireConfig{}},
		Add:    add,
		Del:    del,
		Check:  check,
		// Nothing is kept on the host, so GC has nothing to collect; and an ADD
		// needs nothing of the host that STATUS could miss.
	}
}
