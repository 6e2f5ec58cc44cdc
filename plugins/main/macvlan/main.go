// Command macvlan is the plugin of package macvlan as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/macvlan/macvlan"
)

func main() { skel.Main(macvlan.Plugin()) }
