// Package firewall lets a container's packets pass the host's forward chain, and keeps
// networks apart.
//
// It runs behind the plugin that made the container's interface. ADD has the
// host forward what comes from the container's addresses, what answers that,
// and what comes to its published ports, also where a firewall drops all other
// packets. With an ingress policy it also keeps away what comes from other
// bridges that have a policy, or from other containers of the same bridge. DEL
// removes what belongs to the attachment, whatever backend made it.
//
// README.md lists every key of the configuration.
package firewall

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "firewall",
		About:   "lets a container's packets through the host's firewall and keeps networks apart",
		Config:  skel.ConfigOf(wireConfig{}, parseConfig),
		Chained: true,
		Add:     add,
		Del:     del,
		Check:   check,
		GC:      gc,
		Status:  status,
		List:    list,
		Reapply: reapply,
		Restore: restore,
	}
}
