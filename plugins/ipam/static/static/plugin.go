// Package static gives a container the addresses that its configuration, or its
// runtime, names.
//
// It is an IPAM plugin: a network plugin such as bridge or macvlan runs it as
// the "ipam" part of its configuration says:
//
//	"ipam": {
//	    "type": "static",
//	    "addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}],
//	    "routes": [{"dst": "0.0.0.0/0"}]
//	}
//
// It keeps nothing, so nobody keeps two containers from having one address.
// README.md says what each key means, and who wins.
package static

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:      "static",
		About:     "gives the addresses that the configuration or the runtime names",
		Config:    skel.ConfigOf(wireConfig{}, parseConfig),
		IPAM:      true,
		InProcess: true,
		Add:       add,
		Check:     check,
		// Nothing is kept, so DEL and GC have nothing to give back; and an ADD
		// needs nothing of the host that STATUS could miss.
	}
}
