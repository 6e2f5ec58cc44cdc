// Command dhcp is the program of the plugin in package dhcp. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/ipam/dhcp/dhcp"
)

func main() { skel.Main(dhcp.Plugin()) }
