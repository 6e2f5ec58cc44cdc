// Package bandwidth limits how fast a container may send and receive.
//
// It is a chained plugin: it works on the host end of the pair that bridge or ptp made. What the container receives
// (ingress) passes a token bucket filter there. What it sends (egress) is redirected to an interface of its own, an
// IFB, and passes one there. Rates are in bits a second, bursts in bits.
//
// README.md lists every key of the configuration.
package bandwidth

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "bandwidth",
		About:   "limits how fast a container may send and receive",
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
