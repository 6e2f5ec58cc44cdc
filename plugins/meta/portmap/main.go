// Command portmap is the plugin of package portmap as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/portmap/portmap"
)

func main() { skel.Main(portmap.Plugin()) }
