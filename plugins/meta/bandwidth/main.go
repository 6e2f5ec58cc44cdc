// Command bandwidth is the program of the plugin in package bandwidth. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/bandwidth/bandwidth"
)

func main() { skel.Main(bandwidth.Plugin()) }
