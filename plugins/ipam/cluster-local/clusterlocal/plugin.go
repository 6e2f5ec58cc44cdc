// Package clusterlocal is an IPAM plugin that assigns addresses from ranges that all nodes of a Kubernetes cluster
// share. It stores the leases in the Kubernetes API.
//
// A network plugin such as macvlan or bridge runs it for the "ipam" part of its configuration:
//
//	"ipam": {
//	    "type": "cluster-local",
//	    "ranges": [[{"subnet": "10.30.0.0/16"}], [{"subnet": "2001:db8:30::/64"}]]
//	}
//
// A lease is an object of the API whose name contains the address. The API server creates a name only once, so the
// first creator owns the address. Leases in different spaces do not conflict. Objects are created and deleted, never
// changed.
//
// A record on the node lists the leases of an attachment. ADD writes a name into it before each request for that name,
// so that DEL, GC and a later call find every lease that a killed call may have created. Each ADD writes a random nonce
// into the record and its leases. A lease is released only if it has the record's nonce.
//
// A request whose answer is lost may still be carried out later. If DEL finds such names in a record, it leaves a
// tombstone, and later calls release what the late request creates (sweepTombstones).
//
// With "guard", ADD also adds the address to whereabouts' own pool, so that nodes that still run whereabouts do not use
// it (guard.go). README.md documents every key.
package clusterlocal

import (
	"context"

	"github.com/hawser-cni/plugins/pkg/skel"
)

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[*config] {
	p := plugin(parsePlace)
	p.Name = "cluster-local"
	p.About = "assigns addresses from ranges that all nodes share, with leases in the Kubernetes API"
	p.Config = skel.ConfigOf(wireConfig{}, parseConfig)
	p.Commands = map[string]func(skel.Env) int{"reclaim": reclaimCommand, "import": importCommand,
		"list": listCommand}
	return p
}

// Whereabouts returns the same plugin with a parser for whereabouts' configurations.
func Whereabouts() skel.Plugin[*config] {
	p := plugin(parseWhereaboutsPlace)
	p.Name = "whereabouts"
	p.About = "runs cluster-local with whereabouts' configuration"
	p.Config = skel.Config[*config]{Keys: wireWhereabouts{}, Parse: parseWhereabouts}
	return p
}

// plugin returns the plugin without its name and configuration. parse reads the keys that DEL and GC need.
func plugin(parse func(*skel.Request) (place, error)) skel.Plugin[*config] {
	withPlace := func(do func(context.Context, *skel.Request, place) error) func(context.Context, *skel.Request) error {
		return func(ctx context.Context, req *skel.Request) error {
			p, err := parse(req)
			if err != nil {
				return err
			}
			if !isSpace(p.space) {
				return nil // ADD refuses the space, so there are no records
			}
			ctx, cancel := skel.WithTwoThirds(ctx)
			defer cancel()
			return do(ctx, req, p)
		}
	}
	return skel.Plugin[*config]{
		IPAM:   true,
		Add:    add,
		Del:    withPlace(del),
		Check:  check,
		GC:     withPlace(gc),
		Status: status,
		List:   list,
	}
}
