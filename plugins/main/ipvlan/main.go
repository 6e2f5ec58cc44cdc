// Command ipvlan is the program of the plugin in package ipvlan. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/ipvlan/ipvlan"
)

func main() { skel.Main(ipvlan.Plugin()) }
