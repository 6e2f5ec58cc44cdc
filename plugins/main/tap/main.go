// Command tap is the plugin of package tap as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/main/tap/tap"
)

func main() { skel.Main(tap.Plugin()) }
