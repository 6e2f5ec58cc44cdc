// Ptp attaches containers to the host by a point to point link.
//
// ADD borrows addresses from an IPAM plugin, makes a veth pair, gives the
// container's end the addresses and routes everything, its own subnet too,
// through the gateway address, which the host's end has. The host gets a
// route to each address. There is no bridge: containers reach each other
// through the host. DEL takes all of it away.
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
