package cni

import (
	"slices"
	"strings"
)

// The specification versions at which the protocol gained something that a
// plugin has to ask for before it uses it.
const (
	// Oldest is what a configuration without cniVersion speaks.
	Oldest = "0.1.0"
	// Newest is the shape that Result has in memory.
	Newest = "1.1.0"

	firstCheck = "0.4.0"
	firstGC    = "1.1.0"
)

// versions lists every released version of the specification, oldest first.
var versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// Versions returns every specification version that results can be written
// in, oldest first.
func Versions() []string { return slices.Clone(versions) }

// Supports reports whether version is one of Versions, spelt as the
// specification spells it.
func Supports(version string) bool { return slices.Contains(versions, version) }

// Allows reports whether command exists in version (specification, section
// 2): CHECK came with 0.4.0, GC and STATUS with 1.1.0.
func Allows(version, command string) bool {
	first := Oldest
	switch command {
	case "CHECK":
		first = firstCheck
	case "GC", "STATUS":
		first = firstGC
	}
	return slices.Index(versions, version) >= slices.Index(versions, first)
}

// family is the result shape that a version uses.
type family int

const (
	familyUnknown family = iota
	family01             // 0.1.0, 0.2.0: ip4 and ip6
	family03             // 0.3.0 to 0.4.0: lists, each address with its version
	family1              // 1.0.0 and 1.1.0: lists
)

func familyOf(version string) family {
	switch {
	case !Supports(version):
		return familyUnknown
	case strings.HasPrefix(version, "0.1.") || strings.HasPrefix(version, "0.2."):
		return family01
	case strings.HasPrefix(version, "0."):
		return family03
	}
	return family1
}
