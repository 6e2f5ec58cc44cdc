// Command firewall is the program of the plugin in package firewall. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/firewall/firewall"
)

func main() { skel.Main(firewall.Plugin()) }
