// Command host-device is the program of the plugin in package hostdevice. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/host-device/hostdevice"
)

func main() { skel.Main(hostdevice.Plugin()) }
