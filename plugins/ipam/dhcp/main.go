// Command dhcp is the plugin of package dhcp as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/ipam/dhcp/dhcp"
)

func main() { skel.Main(dhcp.Plugin()) }
