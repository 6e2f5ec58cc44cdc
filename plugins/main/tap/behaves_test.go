package main

import (
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// inside is a Drift in the container.
func inside(commands string, says ...string) Drift { return Drift{Cont: commands, Says: says} }

var _ = Behaves(Fixture{
	Plugin:    Any(plugin()),
	Conf:      conf(Object{"mtu": 1400, "owner": 107, "group": 108, "multiQueue": true}),
	Reference: conf(Object{"cniVersion": "1.0.0", "owner": 107, "group": 108}),
	Child:     true,
	Alone:     true,
	Senseless: Object{"mtu": "x", "owner": -1, "group": "x", "bridge": 5, "dns": 5, "multiQueue": 7},
	Otherwise: Object{"owner": 1, "group": nil, "mtu": 1300, "bridge": "br9", "multiQueue": false},
	Drifts: map[string]Drift{
		"an interface of another kind": inside("ip link del eth0;ip link add eth0 type veth peer name x", `"eth0"`,
			`"veth"`),
		"another tap": inside("ip link del eth0;ip tuntap add eth0 mode tap;ip link set eth0 up",
			"multiQueue is false instead of true", "owner is 0 instead of 107", "group is 0 instead of 108"),
	},
})
