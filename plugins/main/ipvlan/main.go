// Command ipvlan is the plugin of package ipvlan as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/ipvlan/ipvlan"
)

func main() { skel.Main(ipvlan.Plugin()) }
