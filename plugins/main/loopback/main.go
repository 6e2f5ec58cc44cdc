// Command loopback is the program of the plugin in package loopback. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/loopback/loopback"
)

func main() { skel.Main(loopback.Plugin()) }
