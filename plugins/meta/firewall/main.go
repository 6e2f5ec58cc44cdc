// Command firewall is the plugin of package firewall as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/firewall/firewall"
)

func main() { skel.Main(firewall.Plugin()) }
