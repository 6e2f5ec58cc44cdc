package main

import (
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the configuration as written. Its tags make --help, the hints
// about misspelt keys and the JSON Schema, so that they cannot drift.
type wireConfig struct {
	skel.Keys // those of every plugin

	Label string `json:"label" help:"what the interface is called; required" schema:"required"`
}

// config is the configuration with every value checked: nothing behind
// parseConfig looks at what was written.
type config struct {
	Label string
}

// labelMax leaves room for the owner in an alias, which has 255 bytes.
const labelMax = 100

// parseConfig reads and checks the configuration. It collects whatever it
// refuses: code 7 with key, value and reason.
func parseConfig(req *skel.Request) (config, error) {
	var w wireConfig
	var problems cni.Problems
	problems.Add(req.Decode(&w))
	switch {
	case w.Label == "":
		problems.Add(cni.Refuse("label", nil, "missing").Suggest(`write "label": "web", for example`))
	case len(w.Label) > labelMax:
		problems.Add(cni.Refuse("label", w.Label, "is longer than 100 bytes"))
	case strings.ContainsFunc(w.Label, func(r rune) bool { return r < ' ' || r > '~' }):
		problems.Add(cni.Refuse("label", w.Label, "has characters other than printable ASCII"))
	}
	return config{Label: w.Label}, problems.Err()
}

// alias is the label behind its owner. Everything that a plugin leaves anywhere
// says whose it is: DEL removes what is its own, and nothing else.
func (c config) alias(owner cni.Attachment) string { return owner.Mark() + " " + c.Label }
