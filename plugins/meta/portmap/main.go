// Command portmap is the program of the plugin in package portmap. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/portmap/portmap"
)

func main() { skel.Main(portmap.Plugin()) }
