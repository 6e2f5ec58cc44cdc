package main

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestBridge(t *testing.T) { nstest.RunSpecs(t, "plugins/main/bridge") }

// world is a host with containers and a directory of IPAM plugins.
type world struct{ *World }

func newWorld() *world {
	GinkgoHelper()
	w := &world{NewWorld(plugin())}
	w.SetSysctl("net/ipv6/conf/default/accept_dad", "0") // no wait for link-local addresses
	return w
}

// conf is a configuration of network "net" with bridge "br": keys are added, or
// taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br"}}, more...)...)
}

func fakeIPAM() Object { return Object{"ipam": Object{"type": "fake"}} }

// l3 is conf with addresses from fake.
func l3(more ...Object) Object { return conf(append([]Object{fakeIPAM()}, more...)...) }

// hostEnd is the name of the result's port.
func hostEnd(r Result) string { return r.Interfaces[1].Name }

// routes lists a family's routes as "dst via gateway metric".
func routes(h *nstest.Host, family string) []string {
	GinkgoHelper()
	var list []struct {
		Dst, Gateway string
		Metric       int
	}
	h.JSON(&list, "ip", "-j", family, "route")
	out := []string{}
	for _, r := range list {
		if r.Gateway != "" {
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s via %s %d", r.Dst, r.Gateway, r.Metric), " 0"))
		}
	}
	return out
}
