// Package cni has the words of the Container Network Interface protocol: what a plugin
// is asked (Config, Attachment, arguments), what it answers (Result, Error), and their
// versions. It is pure data: nothing here opens a file, a socket or a namespace.
package cni

import "slices"

const (
	// Oldest is what a configuration without cniVersion speaks.
	Oldest = "0.1.0"
	// Newest is the shape that Result has in memory.
	Newest = "1.1.0"
)

var versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// Versions returns every version of the specification, oldest first.
func Versions() []string { return slices.Clone(versions) }

// Supports reports whether version is one of Versions.
func Supports(version string) bool { return slices.Contains(versions, version) }

// Since is the first version with a command (specification, section 2). Versions compare as text.
func Since(command string) string {
	switch command {
	case "CHECK":
		return "0.4.0"
	case "GC", "STATUS":
		return "1.1.0"
	}
	return Oldest
}
