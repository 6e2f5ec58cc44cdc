// Command static is the plugin of package static as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/ipam/static/static"
)

func main() { skel.Main(static.Plugin()) }
