// Command dummy is the program of the plugin in package dummy. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/dummy/dummy"
)

func main() { skel.Main(dummy.Plugin()) }
