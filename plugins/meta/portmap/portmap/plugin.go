// Package portmap forwards ports of the host to a container.
//
// It is a chained plugin: it runs after the plugin that created the container's interface. Its rules translate packets
// to a host port, from other machines, from the host itself and from containers, to the container's address and port.
//
// A host port has one owner. If another live attachment has the port, ADD fails with the owner's name. ADD claims the
// ports of stale owners (record.go). Before any rule changes, publish.go finds all owners under the lock of the
// records: on both backends, and containers of the reference plugin.
//
// On nftables, a host port is an element of maps that all attachments share. On iptables, a container has the chains of
// the reference plugin. DEL and CHECK derive the rules from a record in /run/hawser/portmap, which is written before
// the rules.
//
// Ports of 127.0.0.1 need the sysctl route_localnet on the link to the container. The sysctl also lets containers reach
// services on the host's loopback, so a guard in nftables drops such packets (localnet.go). UDP flows outlive the rules
// for them, so flows.go deletes stale flows.
//
// README.md documents every key.
package portmap

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "portmap",
		About:   "publishes container ports on the host",
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
