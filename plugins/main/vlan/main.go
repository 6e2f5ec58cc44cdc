// Command vlan is the plugin of package vlan as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/vlan/vlan"
)

func main() { skel.Main(vlan.Plugin()) }
