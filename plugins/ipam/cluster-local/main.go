// Command cluster-local is the program of the plugin in package clusterlocal. Under the name whereabouts it
// reads the configuration of that plugin. README.md is the manual.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/ipam/cluster-local/clusterlocal"
)

func main() {
	skel.MainOf([]skel.Program{
		skel.ProgramOf("cluster-local", clusterlocal.Plugin),
		skel.ProgramOf("whereabouts", clusterlocal.Whereabouts),
	})
	skel.Main(clusterlocal.Plugin())
}
