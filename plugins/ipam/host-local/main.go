// Command host-local is the program of the plugin in package hostlocal. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/ipam/host-local/hostlocal"
)

func main() { skel.Main(hostlocal.Plugin()) }
