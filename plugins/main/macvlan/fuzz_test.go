package main

import (
	"testing"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	FuzzChild(f, plugin().Any(), `"master":"lo","mode":"vepa","mac":"02:00:00:00:00:03","enabledad":false`,
		`"linkInContainer":true,"bcqueuelen":5`)
}
