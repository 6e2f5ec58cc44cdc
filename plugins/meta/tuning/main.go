// Command tuning is the program of the plugin in package tuning. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/tuning/tuning"
)

func main() { skel.Main(tuning.Plugin()) }
