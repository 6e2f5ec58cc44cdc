package cni

// The shapes on the wire.
type (
	Wire01    = wire01
	Wire1     = wire1
	WireError = wireError
)
