package skel

// What --check-config reads of a file beside the plugins' own keys.
type (
	WireList  = wireList
	WireEntry = wireEntry
)
