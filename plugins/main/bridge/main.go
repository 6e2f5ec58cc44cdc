// Command bridge is the program of the plugin in package bridge. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/bridge/bridge"
)

func main() { skel.Main(bridge.Plugin()) }
