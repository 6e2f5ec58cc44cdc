package main

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestMacvlan(t *testing.T) { nstest.RunSpecs(t, "plugins/main/macvlan") }

// conf is a configuration of network "net" with master "up0": keys are added, or taken
// away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "up0",
		"enabledad": false, "ipam": Object{"type": "fake"}}}, more...)...)
}

// lan gives the host a master, and returns a neighbour on its network.
func lan(w *World) *nstest.Host {
	GinkgoHelper()
	nstest.Need("macvlan")
	return Uplink(w.Host)
}

func newWorld() (*World, *nstest.Host) {
	GinkgoHelper()
	w := NewWorld(plugin())
	return w, lan(w)
}

// inside is a Drift in the container.
func inside(commands string, says ...string) Drift { return Drift{Cont: commands, Says: says} }
