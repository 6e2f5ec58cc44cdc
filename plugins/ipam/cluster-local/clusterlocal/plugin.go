// Package clusterlocal gives containers addresses from ranges that all nodes of a
// Kubernetes cluster share, and keeps the leases in its API.
//
// It is an IPAM plugin: a network plugin such as macvlan or bridge runs it as the
// "ipam" part of its configuration says:
//
//	"ipam": {
//	    "type": "cluster-local",
//	    "ranges": [[{"subnet": "10.30.0.0/16"}], [{"subnet": "2001:db8:30::/64"}]]
//	}
//
// A lease is an object that the address names: who creates it first has the
// address. A record on the node says, before each request, which names a call asks
// for; DEL, CHECK and GC go by it. README.md says what each key means.
package clusterlocal

import (
	"context"

	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[*config] {
	p := plugin(parsePlace)
	p.Name = "cluster-local"
	p.About = "gives addresses from ranges that all nodes share, with leases in the Kubernetes API"
	p.Config = skel.ConfigOf(wireConfig{}, parseConfig)
	p.Commands = map[string]func(skel.Env) int{"reclaim": reclaimCommand, "import": importCommand,
		"list": listCommand}
	return p
}

// Whereabouts returns the same plugin for configurations of whereabouts.
func Whereabouts() skel.Plugin[*config] {
	p := plugin(parseWhereaboutsPlace)
	p.Name = "whereabouts"
	p.About = "is cluster-local for configurations of whereabouts"
	p.Config = skel.Config[*config]{Keys: wireWhereabouts{}, Parse: parseWhereabouts}
	return p
}

// plugin has the handlers; placeOf reads what DEL and GC need of the configuration.
func plugin(placeOf func(*skel.Request) (place, error)) skel.Plugin[*config] {
	at := func(handler func(context.Context, *skel.Request, place) error) func(context.Context, *skel.Request) error {
		return func(ctx context.Context, req *skel.Request) error {
			p, err := placeOf(req)
			if err != nil {
				return err
			}
			if !isSpace(p.space) {
				return nil // no ADD has kept anything there
			}
			ctx, cancel := skel.WithTwoThirds(ctx)
			defer cancel()
			return handler(ctx, req, p)
		}
	}
	return skel.Plugin[*config]{
		IPAM:   true,
		Add:    add,
		Del:    at(del),
		Check:  check,
		GC:     at(gc),
		Status: status,
		List:   list,
	}
}
