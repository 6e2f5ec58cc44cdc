// Command vrf is the plugin of package vrf as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/vrf/vrf"
)

func main() { skel.Main(vrf.Plugin()) }
