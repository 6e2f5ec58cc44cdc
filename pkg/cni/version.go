// Package cni implements the data of the Container Network Interface protocol. It opens no file, socket or namespace.
//
// A plugin receives a Config and arguments, and answers with a Result or an Error. In memory, a Result has the form of
// the newest version; DecodeResult and Encode convert it from and to any version.
//
// An Attachment is one interface of one container on one network. Whatever a plugin leaves on the host belongs to one
// attachment, and bears its Mark (a link's alias, a comment in nftables) or its Hash (a file name). The formats of Mark
// and Hash never change, because they are in the kernel and on disks. A Set contains the attachments that GC must keep.
//
// Parsing reports all invalid values at once: an Error contains a Problem for each of them, with the key, the reason
// and a suggestion (Refuse, Problems). Messages show only values that cannot be secrets.
package cni

import "slices"

const (
	// Oldest is the version of a configuration without cniVersion.
	Oldest = "0.1.0"
	// Newest is the version whose form Result has.
	Newest = "1.1.0"
)

var versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// Versions returns all versions of the specification, the oldest first.
func Versions() []string { return slices.Clone(versions) }

// Supports reports whether version is one of Versions.
func Supports(version string) bool { return slices.Contains(versions, version) }

// Since returns the first version that has a command (specification, section 2). Versions can be compared as texts.
func Since(command string) string {
	switch command {
	case "CHECK":
		return "0.4.0"
	case "GC", "STATUS":
		return "1.1.0"
	}
	return Oldest
}
