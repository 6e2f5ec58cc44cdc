// Package firewall makes the host forward a container's packets, and separates networks from each other.
//
// It is a chained plugin: it runs after the plugin that created the container's interface. Its rules accept packets
// that the container sends, their replies, and packets to its published ports. An ingress policy also drops packets to
// the container from other bridges that have a policy, or from other containers of its bridge.
//
// There are three backends. With nftables, an accept is not final: a chain of another table can still drop the packet.
// Accepted packets therefore get a bit of the fwmark, and FORWARD of iptables gets a rule that accepts packets with the
// bit (forward.go). The backend iptables has the chains of the reference plugin. The backend firewalld makes the
// container's addresses sources of a zone, and keeps policies in nftables.
//
// An attachment's address is an element of nftables sets, with the owner's mark. All other state is in a record in
// /run/hawser/firewall, because several attachments share rules: the policy of a bridge (policy.go), the isolated flags
// of its ports (isolation.go), and rules for the same address. The record is written before the rules, so that DEL
// finds the backend and the options that ADD used. reference.go removes the reference plugin's rules.
//
// Most files use only the files before them, in this order: config.go, record.go, policy.go (whose rule the others
// apply), iptables.go, nftables.go, bridge.go, isolation.go, admin.go and forward.go (chains of other programs that the
// rules need), firewalld.go, reference.go and firewall.go (the verbs). README.md documents every key.
package firewall

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "firewall",
		About:   "accepts the containers' traffic in the host's firewall and isolates networks",
		Config:  skel.ConfigOf(wireConfig{}, parseConfig),
		Chained: true,
		Add:     add,
		Del:     del,
		Check:   check,
		GC:      gc,
		Status:  status,
		List:    list,
		Reapply: reapply,
		Restore: restore,
	}
}
