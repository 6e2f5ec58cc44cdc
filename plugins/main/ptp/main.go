// Command ptp is the plugin of package ptp as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/ptp/ptp"
)

func main() { skel.Main(ptp.Plugin()) }
