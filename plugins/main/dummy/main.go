// Command dummy is the plugin of package dummy as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/dummy/dummy"
)

func main() { skel.Main(dummy.Plugin()) }
