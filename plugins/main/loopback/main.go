// Command loopback is the plugin of package loopback as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/loopback/loopback"
)

func main() { skel.Main(loopback.Plugin()) }
