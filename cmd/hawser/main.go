// Command hawser is all plugins in one file: under the name of a plugin it is that plugin, under any other name the
// tool that says what is attached on a node and what is wrong with it, puts that right, and installs the file.
package main

import (
	"github.com/hawser-cni/plugins/cmd/hawser/tool"
	"github.com/hawser-cni/plugins/plugins"
)

func main() { tool.Main(plugins.All()) }
