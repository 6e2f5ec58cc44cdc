package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestPtp(t *testing.T) { nstest.RunSpecs(t, "plugins/main/ptp") }

// conf is a configuration of network "net": keys are added, or taken away by
// nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "ptp", "ipam": Object{"type": "fake"}}},
		more...)...)
}

// everything is a configuration that uses all that there is.
func everything(more ...Object) Object {
	return conf(append([]Object{{"ipMasq": true, "mtu": 1400}}, more...)...)
}

// The gateways of the specs.
const gw4, gw6 = "10.1.0.1", "2001:db8:1::1"

// nth are a container's addresses of both families.
func nth(n int) []string {
	return []string{fmt.Sprintf("10.1.0.%d/24 %s", n, gw4), fmt.Sprintf("2001:db8:1::%d/64 %s", n, gw6)}
}

func newWorld() *World {
	GinkgoHelper()
	return NewWorld(plugin())
}

// hostEnd is the name of the result's host end.
func hostEnd(r Result) string { return r.Interfaces[0].Name }

// alive tells whether a container reaches its gateways.
func alive(a Attached) bool {
	GinkgoHelper()
	return Ping(a.Host, gw4) && Ping(a.Host, gw6)
}

// routes lists the routes of all tables that the kernel did not make by itself,
// as ip(8) writes them. With a name only those through that link, without it.
func routes(h *nstest.Host, family string, dev ...string) []string {
	GinkgoHelper()
	out := []string{}
	for line := range strings.Lines(h.Cmd("ip", family, "-d", "route", "show", "table", "all")) {
		words := strings.Fields(line)
		at := slices.Index(words, "dev")
		if strings.Contains(line, "proto kernel") || strings.Contains(line, "fe80::/64") || strings.Contains(line,
			"table local") ||
			at < 0 || dev != nil && !slices.Contains(dev, words[at+1]) {
			continue
		}
		if dev != nil {
			words = slices.Delete(words, at, at+2)
		}
		line = strings.Join(words, " ")
		for _, noise := range []string{"unicast ", " proto boot", " pref medium", " table main"} {
			line = strings.ReplaceAll(line, noise, "")
		}
		out = append(out, line)
	}
	return out
}
