// Package dhcp is an IPAM plugin that obtains addresses from a DHCP server on the container's network, and keeps each
// lease for as long as the container has its interface.
//
// The program has two roles. As an IPAM plugin, it is run by a network plugin such as bridge or macvlan, and ends
// with each call:
//
//	"ipam": {"type": "dhcp"}
//
// As "dhcp daemon", a service of the host, it communicates with the servers. The plugin sends its calls to the daemon
// through a Unix socket. The daemon acquires, renews and releases leases: IPv4 by RFC 2131 and, with the key "ipv6",
// IPv6 by DHCPv6 (RFC 8415) or from router advertisements (RFC 4862).
//
// A client holds one lease of one attachment. The client's goroutine exchanges packets over a link. A state machine
// without clock or socket makes all decisions (machine, machine6). The daemon writes each lease to a record before the
// plugin gets its answer, and each change before the interface gets it, so that a restarted daemon knows all leases.
// The records are below /run/hawser/dhcp and, for IPv6, /run/hawser/dhcp6.
//
// The daemon enters a container's network namespace only to open sockets and to set sysctls. It keeps a descriptor of
// the namespace, so that it can renew or release the lease after the namespace has lost its path. It ends the lease
// when nothing else uses the namespace.
//
// The reference plugin defined the socket and its protocol (net/rpc, which is gob after an HTTP CONNECT), so that
// either plugin can use either daemon. gob.go implements the format without encoding/gob. All plugins share one
// program, and the initialization of encoding/gob would delay each start of that program by 0.25 ms.
//
// Each file builds on the files before it, in this order: config.go (keys and options), packet.go and packet6.go
// (messages), lease.go (what a server granted), machine.go and machine6.go (when to send which message), record.go
// (leases on disk), netns.go, link.go and routes.go (a container's namespace and interface), protocol.go (a machine
// over a link), daemon.go (what all clients share), client.go (one lease), gob.go and rpc.go (calls through the
// socket), server.go (the daemon) and dhcp.go (the plugin). README.md documents every key.
package dhcp

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[*config] {
	return skel.Plugin[*config]{
		Name:  "dhcp",
		About: "obtains addresses from a DHCP server, through a daemon that renews them",
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
