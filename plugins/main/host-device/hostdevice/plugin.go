// Package hostdevice moves an interface of the host into the container.
//
// ADD finds the interface by its name, MAC address, directory in /sys, PCI address or auxiliary device, and moves it
// into the container under the name in CNI_IFNAME. It then configures the interface with the addresses and routes of
// the IPAM plugin, if there is one. With the key useInterfaceNetwork, the interface also gets the addresses, routes and
// rules that it has on the host. DEL brings the device home: back to the host, under its name, with its settings and
// network.
//
// A record describes the device as it is on the host. It is written before the device moves, because a moved device no
// longer shows its name and settings on the host, and the kernel removes its addresses and routes. A port of a bond or
// team leaves it first, because leaving changes the settings. Calls that move a device hold the lock of the records.
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
