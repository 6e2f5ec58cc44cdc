// Package hostlocal is an IPAM plugin that assigns addresses from ranges of this host and records each assignment in
// a file, the lease.
//
// A network plugin such as bridge or ptp runs it for the "ipam" part of its configuration:
//
//	"ipam": {
//	    "type": "host-local",
//	    "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "2001:db8:1::/64"}]],
//	    "routes": [{"dst": "0.0.0.0/0"}]
//	}
//
// Leases are the files <dataDir>/<network>/<address> (leasedir.go). Their format and their lock are the reference
// plugin's, which may use the same directory simultaneously. The lease files are the source of truth. Everything else
// is a hint:
//
//   - The index finds the addresses of an attachment without reading every lease (index.go).
//   - The sticky table remembers the last address of a pod, which gets it again if it is free (sticky.go).
//   - A note, an extended attribute of a lease file, records the boot and the network namespace for which the lease was
//     written.
//
// If a range set is full, ADD reclaims leases whose containers certainly no longer exist (reclaim.go). The key
// "reclaim" can disable this. README.md documents every key.
package hostlocal

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[*config] {
	return skel.Plugin[*config]{
		Name:      "host-local",
		About:     "assigns addresses from ranges of this host, with a lease file for each",
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
