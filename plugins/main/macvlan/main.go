// Command macvlan is the program of the plugin in package macvlan. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/macvlan/macvlan"
)

func main() { skel.Main(macvlan.Plugin()) }
