// Command vrf is the program of the plugin in package vrf. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/vrf/vrf"
)

func main() { skel.Main(vrf.Plugin()) }
