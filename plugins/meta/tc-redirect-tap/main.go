// Command tc-redirect-tap is the program of the plugin in package tcredirecttap. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/tc-redirect-tap/tcredirecttap"
)

func main() { skel.Main(tcredirecttap.Plugin()) }
