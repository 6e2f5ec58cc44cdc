// Vlan attaches containers to a VLAN of a host interface's network.
//
// ADD makes a VLAN interface on the master in the container, and gives it the
// addresses and routes of an IPAM plugin. What the container sends leaves the master
// with the VLAN's tag. Each VLAN of a master is one container's. DEL takes all of it
// away.
//
// README.md lists every key of the configuration.
package main

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin[config] {
	return attach.ChildPlugin(skel.Plugin[config]{
		Name:   "vlan",
		About:  "attaches containers to a VLAN of a host interface's network",
		Config: wireConfig{},
		Parse:  parseConfig,
	}, kind, config.child)
}
