// Package bandwidth limits the rate at which a container receives (ingress) and sends (egress). Configured rates are in
// bits per second and bursts in bits; the kernel and type rtnl.TBF use bytes.
//
// A link can shape only the packets that it sends. Usually this link is the host end of a veth pair: packets to the
// container pass a token bucket filter (TBF) at the host end. The host end receives the container's own packets, so a
// tc redirection sends them to an intermediate functional block (IFB), a link with another TBF. If the container's
// interface has no host end (macvlan, for example), the limits are in the container, with the directions swapped.
//
// A TBF cannot exempt networks, but the filters of a redirection can. With exempt networks, the packets that the link
// sends are therefore also redirected, to a second IFB. This needs a clsact qdisc instead of an ingress qdisc.
//
// The alias of the host end and of the IFBs names the owner of a limit. Limits in a container have a record in
// /run/hawser/bandwidth instead, because the container could change an alias.
//
// README.md describes every key of the configuration.
package bandwidth

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "bandwidth",
		About:   "limits the rate at which a container sends and receives",
		Config:  skel.ConfigOf(wireConfig{}, parseConfig),
		Chained: true,
		Add:     add,
		Del:     del,
		Check:   check,
		Reapply: reapply,
		GC:      gc,
		Status:  status,
		List:    list,
	}
}
