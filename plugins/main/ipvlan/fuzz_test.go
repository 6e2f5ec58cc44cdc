package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	FuzzChild(f, plugin().Any(), `"master":"lo","mode":"l3s"`, `"ipam":{"type":"fake"}`)
}
