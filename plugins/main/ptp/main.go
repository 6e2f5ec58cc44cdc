// Ptp attaches containers to the host by a point to point link.
//
// ADD makes a pair of links (veth, or netkit), asks an IPAM plugin for addresses, gives them to the
// container end and routes everything, its own subnet too, through the gateway
// address, which the host end has. The host gets a route to each address. There
// is no bridge: containers reach each other through the host. DEL takes all of it
// away.
//
// README.md lists every key of the configuration.
package main

import "github.com/hawser-cni/plugins/pkg/skel"

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:   "ptp",
		About:  "attaches containers to the host by a point to point link",
		Config: wireConfig{},
		Parse:  parseConfig,
		Add:    add,
		Del:    del,
		Check:  check,
		GC:     gc,
		Status: status,
	}
}
