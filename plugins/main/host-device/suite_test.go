package main

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestHostDevice(t *testing.T) { nstest.RunSpecs(t, "plugins/main/host-device") }

var _ = It("has its schema in docs/schema", func() {
	var given []any
	var rules []Object
	for _, key := range []string{"device", "hwaddr", "kernelpath", "pciBusID", "runtimeConfig.deviceID"} {
		has := HasKey(key, Object{"type": "string", "minLength": 1})
		for _, other := range given {
			other := other.(Object)
			if key != "runtimeConfig.deviceID" { // which the runtime sends beside any
				rules = append(rules, NotBoth(other, has))
			}
		}
		given = append(given, has)
	}
	given = append(given, HasKey("capabilities.deviceID", Object{"const": true}))
	ExpectPluginSchema(plugin(), append(rules, Object{"anyOf": given})...)
})

// conf is a configuration of network "net" for the device d0: keys are added, or taken away
// by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "host-device", "device": "d0",
		"enabledad": false, "ipam": Object{"type": "fake"}}}, more...)...)
}

// addrs are a container's, of both families.
var addrs = []string{"10.1.0.2/24 10.1.0.1", "2001:db8:1::2/64 2001:db8:1::1"}

// mac0 is the MAC address of the device d0.
const mac0 = "02:00:00:00:00:d0"

// newWorld is a host with the device d0, which has settings of its own.
func newWorld() *World {
	GinkgoHelper()
	w := NewWorld(plugin())
	addDevice(w, "d0", mac0)
	IP(w.Host, "link set d0 mtu 1400 txqueuelen 77 group 5")
	w.Cmd("ip", "link", "set", "d0", "alias", "my alias")
	w.LendAddrs("one", addrs...)
	return w
}

// addDevice makes a device, up, with a peer on the host that is up too.
func addDevice(w *World, name, mac string) {
	GinkgoHelper()
	IP(w.Host, "link add %s address %s type veth peer name %sp", name, mac, name)
	IP(w.Host, "link set %sp up", name)
	IP(w.Host, "link set %s up", name)
}

// attached attaches container one, whose interface is net1.
func attached(w *World, c Object) Attached {
	GinkgoHelper()
	cont := nstest.NewNetns()
	call := Call{Netns: cont.Path, IfName: "net1", Conf: c}
	return Attached{Host: cont, Call: call, Result: w.Add(call)}
}

// links are the host's, without what the kernel does to them by itself.
func links(w *World) string {
	GinkgoHelper()
	return w.Snapshot("links")
}
