// Command ptp is the program of the plugin in package ptp. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/ptp/ptp"
)

func main() { skel.Main(ptp.Plugin()) }
