// Command static is the program of the plugin in package static. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/ipam/static/static"
)

func main() { skel.Main(static.Plugin()) }
