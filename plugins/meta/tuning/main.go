// Command tuning is the plugin of package tuning as a program of its own. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/meta/tuning/tuning"
)

func main() { skel.Main(tuning.Plugin()) }
