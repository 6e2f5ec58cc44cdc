// Package static is an IPAM plugin that assigns the addresses that the configuration or the runtime lists.
//
// A network plugin such as bridge or macvlan runs it for the "ipam" part of its configuration:
//
//	"ipam": {
//	    "type": "static",
//	    "addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}],
//	    "routes": [{"dst": "0.0.0.0/0"}]
//	}
//
// Addresses can also come from CNI_ARGS, args.cni.ips and runtimeConfig.ips. The later of these sources replace the
// earlier ones (wireConfig.sources).
//
// The plugin stores nothing, so it does not prevent two containers from having the same address. README.md documents
// every key.
package static

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:      "static",
		About:     "assigns the addresses that the configuration or the runtime lists",
		Config:    skel.ConfigOf(wireConfig{}, parseConfig),
		IPAM:      true,
		InProcess: true,
		Add:       add,
		Check:     check,
		// DEL and GC have nothing to release, and ADD depends on nothing of the host that STATUS could check.
	}
}
