// Package dhcp gives a container an address that a DHCP server of its network lends, and
// keeps the lease for as long as the container has the interface.
//
// The program is two. As an IPAM plugin, a network plugin such as bridge or
// macvlan runs it as the "ipam" part of its configuration says:
//
//	"ipam": {"type": "dhcp"}
//
// As "dhcp daemon", a service of the host, it speaks to the servers: the plugin,
// which ends with each call, asks the daemon through a socket. The daemon acquires,
// renews and releases the leases (RFC 2131), and remembers them in files below
// /run/hawser/dhcp, so that it may end and be started again. It is in a container's
// network namespace only while packets are exchanged, and keeps a descriptor of it.
//
// Socket and protocol are those of the reference plugin, whose daemon serves this
// plugin, and whose plugin this daemon serves. README.md says what each key means.
package dhcp

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[*config] {
	return skel.Plugin[*config]{
		Name:  "dhcp",
		About: "gives addresses that a DHCP server lends, through a daemon that renews them",
		Config: skel.Config[*config]{Keys: wireConfig{},
			Parse: func(req *skel.Request) (*config, error) { return parseConfig(req.Conf, req.Args) }},
		IPAM:     true,
		Commands: map[string]func(skel.Env) int{"daemon": runDaemon},
		Add:      add,
		Del:      del,
		Check:    check,
		GC:       gc,
		Status:   status,
		List:     list,
	}
}
