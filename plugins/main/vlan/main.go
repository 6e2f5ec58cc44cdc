// Command vlan is the program of the plugin in package vlan. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/vlan/vlan"
)

func main() { skel.Main(vlan.Plugin()) }
