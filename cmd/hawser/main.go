// Command hawser contains all plugins in one program. Called by the name of a plugin, it acts as that plugin. Called by
// any other name, it is the tool that lists, diagnoses and repairs a node's attachments, and installs the program.
package main

import (
	"github.com/hawser-cni/plugins/cmd/hawser/tool"
	"github.com/hawser-cni/plugins/plugins"
)

func main() { tool.Main(plugins.All()) }
