// Package hostlocal gives containers addresses from ranges that belong to this host,
// and remembers them in a directory.
//
// It is an IPAM plugin: a network plugin such as bridge or ptp runs it as the
// "ipam" part of its configuration says:
//
//	"ipam": {
//	    "type": "host-local",
//	    "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "2001:db8:1::/64"}]],
//	    "routes": [{"dst": "0.0.0.0/0"}]
//	}
//
// The leases are files in dataDir, one for each address, in the format of the
// reference plugin, which may work on the same directory. README.md says what
// each key means.
package hostlocal

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[*config] {
	return skel.Plugin[*config]{
		Name:      "host-local",
		About:     "gives addresses from ranges of this host and remembers them in a directory",
		Config:    skel.ConfigOf(wireConfig{}, parseConfig),
		IPAM:      true,
		InProcess: true,
		Add:       add,
		Del:       del,
		Check:     check,
		GC:        gc,
		Status:    status,
		List:      list,
	}
}
