// Package cni holds the words of the Container Network Interface protocol:
// what a plugin is asked (Config, Attachment, arguments), what it answers
// (Result, Error) and the versions in which both may be written. It is pure
// data: nothing here opens a file, a socket or a namespace.
package cni

import "slices"

const (
	// Oldest is what a configuration without cniVersion speaks.
	Oldest = "0.1.0"
	// Newest is the shape that Result has in memory.
	Newest = "1.1.0"
)

// versions lists every released version of the specification, oldest first.
var versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// Versions returns every specification version that results can be written
// in, oldest first.
func Versions() []string { return slices.Clone(versions) }

// Supports reports whether version is one of Versions, spelt as the
// specification spells it.
func Supports(version string) bool { return slices.Contains(versions, version) }

// Since is the first version that has a command (specification, section 2). Versions
// compare as text.
func Since(command string) string {
	switch command {
	case "CHECK":
		return "0.4.0"
	case "GC", "STATUS":
		return "1.1.0"
	}
	return Oldest
}
