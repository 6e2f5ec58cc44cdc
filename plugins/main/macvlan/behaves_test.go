package main

import (
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Behaves(Fixture{
	Plugin:    Any(plugin()),
	Conf:      conf(Object{"mtu": 1400}),
	Reference: conf(Object{"cniVersion": "1.0.0"}),
	Child:     true,
	Links:     []string{"up0"},
	Prepare:   func(w *World) { lan(w) },
	Senseless: Object{"mtu": "x", "mode": 9, "master": 5, "dns": 5, "bcqueuelen": -1, "linkInContainer": "no"},
	Otherwise: Object{"mode": "private", "mtu": 9000, "master": "nowhere"},
	Drifts: map[string]Drift{
		"another mode": inside("ip link set eth0 type macvlan mode vepa", `"eth0"`,
			`mode is "vepa" instead of "bridge"`),
	},
})
