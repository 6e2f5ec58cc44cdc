// Command sbr is the plugin of package sbr as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/sbr/sbr"
)

func main() { skel.Main(sbr.Plugin()) }
