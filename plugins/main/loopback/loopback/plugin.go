// Package loopback brings up the loopback interface of a container.
//
// It always configures "lo", regardless of CNI_IFNAME, and reports its loopback addresses. ADD writes the attachment's
// mark to the alias of lo, and DEL brings lo down only if the alias has that mark, because another attachment may need
// it. README.md documents every key.
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
		// There is no GC and no STATUS, because nothing is stored or needed on the host.
	}
}
