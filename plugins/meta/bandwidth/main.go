// Command bandwidth is the plugin of package bandwidth as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/bandwidth/bandwidth"
)

func main() { skel.Main(bandwidth.Plugin()) }
