// Package tuning changes the interface that another plugin of the chain made, and sysctls of the container's network
// namespace.
//
// ADD writes sysctls in the order of the configuration and sets the interface's attributes. What there was before is
// kept below /run/hawser, and for the reference in dataDir; DEL, and an ADD that fails, put it back. An administrator
// can say in a file which sysctls may be written.
//
// README.md lists every key of the configuration.
package tuning

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] { return plugin("/etc/cni/tuning/allowlist.conf") }

func plugin(allowed allowList) skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "tuning",
		About:   "changes the container's interface, and sysctls of its network namespace",
		Config:  skel.ConfigOf(wireConfig{}, parseConfig),
		Chained: true,
		Add:     allowed.add,
		Del:     del,
		Check:   check,
		Reapply: reapply,
		GC:      gc,
		Status:  allowed.status,
		List:    list,
	}
}
