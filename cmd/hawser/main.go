// Command hawser is all plugins in one file: under the name of a plugin it is that plugin.
package main

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins"
)

func main() {
	skel.MainOf(plugins.All())
}
