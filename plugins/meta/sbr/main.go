// Command sbr is the program of the plugin in package sbr. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/sbr/sbr"
)

func main() { skel.Main(sbr.Plugin()) }
