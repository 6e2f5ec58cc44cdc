// Vlan attaches containers to a VLAN of a host interface's network.
//
// ADD makes a VLAN interface on the master in the container, with the addresses and
// routes of an IPAM plugin. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin[attach.ChildConfig] {
	return attach.ChildPlugin(skel.Plugin[attach.ChildConfig]{
		Name:   "vlan",
		About:  "attaches containers to a VLAN of a host interface's network",
		Config: skel.ConfigOf(wireConfig{EnableDAD: true}, parseConfig),
	}, kind)
}
