package main

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTap(t *testing.T) { nstest.RunSpecs(t, "plugins/main/tap") }

// conf is a configuration of network "net": keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "tap", "ipam": Object{"type": "fake"}}},
		more...)...)
}

// nth are a container's addresses of both families.
func nth(n int) []string { return Addrs(n) }
