// Command tc-redirect-tap is the plugin of package tcredirecttap as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/tc-redirect-tap/tcredirecttap"
)

func main() { skel.Main(tcredirecttap.Plugin()) }
