// Package hostdevice moves an interface of the host into the container.
//
// ADD finds the interface by its name, MAC address, place in /sys, PCI address or auxiliary device, moves it into the
// container under the name in CNI_IFNAME, and gives it the addresses and routes of an IPAM plugin, if there is one. DEL
// brings it home: under its name, with the settings that it had.
//
// README.md lists every key of the configuration.
package hostdevice

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:   "host-device",
		About:  "moves an interface of the host into the container",
		Config: skel.ConfigOf(wireConfig{EnableDAD: true}, parseConfig),
		Add:    add,
		Del:    del,
		Check:  check,
		GC:     gc,
		Status: status,
		List:   list,
	}
}
