// Command bridge is the plugin of package bridge as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/bridge/bridge"
)

func main() { skel.Main(bridge.Plugin()) }
