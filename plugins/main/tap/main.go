// Command tap is the program of the plugin in package tap. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/tap/tap"
)

func main() { skel.Main(tap.Plugin()) }
