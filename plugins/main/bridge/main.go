// Bridge attaches containers to a Linux bridge on the host.
//
// ADD makes the bridge when it is not there, and a veth pair with one end in the
// container and the other a port of the bridge, asks an IPAM plugin for addresses
// and gives them to the container end. It can make the
// bridge the containers' gateway, masquerade what leaves the network, put
// ports into VLANs, isolate them from each other and hold them to their MAC
// address. Without IPAM the network is layer 2 only. DEL takes all of it away
// but the bridge, its addresses and the VLAN gateways, which others share.
//
// README.md lists every key of the configuration.
package main

import "github.com/hawser-cni/plugins/pkg/skel"

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:   "bridge",
		About:  "attaches containers to a Linux bridge on the host",
		Config: wireConfig{},
		Parse:  parseConfig,
		Add:    add,
		Del:    del,
		Check:  check,
		GC:     gc,
		Status: status,
	}
}
